// Operators that move, fill and convert elements, by the kernels of kernels/copy.h.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

using device::CopyCall;

/// The kernel for elements of so many bytes.
const char* copy_kernel(int64_t bytes) { return bytes == 1 ? "copy_1" : bytes == 2 ? "copy_2" : bytes == 4 ? "copy_4" : "copy_8"; }
const char* fill_kernel(int64_t bytes) { return bytes == 1 ? "fill_1" : bytes == 2 ? "fill_2" : bytes == 4 ? "fill_4" : "fill_8"; }

/// The bits of a number as an element.
uint64_t bits_of(double value, DType dtype) {
  uint64_t bits = 0;
  const auto put = [&](auto element) { std::memcpy(&bits, &element, sizeof element); };
  switch (dtype) {
    case DType::kF32: put(static_cast<float>(value)); break;
    case DType::kF64: put(value); break;
    case DType::kF16: put(f16_from_float(static_cast<float>(value))); break;
    case DType::kBF16: put(bf16_from_float(static_cast<float>(value))); break;
    case DType::kI64: put(static_cast<int64_t>(value)); break;
    case DType::kI32: put(static_cast<int32_t>(value)); break;
    case DType::kI16: put(static_cast<int16_t>(value)); break;
    case DType::kI8: put(static_cast<int8_t>(value)); break;
    case DType::kU8: put(static_cast<uint8_t>(value)); break;
    case DType::kBool: put(static_cast<uint8_t>(value != 0)); break;
  }
  return bits;
}

/// A part of the output that is copied from a part of an input: places in elements, steps along the dimensions `sizes`.
struct Part {
  size_t input = 0;
  int64_t from = 0, to = 0;
  Shape sizes, from_steps, to_steps;
};

/// The call for a part, without addresses: dimensions by descending step of the output, joined where both walk alike.
CopyCall call_of(const Part& part) {
  std::vector<int> order(static_cast<size_t>(part.sizes.rank()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return part.to_steps[a] > part.to_steps[b]; });
  CopyCall call{.elements = part.sizes.elements()};
  for (const int d : order) {
    if (part.sizes[d] == 1) continue;
    const int last = call.dimensions - 1;
    if (last >= 0 && call.from_steps[last] == part.from_steps[d] * part.sizes[d] &&
        call.to_steps[last] == part.to_steps[d] * part.sizes[d]) {
      call.sizes[last] *= part.sizes[d];
      call.from_steps[last] = part.from_steps[d];
      call.to_steps[last] = part.to_steps[d];
      continue;
    }
    call.sizes[call.dimensions] = part.sizes[d];
    call.from_steps[call.dimensions] = part.from_steps[d];
    call.to_steps[call.dimensions] = part.to_steps[d];
    ++call.dimensions;
  }
  if (call.dimensions == 0) {
    call.sizes[0] = 1;
    call.dimensions = 1;
  }
  return call;
}

/// Fills the output, if `fill` says so, and copies parts of inputs into it.
class Parts : public PreparedKernel {
 public:
  Parts(const TensorType& out, const std::vector<Part>& parts, std::optional<double> fill = {}, int gate = -1)
      : bytes_(dtype_size(out.dtype)), elements_(out.shape.elements()), gate_(gate) {
    if (fill) fill_ = bits_of(*fill, out.dtype);
    for (const Part& part : parts) parts_.push_back({part.input, part.from * bytes_, part.to * bytes_, call_of(part)});
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    if (fill_) launch_elements(stream, fill_kernel(bytes_), elements_, device::FillCall{args.outputs[0], elements_, *fill_});
    for (const Bound& part : parts_) {
      CopyCall call = part.call;
      call.from = static_cast<const std::byte*>(args.inputs[part.input]) + part.from;
      call.to = static_cast<std::byte*>(args.outputs[0]) + part.to;
      if (gate_ >= 0) call.gate = args.in<uint8_t>(static_cast<size_t>(gate_));
      if (call.from != call.to) launch_elements(stream, copy_kernel(bytes_), call.elements, call);
    }
  }

 private:
  struct Bound {
    size_t input;
    int64_t from, to;  // bytes
    CopyCall call;
  };
  int64_t bytes_, elements_;
  int gate_;
  std::optional<uint64_t> fill_;
  std::vector<Bound> parts_;
};

Shape strides_of(const TensorType& type) { return type.format.strides(type.shape); }
/// The whole of input `input`, for an output of its shape.
Part whole(const KernelQuery& query, int input) {
  const TensorType &from = query.in(input), &to = query.out(0);
  return {.input = static_cast<size_t>(input), .sizes = to.shape, .from_steps = strides_of(from), .to_steps = strides_of(to)};
}

std::unique_ptr<PreparedKernel> prepare_broadcast(const KernelQuery& query) {
  const TensorType &x = query.in(0), &y = query.out(0);
  const Shape own = strides_of(x);
  Part part{.sizes = y.shape, .from_steps = y.shape, .to_steps = strides_of(y)};
  for (int d = 0; d < y.shape.rank(); ++d) {
    const int at = d - (y.shape.rank() - x.shape.rank());
    part.from_steps[d] = at < 0 || x.shape[at] == 1 ? 0 : own[at];
  }
  return std::make_unique<Parts>(y, std::vector{part});
}

std::unique_ptr<PreparedKernel> prepare_permute(const KernelQuery& query) {
  const std::vector<int64_t>& order = query.attrs<PermuteAttrs>().order;
  const Shape own = strides_of(query.in(0));
  Part part{.sizes = query.out(0).shape, .from_steps = query.out(0).shape, .to_steps = strides_of(query.out(0))};
  for (int d = 0; d < part.sizes.rank(); ++d) part.from_steps[d] = own[static_cast<int>(order[static_cast<size_t>(d)])];
  return std::make_unique<Parts>(query.out(0), std::vector{part});
}

/// `cut` is the array with the elements of the slice, `all` the other.
void set_slice(const SliceAttrs& attrs, int axis, const TensorType& all, int64_t& offset, Shape& steps) {
  steps = strides_of(all);
  offset = attrs.range(all.shape[axis])[0] * steps[axis];
  steps[axis] *= attrs.step;
}

std::unique_ptr<PreparedKernel> prepare_slice(const KernelQuery& query) {
  const auto& attrs = query.attrs<SliceAttrs>();
  Part part{.sizes = query.out(0).shape, .to_steps = strides_of(query.out(0))};
  set_slice(attrs, axis_of(attrs.axis, query.in(0)), query.in(0), part.from, part.from_steps);
  return std::make_unique<Parts>(query.out(0), std::vector{part});
}

std::unique_ptr<PreparedKernel> prepare_slice_backward(const KernelQuery& query) {
  const auto& attrs = query.attrs<SliceBackwardAttrs>();
  Part part{.sizes = query.in(0).shape, .from_steps = strides_of(query.in(0))};
  set_slice(attrs.slice(), axis_of(attrs.axis, query.in(0)), query.out(0), part.to, part.to_steps);
  return std::make_unique<Parts>(query.out(0), std::vector{part}, 0.0);
}

std::unique_ptr<PreparedKernel> prepare_concat(const KernelQuery& query) {
  const int axis = axis_of(query.attrs<ConcatAttrs>().axis, query.in(0));
  const Shape steps = strides_of(query.out(0));
  std::vector<Part> parts;
  int64_t start = 0;
  for (size_t i = 0; i < query.context.inputs.size(); ++i) {
    const TensorType& x = query.in(static_cast<int>(i));
    parts.push_back({.input = i, .to = start * steps[axis], .sizes = x.shape, .from_steps = strides_of(x), .to_steps = steps});
    start += x.shape[axis];
  }
  return std::make_unique<Parts>(query.out(0), parts);
}

std::unique_ptr<PreparedKernel> prepare_pad(const KernelQuery& query) {
  const auto& attrs = query.attrs<PadAttrs>();
  Part part{.sizes = query.in(0).shape, .from_steps = strides_of(query.in(0)), .to_steps = strides_of(query.out(0))};
  for (int d = 0; d < part.sizes.rank(); ++d) part.to += attrs.padding[static_cast<size_t>(2 * d)] * part.to_steps[d];
  return std::make_unique<Parts>(query.out(0), std::vector{part}, attrs.value);
}

std::unique_ptr<PreparedKernel> prepare_whole(const KernelQuery& query) {
  return std::make_unique<Parts>(query.out(0), std::vector{whole(query, 0)});
}

/// The same elements in logical order, which is also the order of memory.
std::unique_ptr<PreparedKernel> prepare_reshape(const KernelQuery& query) {
  const Shape all{query.out(0).shape.elements()}, one{1};
  return std::make_unique<Parts>(query.out(0), std::vector{Part{.sizes = all, .from_steps = one, .to_steps = one}});
}

std::unique_ptr<PreparedKernel> prepare_assign(const KernelQuery& query) {
  return std::make_unique<Parts>(query.out(0), std::vector{whole(query, 1)}, std::nullopt, query.has(2) ? 2 : -1);
}

std::unique_ptr<PreparedKernel> prepare_full(const KernelQuery& query) {
  return std::make_unique<Parts>(query.out(0), std::vector<Part>(), query.attrs<FullAttrs>().value);
}

class Cast : public PreparedKernel {
 public:
  Cast(const KernelQuery& query, DType rounded)
      : call_{.from_type = type_of(query.in(0)),
              .to_type = type_of(query.out(0)),
              .rounded = type_of(rounded),
              .elements = query.out(0).shape.elements()} {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CastCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, "cast_elements", call.elements, call);
  }

 private:
  device::CastCall call_;
};
Support supports_cast(const KernelQuery& query) {
  if (query.in(0).format != query.out(0).format) return Support::no("operands of different formats");
  return no_blocked_formats(query);
}
std::unique_ptr<PreparedKernel> prepare_cast(const KernelQuery& query) { return std::make_unique<Cast>(query, DType::kF64); }
std::unique_ptr<PreparedKernel> prepare_reduce_precision(const KernelQuery& query) {
  return std::make_unique<Cast>(query, query.attrs<ReducePrecisionAttrs>().dtype);
}

constexpr Kernel kKernels[] = {
    {"broadcast_to", "strided_copy", no_blocked_formats, prepare_broadcast},
    {"permute", "strided_copy", no_blocked_formats, prepare_permute},
    {"slice", "strided_copy", no_blocked_formats, prepare_slice},
    {"slice_backward", "strided_copy", no_blocked_formats, prepare_slice_backward},
    {"concat", "strided_copy", no_blocked_formats, prepare_concat},
    {"pad", "strided_copy", no_blocked_formats, prepare_pad},
    {"reshape", "copy", only_contiguous, prepare_reshape},
    {"reorder", "strided_copy", no_blocked_formats, prepare_whole},
    {"assign", "strided_copy", no_blocked_formats, prepare_assign},
    {"full", "fill", no_blocked_formats, prepare_full},
    {"cast", "cast", supports_cast, prepare_cast},
    {"reduce_precision", "cast", supports_cast, prepare_reduce_precision},
};

}  // namespace

std::span<const Kernel> cuda_copy() { return kKernels; }

}  // namespace galley
