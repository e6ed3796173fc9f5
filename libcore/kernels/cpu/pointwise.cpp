#include <algorithm>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/conv_weights.h"
#include "libcore/kernels/cpu/pointwise.h"

namespace galley {
namespace {

// Of x. With more, products take so long that what is read and written between them matters less than how they are made: 40 gain, 64 lose
// (docs/performance.md). Making the wide side again is two products more: 24 gain, 40 lose.
constexpr int64_t kMostChannels = 48;
constexpr int64_t kMostChannelsAgain = 32;
constexpr int64_t kRowBlock = 48;  // rows of which all panels are made one after the other
constexpr int64_t kAhead = 24;     // rows from what is written or read to what is asked for

/// Offsets of channels in the weight's format, which are sums of one term for each index.
std::vector<int64_t> inputs_in(const TensorType& weight) {
  std::vector<int64_t> at;
  for (int64_t i = 0; i < weight.shape[1]; ++i) at.push_back(weight.format.offset(weight.shape, {0, i, 0, 0}));
  return at;
}
std::vector<int64_t> outputs_in(const TensorType& weight) {
  std::vector<int64_t> at;
  for (int64_t o = 0; o < weight.shape[0]; ++o) at.push_back(weight.format.offset(weight.shape, {o, 0, 0, 0}));
  return at;
}

/// Where a panel begins: the last one ends with the last column, so that it is full and may overlap the one before it.
int64_t panel_at(int64_t panel, int64_t columns) { return std::max<int64_t>(0, std::min(panel * kPanel, columns - kPanel)); }

/// packed [panel of columns][row], columns and rows of the weight at these offsets; what no column fills stays as it is.
void pack(const float* weight, const std::vector<int64_t>& column_at, const std::vector<int64_t>& row_at, float* packed) {
  const auto rows = static_cast<int64_t>(row_at.size()), columns = static_cast<int64_t>(column_at.size());
  for (int64_t panel = 0; panel < panels_of(columns); ++panel) {
    const int64_t first = panel_at(panel, columns), count = std::min(kPanel, columns);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < count; ++c) packed[(panel * rows + row) * kPanel + c] = weight[column_at[static_cast<size_t>(first + c)] + row_at[static_cast<size_t>(row)]];
    }
  }
}

/// The product with panels as pack makes them, all of them.
void multiply_rows(PackedProduct p) {
  const int64_t rows = p.rows, columns = p.columns, whole = columns / kPanel;
  const PackedProduct all = p;
  for (int64_t row = 0; row < rows; row += kRowBlock) {
    p = all;
    p.a += row * p.a_step;
    p.c += row * p.c_step;
    p.rows = std::min(kRowBlock, rows - row);
    p.ahead = kAhead;
    p.last = whole;
    if (whole > 0) {
      p.columns = whole * kPanel;
      multiply_packed(p);
    }
    if (whole * kPanel == columns) continue;
    p.packed += whole * kPanel * p.depth;
    p.c += panel_at(whole, columns);
    p.columns = std::min(kPanel, columns);
    p.last = 1;
    multiply_packed(p);
  }
}

Support supports_types(std::initializer_list<const TensorType*> images, const TensorType& weight) {
  if (weight.dtype != DType::kF32) return Support::no(cat("dtype ", weight.dtype));
  for (const TensorType* type : images) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (!type->format.is_channels_last()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

/// To whole cache lines.
int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

PointwiseGradients::PointwiseGradients(const TensorType& x, const TensorType& weight, const TensorType& dweight, int threads, const Rows& rows)
    : pixels_(x.elements() / x.shape[1]), in_(x.shape[1]), out_(weight.shape[0]), unit_(rows.unit), row_step_(rows.step == 0 ? out_ : rows.step), sums_(dweight), in_at_(inputs_in(weight)),
      out_at_(outputs_in(weight)) {
  block_ = std::max<int64_t>(1, sums_.block() / unit_) * unit_;
  parts_ = std::clamp<int64_t>(std::min<int64_t>(threads, kMostPartials / (sums_.floats() * 4)), 1, pixels_ / unit_);
}

int64_t PointwiseGradients::scratch_floats() const { return packed_floats(in_, out_) + lines(panels_of(in_) * kPanel) + parts_ * (lines(sums_.floats()) + lines(block_ * row_step_)); }

void PointwiseGradients::run(const Operands& operands, float* scratch, std::span<const float* const> from, const Make& make) const {
  float* packed = scratch;  // [panel of inputs][output]
  float* zeros = packed + packed_floats(in_, out_);
  float* sums = zeros + lines(panels_of(in_) * kPanel);
  float* blocks = sums + parts_ * lines(sums_.floats());
  std::fill_n(packed, sums - packed, 0.0f);
  pack(operands.weight, in_at_, out_at_, packed);
  parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
    std::vector<PointwiseSums::Next> next;
    for (int64_t part = begin; part < end; ++part) {
      float* own = sums + part * lines(sums_.floats());
      float* block = blocks + part * lines(block_ * row_step_);
      std::fill_n(own, sums_.floats(), 0.0f);
      const int64_t units = pixels_ / unit_, last = units * (part + 1) / parts_ * unit_;
      for (int64_t first = units * part / parts_ * unit_; first < last; first += block_) {
        const int64_t count = std::min(block_, last - first), behind = first + count;
        make(part, first, count, block);
        next.assign(1, {operands.x + behind * in_, count * in_});
        for (const float* array : from) next.push_back({array + behind * out_, count * out_});
        sums_.add(block, row_step_, operands.x + first * in_, count, next, own);
        multiply_rows({block, row_step_, count, out_, packed, operands.dx + first * in_, in_, in_, zeros});
      }
    }
  });
  sums_.write(sums, lines(sums_.floats()), parts_, operands.dweight);
}

PointwiseConvolution::PointwiseConvolution(const TensorType& weight) : in_(weight.shape[1]), out_(weight.shape[0]), in_at_(inputs_in(weight)), out_at_(outputs_in(weight)) {}

int64_t PointwiseConvolution::scratch_floats() const { return packed_floats(out_, in_) + panels_of(out_) * kPanel; }

void PointwiseConvolution::pack(const float* weight, float* scratch) const {
  std::fill_n(scratch, scratch_floats(), 0.0f);
  for (int64_t o = 0; o < out_; ++o) {
    float* to = scratch + o / kPanel * in_ * kPanel + o % kPanel;
    for (int64_t i = 0; i < in_; ++i) to[i * kPanel] = weight[out_at_[static_cast<size_t>(o)] + in_at_[static_cast<size_t>(i)]];
  }
}

void PointwiseConvolution::run(const float* x, const float* packed, int64_t pixels, const Panels& panels, float* y, int64_t y_step) const {
  const float* zeros = packed + packed_floats(out_, in_);
  multiply_packed({x, in_, pixels, in_, packed + panels.first * in_ * kPanel, y, y_step, panels.count * kPanel, zeros, 0, panels.count, kAhead});
}

Support supports_pointwise_convolution(const TensorType& x, const TensorType& weight) {
  if (const Support types = supports_types({&x}, weight); !types) return types;
  if (x.shape[1] > kMostChannelsAgain) return Support::no(cat(x.shape[1], " channels: worth a convolution of its own"));
  return Support::yes();
}

Support supports_pointwise_gradients(const KernelQuery& q, int x, int weight) {
  const Shape& w = q.in(weight).shape;
  if (q.out(1).dtype != DType::kF32) return Support::no(cat("dtype ", q.out(1).dtype));
  if (const Support types = supports_types({&q.in(x), &q.out(0)}, q.in(weight)); !types) return types;
  if (w[0] <= w[1]) return Support::no(cat(w[0], " outputs of ", w[1], " channels: little lies between"));
  if (w[1] > kMostChannels) return Support::no(cat(w[1], " channels: worth products of their own"));
  return PointwiseSums::supports(w);
}

}  // namespace galley
