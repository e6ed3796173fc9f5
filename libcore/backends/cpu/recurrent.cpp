// Recurrent layers (LSTM, GRU, RNN) in float. The input's part is one product over all steps (Appleyard, Kocisky, Blunsom, "Optimizing
// Performance of Recurrent Neural Networks on GPUs", 2016); then each step adds the state's part and applies the cell's functions
// (recurrent_cells.h): 2 G H (I + H) operations for each step of a sample, G gates. Weights are packed in panels of 16 columns
// (packed_product.h): in advance where only inference reads them, else once a run. Rows of the batch do not depend on each other: each
// thread computes some of them for the whole sequence; a small batch is divided by columns, step after step. The bits do not depend on
// which. Large batches are bound by arithmetic, small ones by reading the state's weights from caches or memory at each step.

#include "libcore/ops/recurrent.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/cpu/packed_product.h"
#include "libcore/backends/cpu/recurrent_cells.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using namespace recurrent;

constexpr int64_t kLeastRows = 6;  // of the batch for each thread: those that a tile of the product has

// ---- what the layers share

int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }

/// Rows of an array: a base and the floats from one row to the next; step 0 repeats one row (zeros in place of an absent array).
struct Rows {
  const float* base;
  int64_t step;
  const float* at(int64_t row) const { return base + row * step; }
};
/// Rows of an array to write.
struct Target {
  float* base;
  int64_t step;
  float* at(int64_t row) const { return base + row * step; }
};

/// A sequence [N,T,width]: the rows of one step.
struct Sequence {
  const float* base;
  int64_t steps, width;
  Rows step(int64_t t) const { return {base + t * width, steps * width}; }
};
struct SequenceTarget {
  float* base;
  int64_t steps, width;
  Target step(int64_t t) const { return {base + t * width, steps * width}; }
  operator Sequence() const { return {base, steps, width}; }
};

/// One product of a step: `from` times a packed matrix, to columns `offset`.. of `to`.
struct StepProduct {
  const float* packed;
  int64_t columns, depth, offset = 0;
  const float* initial = nullptr;  // nullptr: added to what is there

  void run(const Rows& from, const Target& to, int64_t begin, int64_t end, int64_t first, int64_t last) const {
    multiply_packed({from.at(begin), from.step, end - begin, depth, packed, to.at(begin) + offset, to.step, columns, initial, first, last});
  }
};

/// The format in which a weight [G H, I] needs no packing.
MemoryFormat packed_format() { return MemoryFormat::blocked("Ab16a"); }

/// Rows of a weight in panels: the input itself where it is packed, else packed into scratch memory.
class PackedRows {
 public:
  PackedRows() = default;
  PackedRows(const TensorType& type, int64_t first, int64_t rows)
      : first_(first), rows_(rows), depth_(type.shape[1]), ready_(type.format.is_blocked()) {}
  int64_t scratch_floats() const { return ready_ ? 0 : packed_floats(rows_, depth_); }
  /// Moves `scratch` past what it uses.
  const float* get(const float* weight, float*& scratch) const {
    if (ready_) return weight + first_ * depth_;
    float* packed = scratch;
    pack_matrix({weight + first_ * depth_, rows_, depth_, depth_, 1}, packed);
    scratch += scratch_floats();
    return packed;
  }

 private:
  int64_t first_ = 0, rows_ = 0, depth_ = 0;
  bool ready_ = false;
};

/// Walks a sequence: for each turn, product(turn, rows, panels part) and then cell(turn, rows); `panels` of the products in all.
/// product(turn, begin, end, part, parts): rows [begin, end), share `part` of `parts` of its panels.
template <class Products, class Cell>
void walk(int64_t batch, int64_t steps, bool forward, const Products& products, const Cell& cell) {
  const int64_t threads = compute_threads();
  const auto turn_of = [&](int64_t i) { return forward ? i : steps - 1 - i; };
  if (threads == 1 || batch >= kLeastRows * threads) {
    parallel_for(batch, kLeastRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < steps; ++i) {
        if (forward) products(turn_of(i), begin, end, 0, 1);
        cell(turn_of(i), begin, end);
        if (!forward) products(turn_of(i), begin, end, 0, 1);
      }
    });
    return;
  }
  const auto shared = [&](int64_t turn) {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) products(turn, 0, batch, part, threads);
    });
  };
  for (int64_t i = 0; i < steps; ++i) {
    if (forward) shared(turn_of(i));
    cell(turn_of(i), 0, batch);
    if (!forward) shared(turn_of(i));
  }
}

/// The panels of a matrix that one thread computes.
std::pair<int64_t, int64_t> share(int64_t columns, int64_t part, int64_t parts) {
  const int64_t panels = panels_of(columns);
  return {panels * part / parts, panels * (part + 1) / parts};
}

/// Sizes of a forward layer, its order of steps, and its scratch memory. G gates in the weights; gates [N,T,width H] while it runs.
struct Layer {
  Layer(const KernelQuery& q, int64_t gates, int64_t width, bool reverse)
      : batch(q.in(0).shape[0]),
        steps(q.in(0).shape[1]),
        in(q.in(0).shape[2]),
        hidden(q.in(2).shape[1]),
        gates(gates),
        width(width),
        reverse(reverse) {}
  int64_t at(int64_t turn) const { return reverse ? steps - 1 - turn : turn; }

  /// The input's part for all steps: gates[n,t, :] = W_ih x + initial.
  void input_part(const float* x, const float* packed, const float* initial, float* to) const {
    const int64_t rows = batch * steps, columns = gates * hidden;
    const int64_t blocks = (rows + 95) / 96, threads = compute_threads();
    const int64_t parts = blocks >= threads ? 1 : std::min(threads, panels_of(columns));
    parallel_for(blocks * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first_row = task / parts * 96;
        const auto [first, last] = share(columns, task % parts, parts);
        multiply_packed({x + first_row * in, in, std::min<int64_t>(96, rows - first_row), in, packed, to + first_row * width * hidden,
                         width * hidden, columns, initial, first, last});
      }
    });
  }

  int64_t batch, steps, in, hidden, gates, width;
  bool reverse;
};

/// Copies rows of `width` floats.
void copy_rows(const Rows& from, const Target& to, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to.at(row), from.at(row), static_cast<size_t>(width) * sizeof(float));
}

/// initial[j] = bias_ih[j] + bias_hh[j] below `both`, bias_ih[j] from there on; zeros after the last column.
void add_biases(const float* bias_ih, const float* bias_hh, int64_t columns, int64_t both, float* initial) {
  std::memset(initial, 0, static_cast<size_t>(panels_of(columns) * kPanel) * sizeof(float));
  for (int64_t j = 0; j < columns; ++j)
    initial[j] = (bias_ih != nullptr ? bias_ih[j] : 0.0f) + (bias_hh != nullptr && j < both ? bias_hh[j] : 0.0f);
}

// ---- forward

class LstmKernel : public PreparedKernel {
 public:
  explicit LstmKernel(const KernelQuery& q)
      : layer_(q, 4, 4, q.attrs<RecurrentAttrs>().reverse),
        save_(q.attrs<RecurrentAttrs>().save),
        input_(q.in(1), 0, 4 * layer_.hidden),
        state_(q.in(2), 0, 4 * layer_.hidden) {}
  int64_t scratch_bytes() const override {
    const Layer& l = layer_;
    return 4 * (input_.scratch_floats() + state_.scratch_floats() + aligned(4 * l.hidden) + aligned(l.hidden) +
                (save_ ? 0 : l.batch * l.steps * 4 * l.hidden));
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Layer& l = layer_;
    const int64_t hidden = l.hidden, columns = 4 * hidden;
    auto* initial = static_cast<float*>(args.scratch);  // after the packed weights
    const float* packed_input = input_.get(args.in<float>(1), initial);
    const float* packed_state = state_.get(args.in<float>(2), initial);
    float* zeros = initial + aligned(columns);
    const SequenceTarget gates{save_ ? args.out<float>(3) : zeros + aligned(hidden), l.steps, columns};
    const SequenceTarget y{args.out<float>(0), l.steps, hidden};
    float* last_cell = args.out<float>(2);
    std::memset(zeros, 0, static_cast<size_t>(hidden) * sizeof(float));
    add_biases(args.in<float>(3), args.in<float>(4), columns, columns, initial);
    l.input_part(args.in<float>(0), packed_input, initial, gates.base);

    const auto first = [&](size_t input) {
      return args.in<float>(input) != nullptr ? Rows{args.in<float>(input), hidden} : Rows{zeros, 0};
    };
    const Rows h0 = first(5), c0 = first(6);
    const StepProduct product{packed_state, columns, hidden};
    // Where not all cells are saved, the last one is updated in place.
    const auto cell_at = [&](int64_t turn) {
      return save_ ? SequenceTarget{args.out<float>(4), l.steps, hidden}.step(l.at(turn)) : Target{last_cell, hidden};
    };
    walk(
        l.batch, l.steps, true,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          const auto [a, b] = share(columns, part, parts);
          product.run(turn == 0 ? h0 : Sequence(y).step(l.at(turn - 1)), gates.step(l.at(turn)), begin, end, a, b);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const Target before = turn == 0 ? Target{nullptr, 0} : cell_at(turn - 1), cell = cell_at(turn);
          const Target arguments = gates.step(l.at(turn)), out = y.step(l.at(turn));
          for (int64_t n = begin; n < end; ++n)
            lstm_row(arguments.at(n), turn == 0 ? c0.at(n) : before.at(n), cell.at(n), out.at(n), hidden);
        });
    copy_rows(Sequence(y).step(l.at(l.steps - 1)), {args.out<float>(1), hidden}, l.batch, hidden);
    if (save_) copy_rows(Sequence{args.out<float>(4), l.steps, hidden}.step(l.at(l.steps - 1)), {last_cell, hidden}, l.batch, hidden);
  }

 private:
  Layer layer_;
  bool save_;
  PackedRows input_, state_;
};

class GruKernel : public PreparedKernel {
 public:
  explicit GruKernel(const KernelQuery& q)
      : layer_(q, 3, 4, q.attrs<RecurrentAttrs>().reverse),
        save_(q.attrs<RecurrentAttrs>().save),
        input_(q.in(1), 0, 3 * layer_.hidden),
        gates_(q.in(2), 0, 2 * layer_.hidden),
        candidate_(q.in(2), 2 * layer_.hidden, layer_.hidden) {}
  int64_t scratch_bytes() const override {
    const Layer& l = layer_;
    return 4 * (input_.scratch_floats() + gates_.scratch_floats() + candidate_.scratch_floats() + aligned(3 * l.hidden) +
                2 * aligned(l.hidden) + (save_ ? 0 : l.batch * l.steps * 4 * l.hidden));
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Layer& l = layer_;
    const int64_t hidden = l.hidden, columns = 3 * hidden;
    auto* initial = static_cast<float*>(args.scratch);
    const float* packed_input = input_.get(args.in<float>(1), initial);
    const float* packed_gates = gates_.get(args.in<float>(2), initial);
    const float* packed_candidate = candidate_.get(args.in<float>(2), initial);
    float* candidate_initial = initial + aligned(columns);
    float* zeros = candidate_initial + aligned(hidden);
    const SequenceTarget gates{save_ ? args.out<float>(2) : zeros + aligned(hidden), l.steps, 4 * hidden};
    const SequenceTarget y{args.out<float>(0), l.steps, hidden};
    const float* bias_hh = args.in<float>(4);
    std::memset(zeros, 0, static_cast<size_t>(hidden) * sizeof(float));
    add_biases(args.in<float>(3), bias_hh, columns, 2 * hidden, initial);
    add_biases(bias_hh != nullptr ? bias_hh + 2 * hidden : nullptr, nullptr, hidden, 0, candidate_initial);
    l.input_part(args.in<float>(0), packed_input, initial, gates.base);

    const Rows h0 = args.in<float>(5) != nullptr ? Rows{args.in<float>(5), hidden} : Rows{zeros, 0};
    const StepProduct reset_update{packed_gates, 2 * hidden, hidden},
        candidate{packed_candidate, hidden, hidden, 3 * hidden, candidate_initial};
    const auto before = [&](int64_t turn) { return turn == 0 ? h0 : Sequence(y).step(l.at(turn - 1)); };
    walk(
        l.batch, l.steps, true,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          const auto [a, b] = share(2 * hidden, part, parts);
          reset_update.run(before(turn), gates.step(l.at(turn)), begin, end, a, b);
          const auto [c, d] = share(hidden, part, parts);
          candidate.run(before(turn), gates.step(l.at(turn)), begin, end, c, d);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const Target arguments = gates.step(l.at(turn)), out = y.step(l.at(turn));
          for (int64_t n = begin; n < end; ++n) gru_row(arguments.at(n), before(turn).at(n), out.at(n), hidden);
        });
    copy_rows(Sequence(y).step(l.at(l.steps - 1)), {args.out<float>(1), hidden}, l.batch, hidden);
  }

 private:
  Layer layer_;
  bool save_;
  PackedRows input_, gates_, candidate_;  // n keeps the state's part apart
};

class RnnKernel : public PreparedKernel {
 public:
  explicit RnnKernel(const KernelQuery& q)
      : layer_(q, 1, 1, q.attrs<RnnAttrs>().reverse),
        tanh_(q.attrs<RnnAttrs>().nonlinearity == Nonlinearity::kTanh),
        input_(q.in(1), 0, layer_.hidden),
        state_(q.in(2), 0, layer_.hidden) {}
  int64_t scratch_bytes() const override { return 4 * (input_.scratch_floats() + state_.scratch_floats() + 2 * aligned(layer_.hidden)); }
  void run(Stream&, const KernelArgs& args) const override {
    const Layer& l = layer_;
    const int64_t hidden = l.hidden;
    auto* initial = static_cast<float*>(args.scratch);
    const float* packed_input = input_.get(args.in<float>(1), initial);
    const float* packed_state = state_.get(args.in<float>(2), initial);
    float* zeros = initial + aligned(hidden);
    const SequenceTarget y{args.out<float>(0), l.steps, hidden};
    std::memset(zeros, 0, static_cast<size_t>(hidden) * sizeof(float));
    add_biases(args.in<float>(3), args.in<float>(4), hidden, hidden, initial);
    l.input_part(args.in<float>(0), packed_input, initial, y.base);  // y holds the arguments first

    const Rows h0 = args.in<float>(5) != nullptr ? Rows{args.in<float>(5), hidden} : Rows{zeros, 0};
    const StepProduct product{packed_state, hidden, hidden};
    walk(
        l.batch, l.steps, true,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          const auto [a, b] = share(hidden, part, parts);
          product.run(turn == 0 ? h0 : Sequence(y).step(l.at(turn - 1)), y.step(l.at(turn)), begin, end, a, b);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const Target out = y.step(l.at(turn));
          for (int64_t n = begin; n < end; ++n) (tanh_ ? tanh_row : relu_row)(out.at(n), hidden);
        });
    copy_rows(Sequence(y).step(l.at(l.steps - 1)), {args.out<float>(1), hidden}, l.batch, hidden);
  }

 private:
  Layer layer_;
  bool tanh_;
  PackedRows input_, state_;
};

// ---- backward

/// What the backward kernels share: gradients that may be absent, and the product that carries a gradient a step back.
struct Backward {
  Backward(const Shape& saved, const TensorType& weight_hh, bool reverse)
      : batch(saved[0]), steps(saved[1]), hidden(weight_hh.shape[1]), rows(weight_hh.shape[0]), reverse(reverse) {}
  int64_t scratch_bytes() const { return 4 * (packed_floats(hidden, rows) + aligned(hidden)); }
  int64_t at(int64_t turn) const { return reverse ? steps - 1 - turn : turn; }

  /// Packs W_hh and clears the row of zeros after it.
  void begin(const KernelArgs& args, size_t weight) {
    packed = static_cast<float*>(args.scratch);
    zeros = packed + packed_floats(hidden, rows);
    std::memset(zeros, 0, static_cast<size_t>(aligned(hidden)) * sizeof(float));
    pack_matrix({args.in<float>(weight), hidden, rows, 1, hidden}, packed);
  }
  /// The rows of grad_y at a step.
  Rows grad_y(const KernelArgs& args, int64_t t) const {
    return args.in<float>(0) != nullptr ? Sequence{args.in<float>(0), steps, hidden}.step(t) : Rows{zeros, 0};
  }
  /// A state's gradient starts as that of the final one.
  void start(const KernelArgs& args, size_t input, float* state) const {
    copy_rows(args.in<float>(input) != nullptr ? Rows{args.in<float>(input), hidden} : Rows{zeros, 0}, {state, hidden}, batch, hidden);
  }
  /// carried = (add ? carried : 0) + d W_hh.
  void carry(const Rows& d, float* carried, bool add, int64_t begin, int64_t end, int64_t part, int64_t parts) const {
    const auto [first, last] = share(hidden, part, parts);
    StepProduct{packed, hidden, rows, 0, add ? nullptr : zeros}.run(d, {carried, hidden}, begin, end, first, last);
  }

  int64_t batch, steps, hidden, rows;
  bool reverse;
  float *packed = nullptr, *zeros = nullptr;
};

class LstmBackward : public PreparedKernel {
 public:
  explicit LstmBackward(const KernelQuery& q) : shape_(q.in(3).shape, q.in(5), q.attrs<RecurrentBackwardAttrs>().reverse) {}
  int64_t scratch_bytes() const override { return shape_.scratch_bytes(); }
  void run(Stream&, const KernelArgs& args) const override {
    Backward b = shape_;
    b.begin(args, 5);
    float *dh = args.out<float>(1), *dc = args.out<float>(2);
    b.start(args, 1, dh);
    b.start(args, 2, dc);
    const Sequence gates{args.in<float>(3), b.steps, b.rows}, cells{args.in<float>(4), b.steps, b.hidden};
    const SequenceTarget d{args.out<float>(0), b.steps, b.rows};
    const Rows c0 = args.in<float>(6) != nullptr ? Rows{args.in<float>(6), b.hidden} : Rows{b.zeros, 0};
    walk(
        b.batch, b.steps, false,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          b.carry(Sequence(d).step(b.at(turn)), dh, false, begin, end, part, parts);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const int64_t t = b.at(turn);
          const Rows grad = b.grad_y(args, t), gate = gates.step(t), cell = cells.step(t),
                     before = turn > 0 ? cells.step(b.at(turn - 1)) : c0;
          const Target to = d.step(t);
          for (int64_t n = begin; n < end; ++n)
            lstm_row_backward(grad.at(n), dh + n * b.hidden, gate.at(n), cell.at(n), before.at(n), dc + n * b.hidden, to.at(n), b.hidden);
        });
  }

 private:
  Backward shape_;
};

class GruBackward : public PreparedKernel {
 public:
  explicit GruBackward(const KernelQuery& q) : shape_(q.in(3).shape, q.in(4), q.attrs<RecurrentBackwardAttrs>().reverse) {}
  int64_t scratch_bytes() const override { return shape_.scratch_bytes(); }
  void run(Stream&, const KernelArgs& args) const override {
    Backward b = shape_;
    b.begin(args, 4);
    float* dh = args.out<float>(2);
    b.start(args, 1, dh);
    const Sequence gates{args.in<float>(2), b.steps, 4 * b.hidden}, y{args.in<float>(3), b.steps, b.hidden};
    const SequenceTarget input{args.out<float>(0), b.steps, b.rows}, of_state{args.out<float>(1), b.steps, b.rows};
    const Rows h0 = args.in<float>(5) != nullptr ? Rows{args.in<float>(5), b.hidden} : Rows{b.zeros, 0};
    walk(
        b.batch, b.steps, false,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          b.carry(Sequence(of_state).step(b.at(turn)), dh, true, begin, end, part, parts);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const int64_t t = b.at(turn);
          const Rows grad = b.grad_y(args, t), gate = gates.step(t), before = turn > 0 ? y.step(b.at(turn - 1)) : h0;
          const Target to = input.step(t), to_state = of_state.step(t);
          for (int64_t n = begin; n < end; ++n)
            gru_row_backward(grad.at(n), dh + n * b.hidden, gate.at(n), before.at(n), to.at(n), to_state.at(n), b.hidden);
        });
  }

 private:
  Backward shape_;
};

class RnnBackward : public PreparedKernel {
 public:
  explicit RnnBackward(const KernelQuery& q)
      : shape_(q.in(2).shape, q.in(3), q.attrs<RnnAttrs>().reverse), tanh_(q.attrs<RnnAttrs>().nonlinearity == Nonlinearity::kTanh) {}
  int64_t scratch_bytes() const override { return shape_.scratch_bytes(); }
  void run(Stream&, const KernelArgs& args) const override {
    Backward b = shape_;
    b.begin(args, 3);
    float* dh = args.out<float>(1);
    b.start(args, 1, dh);
    const Sequence y{args.in<float>(2), b.steps, b.hidden};
    const SequenceTarget d{args.out<float>(0), b.steps, b.hidden};
    walk(
        b.batch, b.steps, false,
        [&](int64_t turn, int64_t begin, int64_t end, int64_t part, int64_t parts) {
          b.carry(Sequence(d).step(b.at(turn)), dh, false, begin, end, part, parts);
        },
        [&](int64_t turn, int64_t begin, int64_t end) {
          const int64_t t = b.at(turn);
          const Rows grad = b.grad_y(args, t), h = y.step(t);
          const Target to = d.step(t);
          for (int64_t n = begin; n < end; ++n)
            (tanh_ ? tanh_row_backward : relu_row_backward)(grad.at(n), dh + n * b.hidden, h.at(n), to.at(n), b.hidden);
        });
  }

 private:
  Backward shape_;
  bool tanh_;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type != nullptr && type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type != nullptr && !type->format.is_contiguous()) return Support::no(cat("format ", type->format));
    if (type != nullptr && type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

/// A GRU's panels must not mix the rows of n with those of the other gates.
bool packs(const KernelQuery& q, int input) {
  return input == 1 || (input == 2 && (!q.node.is("gru") || 2 * q.in(2).shape[1] % kPanel == 0));
}

Support supports_forward(const KernelQuery& q) {
  for (int i = 0; i < static_cast<int>(q.context.inputs.size()); ++i) {
    if (!q.has(i)) continue;
    const TensorType& type = q.in(i);
    if (type.dtype != DType::kF32) return Support::no(cat("dtype ", type.dtype));
    if (!type.format.is_contiguous() && !(packs(q, i) && type.format == packed_format())) return Support::no(cat("format ", type.format));
    if (type.elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

/// While training, the backward reads the weights too, as they are.
MemoryFormat preferred(const KernelQuery& q, int input) {
  return !q.attrs<RecurrentAttrs>().save && packs(q, input) ? packed_format() : MemoryFormat();
}

/// Plain weights to packed ones: where a training's weights are validated, once for each of their versions.
class PackWeight : public PreparedKernel {
 public:
  explicit PackWeight(const KernelQuery& q) : shape_(q.in(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    pack_matrix({args.in<float>(0), shape_[0], shape_[1], shape_[1], 1}, args.out<float>(0));
  }

 private:
  Shape shape_;
};

Support supports_packing(const KernelQuery& q) {
  if (!(q.out(0).format == packed_format()) || !q.in(0).format.is_contiguous())
    return Support::no(cat("reorders contiguous to Ab16a, not ", q.in(0).format, " to ", q.out(0).format));
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  if (q.in(0).shape.rank() != 2 || q.in(0).elements() == 0) return Support::no(cat("shape ", q.in(0).shape));
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 7> kKernels{{{"reorder", "pack_panels", supports_packing, prepare<PackWeight>},
                                      {"lstm", "packed_steps", supports_forward, prepare<LstmKernel>, preferred},
                                      {"lstm_backward", "packed_steps", supports, prepare<LstmBackward>},
                                      {"gru", "packed_steps", supports_forward, prepare<GruKernel>, preferred},
                                      {"gru_backward", "packed_steps", supports, prepare<GruBackward>},
                                      {"rnn", "packed_steps", supports, prepare<RnnKernel>},
                                      {"rnn_backward", "packed_steps", supports, prepare<RnnBackward>}}};

}  // namespace

std::span<const Kernel> cpu_recurrent() { return kKernels; }

}  // namespace galley
