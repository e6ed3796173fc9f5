// elementwise_chain: all steps run over one tile of the output before the next, so that results between steps stay in the cache. Each step
// rounds its result to the dtype, as the operator that it stands for: the results have the same bits.

#include "libcore/ops/elementwise_chain.h"

#include "libcore/backends/cpu/broadcast_walk.h"
#include "libcore/backends/cpu/elementwise_loops.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

using elementwise::FunctionLoops;
using elementwise::LoopNumbers;
using elementwise::Loops;

constexpr size_t kInputs = kChainInputs, kSteps = 8;  // fuse_chains makes several chains of a longer sequence
// Elements of a tile: the two or three arrays between steps that live at a time are 12 KiB of f32, of 32 KiB in the smallest first-level
// caches, and the call of a loop is a few percent of its time.
constexpr int64_t kTile = 1024;

/// How an input comes to a step.
enum class Access : uint8_t {
  kArray,   // elements one after the other, as in the output
  kOne,     // one element for a tile
  kSpread,  // copied to a tile first
};

template <class T>
class Chain : public PreparedKernel {
 public:
  explicit Chain(const KernelQuery& q) : walk_(q.context.inputs, q.out(0)), inputs_(q.context.inputs.size()) {
    row_ = walk_.row_size();
    // Short rows, such as the channels of a pixel, share a tile.
    rows_ = walk_.rows_together() > 1 && row_ <= kTile / 2 ? std::min(walk_.rows_together(), kTile / row_) : 1;
    const auto& row_steps = walk_.steps();
    const auto between = walk_.row_steps();
    for (size_t i = 0; i < inputs_; ++i) {
      const bool alone = rows_ == 1;
      if (row_steps[i] == 1 && (alone || between[i] == row_)) {
        access_[i] = Access::kArray;
      } else if (row_steps[i] == 0 && (alone || between[i] == 0) && row_ > 1) {
        access_[i] = Access::kOne;
      } else {
        access_[i] = Access::kSpread;
      }
    }
    for (const ChainStep& step : q.attrs<ElementwiseChainAttrs>().steps) add_step(step);
    for (Step& step : steps_) choose_loop(step);
    assign_slots();
  }

  void run(Stream&, const KernelArgs& args) const override {
    if (rows_ > 1) {
      walk_.run_rows([&](const At& at, int64_t out_at, int64_t rows) { run_rows(args, at, out_at, rows); });
    } else {
      walk_.run([&](const At& at, int64_t out_at, int64_t count) { run_row(args, at, out_at, count); });
    }
  }

 private:
  using At = typename BroadcastWalk<kInputs>::Steps;

  struct Step {
    const Loops<T>* loops = nullptr;
    typename Loops<T>::Loop loop = nullptr;
    bool backward = false, pair = false;
    LoopNumbers numbers{};
    std::array<size_t, 2> operands{};  // inputs, then results of steps
    size_t slot = 0;                   // where its result goes, unless it is the last
  };
  struct Tiles {
    alignas(64) T results[kSteps][kTile];
    alignas(64) T spread[kInputs][kTile];
    std::array<const T*, kInputs> from{};  // of which address a spread input is a copy, where rows repeat
  };

  void add_step(const ChainStep& from) {
    const FunctionLoops& both = elementwise::loops_of(from.formula->function);
    Step step;
    if constexpr (std::is_same_v<T, float>) {
      step.loops = &both.wide;
    } else {
      step.loops = &both.narrow;
    }
    step.backward = from.backward;
    step.pair = !from.backward && from.operands.size() == 2;
    step.operands = {static_cast<size_t>(from.operands.front()), static_cast<size_t>(from.operands.back())};
    const FunctionNumbers numbers = function_numbers(from.attributes.get());
    for (size_t i = 0; i < step.numbers.size(); ++i) step.numbers[i] = static_cast<float>(numbers[i]);
    // Only functions of two values take one element, and not two of them.
    const auto one = [&](size_t o) { return step.operands[o] < inputs_ && access_[step.operands[o]] == Access::kOne; };
    if (one(0) && (!step.pair || one(1))) access_[step.operands[0]] = Access::kSpread;
    if (one(1) && !step.pair) access_[step.operands[1]] = Access::kSpread;
    steps_.push_back(step);
  }

  void choose_loop(Step& step) const {
    const auto one = [&](size_t o) { return step.operands[o] < inputs_ && access_[step.operands[o]] == Access::kOne; };
    step.loop = step.backward ? step.loops->backward : step.pair ? step.loops->pairs[one(0) ? 1 : 0][one(1) ? 1 : 0] : step.loops->value;
  }

  /// A result may take the slot of an operand that no later step reads: loops write over their operands.
  void assign_slots() {
    std::array<bool, kSteps> taken{};
    for (size_t k = 0; k < steps_.size(); ++k) {
      for (size_t operand : steps_[k].operands) {
        if (operand >= inputs_ && !read_after(operand, k)) taken[steps_[operand - inputs_].slot] = false;
      }
      while (taken[steps_[k].slot]) ++steps_[k].slot;
      taken[steps_[k].slot] = true;
    }
  }
  bool read_after(size_t operand, size_t k) const {
    for (size_t later = k + 1; later < steps_.size(); ++later) {
      if (steps_[later].operands[0] == operand || steps_[later].operands[1] == operand) return true;
    }
    return false;
  }

  /// `rows` rows, in tiles of rows_.
  void run_rows(const KernelArgs& args, const At& at, int64_t out_at, int64_t rows) const {
    Tiles tiles;
    for (int64_t first = 0; first < rows; first += rows_) {
      const int64_t some = std::min(rows_, rows - first);
      std::array<const T*, kInputs> operands{};
      for (size_t i = 0; i < inputs_; ++i) {
        operands[i] = args.in<T>(i) + at[i] + first * walk_.row_steps()[i];
        if (access_[i] == Access::kSpread) operands[i] = spread_rows(tiles, i, operands[i], some);
      }
      run_tile(tiles, operands, some * row_, args.out<T>(0) + out_at + first * row_);
    }
  }
  const T* spread_rows(Tiles& tiles, size_t i, const T* from, int64_t rows) const {
    T* to = tiles.spread[i];
    const int64_t step = walk_.steps()[i], between = walk_.row_steps()[i];
    if (between == 0 && tiles.from[i] == from) return to;  // a full tile holds the last one, too
    tiles.from[i] = from;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < row_; ++j) to[r * row_ + j] = from[r * between + j * step];
    }
    return to;
  }

  /// `count` elements of one row.
  void run_row(const KernelArgs& args, const At& at, int64_t out_at, int64_t count) const {
    Tiles tiles;
    for (int64_t begin = 0; begin < count; begin += kTile) {
      const int64_t some = std::min(kTile, count - begin);
      std::array<const T*, kInputs> operands{};
      for (size_t i = 0; i < inputs_; ++i) {
        const int64_t step = walk_.steps()[i];
        operands[i] = args.in<T>(i) + at[i] + begin * step;
        if (access_[i] != Access::kSpread) continue;
        T* to = tiles.spread[i];
        for (int64_t j = 0; j < some; ++j) to[j] = operands[i][j * step];
        operands[i] = to;
      }
      run_tile(tiles, operands, some, args.out<T>(0) + out_at + begin);
    }
  }

  void run_tile(Tiles& tiles, const std::array<const T*, kInputs>& inputs, int64_t count, T* out) const {
    const auto operand = [&](size_t o) -> const T* { return o < inputs_ ? inputs[o] : tiles.results[steps_[o - inputs_].slot]; };
    for (const Step& step : steps_) {
      T* to = &step == &steps_.back() ? out : tiles.results[step.slot];
      step.loop(operand(step.operands[0]), operand(step.operands[1]), to, count, step.numbers);
    }
  }

  BroadcastWalk<kInputs> walk_;
  size_t inputs_;
  int64_t row_ = 1, rows_ = 1;  // elements of a row, rows of a tile
  std::array<Access, kInputs> access_{};
  std::vector<Step> steps_;
};

Support supports(const KernelQuery& q) {
  const TensorType& y = q.out(0);
  if (y.dtype != DType::kF32 && y.dtype != DType::kBF16) return Support::no(cat("dtype ", y.dtype));
  if (q.context.inputs.size() > kInputs) return Support::no(cat("more than ", kInputs, " inputs"));
  if (y.format.is_blocked()) return Support::no(cat("format ", y.format));
  if (y.elements() == 0) return Support::no("empty array");
  for (const TensorType* type : q.context.inputs) {
    if (type->dtype != y.dtype) return Support::no(cat("dtype ", type->dtype));
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
    // The result may take such an input's memory.
    if (type->shape == y.shape && !same_bytes(y.shape, type->format, y.format)) return Support::no("inputs of different formats");
  }
  return q.attrs<ElementwiseChainAttrs>().steps.size() <= kSteps ? Support::yes() : Support::no(cat("more than ", kSteps, " steps"));
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.out(0).dtype == DType::kBF16) return std::make_unique<Chain<BFloat16>>(q);
  return std::make_unique<Chain<float>>(q);
}

constexpr Kernel kKernels[] = {{"elementwise_chain", "tiles", supports, prepare}};

}  // namespace

std::span<const Kernel> cpu_elementwise_chain() { return kKernels; }

}  // namespace galley
