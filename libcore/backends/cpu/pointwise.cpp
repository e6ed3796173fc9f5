#include "libcore/backends/cpu/pointwise.h"

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

// With more input channels, products take so long that reading and writing their output matters less than how fast they run.
constexpr int64_t kMostChannels = conv_threshold::kLineBufferChannels.value;
constexpr int64_t kRowBlock = conv_threshold::kPointwiseRowBlock.value, kAhead = conv_threshold::kPointwisePrefetchRows.value;

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

Support supports_types(std::initializer_list<const TensorType*> images, const TensorType& weight) {
  if (weight.dtype != DType::kF32) return Support::no(cat("dtype ", weight.dtype));
  for (const TensorType* type : images) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (!type->format.is_channels_last()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

/// Rounds up to whole cache lines.
int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

namespace {
constexpr size_t kMostArrays = 7;  // that a gradient is computed from
}

PointwiseGradients::PointwiseGradients(const TensorType& x, const TensorType& weight, const TensorType& dweight, int threads)
    : pixels_(x.elements() / x.shape[1]),
      in_(x.shape[1]),
      out_(weight.shape[0]),
      input_(PointwiseProduct::Of::kInputGradient, weight),
      sums_(dweight) {
  block_ = sums_.block();
  parts_ = std::clamp<int64_t>(std::min<int64_t>(threads, conv_threshold::kWeightSumBytes.value / (sums_.floats() * 4)), 1, pixels_);
}

int64_t PointwiseGradients::scratch_floats() const {
  return input_.scratch_floats() + parts_ * (lines(sums_.floats()) + lines(block_ * out_));
}

void PointwiseGradients::run(const Operands& operands, float* scratch, std::span<const float* const> from, Make make) const {
  GALLEY_ASSERT(from.size() <= kMostArrays);
  float* sums = scratch + input_.scratch_floats();
  float* blocks = sums + parts_ * lines(sums_.floats());
  input_.pack(operands.weight, nullptr, nullptr, scratch);
  parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
    std::array<PointwiseSums::Next, kMostArrays + 1> next;
    for (int64_t part = begin; part < end; ++part) {
      float* own = sums + part * lines(sums_.floats());
      float* block = blocks + part * lines(block_ * out_);
      std::fill_n(own, sums_.floats(), 0.0f);
      const int64_t last = pixels_ * (part + 1) / parts_;
      for (int64_t first = pixels_ * part / parts_; first < last; first += block_) {
        const int64_t count = std::min(block_, last - first), next_first = first + count;
        make(first, count, block);
        next[0] = {operands.x + next_first * in_, count * in_};
        for (size_t i = 0; i < from.size(); ++i) next[i + 1] = {from[i] + next_first * out_, count * out_};
        sums_.add(block, out_, operands.x + first * in_, count, std::span(next.data(), from.size() + 1), own);
        input_.run(block, out_, count, scratch, operands.dx + first * in_);
      }
    }
  });
  sums_.write(sums, lines(sums_.floats()), parts_, operands.dweight);
}

namespace {
/// The last panel may start at any column.
int64_t shift_floats(int64_t columns) { return (panels_of(columns) + 1) * kPanel; }
}  // namespace

PointwiseProduct::PointwiseProduct(Of of, const TensorType& weight, Into into)
    : to_at_(inputs_in(weight)), from_at_(outputs_in(weight)), into_(into) {
  if (of == Of::kOutput) std::swap(to_at_, from_at_);
}

/// Columns in panels that do not overlap. If there are more columns, the last panel ends with the last one of them: it is full and overlaps
/// the panel before. A sum may be written twice, but not added twice. Eight columns are computed as half a panel.
int64_t PointwiseProduct::in_turn() const {
  const auto columns = static_cast<int64_t>(to_at_.size());
  return into_ == Into::kAdd || columns % kPanel == 8 ? columns : columns / kPanel * kPanel;
}
int64_t PointwiseProduct::panel_at(int64_t panel) const {
  return panel * kPanel < in_turn() ? panel * kPanel : std::max<int64_t>(0, static_cast<int64_t>(to_at_.size()) - kPanel);
}

int64_t PointwiseProduct::scratch_floats() const {
  const auto to = static_cast<int64_t>(to_at_.size());
  return packed_floats(to, static_cast<int64_t>(from_at_.size())) + shift_floats(to);
}

/// Packed [panel of outputs][input of the product], followed by the initial sums, which are readable to the end of any panel.
void PointwiseProduct::pack(const float* weight, const float* scale, const float* shift, float* scratch) const {
  const auto columns = static_cast<int64_t>(to_at_.size()), depth = static_cast<int64_t>(from_at_.size());
  float* shifts = scratch + packed_floats(columns, depth);
  std::fill_n(shifts, shift_floats(columns), 0.0f);
  if (shift != nullptr) std::copy_n(shift, columns, shifts);
  parallel_for(panels_of(columns), std::max<int64_t>(1, 16384 / (depth * kPanel)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel_at(panel), count = std::min(kPanel, columns - first);
      for (int64_t k = 0; k < depth; ++k) {
        float* to = scratch + (panel * depth + k) * kPanel;
        for (int64_t i = 0; i < count; ++i)
          to[i] = weight[to_at_[static_cast<size_t>(first + i)] + from_at_[static_cast<size_t>(k)]] * (scale != nullptr ? scale[k] : 1);
        std::fill(to + count, to + kPanel, 0.0f);
      }
    }
  });
}

void PointwiseProduct::run(const float* from, int64_t step, int64_t pixels, const float* packed, float* to) const {
  const auto columns = static_cast<int64_t>(to_at_.size()), depth = static_cast<int64_t>(from_at_.size()), whole = in_turn(),
             last = panels_of(columns) - 1;
  const float* shifts = into_ == Into::kWrite ? packed + packed_floats(columns, depth) : nullptr;
  for (int64_t row = 0; row < pixels; row += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, pixels - row);
    const auto multiply = [&](int64_t panel, int64_t first, int64_t count) {
      const float* initial = shifts == nullptr ? nullptr : shifts + first;
      multiply_packed({from + row * step, step, rows, depth, packed + panel * kPanel * depth, to + row * columns + first, columns, count,
                       initial, 0, panels_of(count), panel == 0 ? kAhead : 0, kAhead});
    };
    if (whole > 0) multiply(0, 0, whole);
    if (whole < columns) multiply(last, panel_at(last), std::min(kPanel, columns));
  }
}

PointwiseConvolution::PointwiseConvolution(const TensorType& weight)
    : in_(weight.shape[1]), out_(weight.shape[0]), in_at_(inputs_in(weight)), out_at_(outputs_in(weight)) {}

int64_t PointwiseConvolution::scratch_floats() const { return packed_floats(out_, in_) + panels_of(out_) * kPanel; }

/// Packed [panel of outputs][input], followed by the shifts, which are the initial sums.
void PointwiseConvolution::pack(const float* weight, const float* scale, const float* shift, float* scratch) const {
  std::fill_n(scratch, scratch_floats(), 0.0f);
  for (int64_t o = 0; o < out_; ++o) {
    float* to = scratch + o / kPanel * in_ * kPanel + o % kPanel;
    for (int64_t i = 0; i < in_; ++i)
      to[i * kPanel] = weight[out_at_[static_cast<size_t>(o)] + in_at_[static_cast<size_t>(i)]] * (scale != nullptr ? scale[o] : 1);
    if (shift != nullptr) scratch[packed_floats(out_, in_) + o] = shift[o];
  }
}

void PointwiseConvolution::run(const float* x, const float* packed, int64_t pixels, const Panels& panels, const Rows& y, bool prefetch,
                               bool relu) const {
  const float* shifts = packed + packed_floats(out_, in_) + panels.first * kPanel;
  multiply_packed({x, in_, pixels, in_, packed + panels.first * in_ * kPanel, y.at, y.step, panels.count * kPanel, shifts, 0, panels.count,
                   prefetch ? kAhead : 0, 0, y.panel_step, relu});
}

Support supports_pointwise_convolution(const TensorType& x, const TensorType& weight) {
  if (const Support types = supports_types({&x}, weight); !types) return types;
  if (const Support sums = PointwiseSums::supports(weight.shape); !sums) return sums;
  if (x.shape[1] > kMostChannels) return Support::no(cat(x.shape[1], " channels: worth a convolution of its own"));
  return Support::yes();
}

Support supports_pointwise_gradients(const KernelQuery& q, int x, int weight) {
  const Shape& w = q.in(weight).shape;
  if (q.out(1).dtype != DType::kF32) return Support::no(cat("dtype ", q.out(1).dtype));
  if (const Support types = supports_types({&q.in(x), &q.out(0)}, q.in(weight)); !types) return types;
  if (w[0] <= w[1]) return Support::no(cat(w[0], " outputs of ", w[1], " channels: the output is too small to recompute it"));
  if (w[1] > kMostChannels) return Support::no(cat(w[1], " channels: worth products of their own"));
  return PointwiseSums::supports(w);
}

}  // namespace galley
