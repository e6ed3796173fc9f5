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
const char* copy_kernel(int64_t bytes) {
  return bytes == 1 ? "copy_1" : bytes == 2 ? "copy_2" : bytes == 4 ? "copy_4" : bytes == 8 ? "copy_8" : "copy_16";
}
const char* tiles_kernel(int64_t bytes) {
  return bytes == 1 ? "copy_tiles_1" : bytes == 2 ? "copy_tiles_2" : bytes == 4 ? "copy_tiles_4" : "copy_tiles_8";
}
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
    case DType::kF8E4M3: put(f8_from_float(static_cast<float>(value))); break;
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

constexpr int64_t kMost = int64_t{1} << 31;
void set_divisors(CopyCall& call) {
  for (int d = 0; d < call.dimensions; ++d)
    call.divisors[d] = call.elements < kMost ? divisor(std::max<int64_t>(1, call.sizes[d])) : device::Divisor{};
}

/// Joins elements of so many bytes, which both sides have beside each other, into words of at most 16 bytes. Returns the bytes of a word.
int64_t widen(CopyCall& call, int64_t bytes) {
  const int last = call.dimensions - 1;
  if (call.from_steps[last] != 1 || call.to_steps[last] != 1) return bytes;
  int64_t joined = 16 / bytes;
  const auto divides = [&](int64_t n) { return n % joined == 0; };
  while (joined > 1 && !(divides(call.sizes[last]) && std::all_of(call.from_steps, call.from_steps + last, divides) &&
                         std::all_of(call.to_steps, call.to_steps + last, divides)))
    joined /= 2;
  for (int d = 0; d < last; ++d) {
    call.from_steps[d] /= joined;
    call.to_steps[d] /= joined;
  }
  call.sizes[last] /= joined;
  call.elements /= joined;
  set_divisors(call);
  return bytes * joined;
}

/// The call in tiles, if one side has elements beside each other that the other has apart.
std::optional<device::CopyTilesCall> tiles_of(const CopyCall& call, int64_t bytes) {
  constexpr int64_t kFew = 16;  // elements for which a tile is too empty
  const int last = call.dimensions - 1;
  if (call.to_steps[last] != 1 || call.sizes[last] < kFew || call.elements >= kMost) return std::nullopt;
  const int64_t tile = bytes <= 2 ? device::kCopyTileOfShort : device::kCopyTileOfLong;
  for (int across = 0; across < last; ++across) {
    if (call.from_steps[across] != 1 || call.sizes[across] < kFew) continue;
    device::CopyTilesCall tiles{.copy = call, .across = across, .tiles = {}, .tile_count = 1};
    for (int d = 0; d < call.dimensions; ++d) {
      const int64_t count = d == across || d == last ? (call.sizes[d] + tile - 1) / tile : call.sizes[d];
      tiles.tiles[d] = divisor(std::max<int64_t>(1, count));
      tiles.tile_count *= count;
    }
    return tiles;
  }
  return std::nullopt;
}

/// Fills the output, if `fill` says so, and copies parts of inputs into it.
class Parts : public PreparedKernel {
 public:
  Parts(const TensorType& out, const std::vector<Part>& parts, std::optional<double> fill = {}, int gate = -1)
      : bytes_(dtype_size(out.dtype)), elements_(out.shape.elements()), gate_(gate) {
    if (fill) fill_ = bits_of(*fill, out.dtype);
    // As elements of 8 bytes, if they are so many.
    fill_bytes_ = elements_ * bytes_ % 8 == 0 ? 8 : bytes_;
    for (int64_t filled = bytes_; fill_ && filled < fill_bytes_; filled *= 2) *fill_ |= *fill_ << 8 * filled;
    for (const Part& part : parts) {
      Bound bound{.input = part.input, .from = part.from * bytes_, .to = part.to * bytes_, .call = call_of(part), .words = {}, .tiles = {}};
      set_divisors(bound.call);
      bound.words = bound.call;
      bound.word_bytes = widen(bound.words, bytes_);
      bound.tiles = tiles_of(bound.call, bytes_);
      parts_.push_back(bound);
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    if (fill_) {
      const int64_t bytes = have_packs(args.outputs[0]) ? fill_bytes_ : bytes_, count = elements_ * bytes_ / bytes;
      launch_elements(stream, fill_kernel(bytes), count, device::FillCall{args.outputs[0], count, *fill_});
    }
    for (const Bound& part : parts_) {
      const auto* from = static_cast<const std::byte*>(args.inputs[part.input]) + part.from;
      auto* to = static_cast<std::byte*>(args.outputs[0]) + part.to;
      const auto bind = [&](CopyCall call) {
        call.from = from;
        call.to = to;
        if (gate_ >= 0) call.gate = args.in<uint8_t>(static_cast<size_t>(gate_));
        return call;
      };
      const auto fits = [&](const void* address) {
        return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(part.word_bytes) == 0;
      };
      if (from == to) continue;
      if (part.tiles) {
        device::CopyTilesCall tiles = *part.tiles;
        tiles.copy = bind(tiles.copy);
        launch_elements(stream, tiles_kernel(bytes_), tiles.tile_count * device::kThreads, tiles);
      } else if (fits(from) && fits(to)) {
        launch_elements(stream, copy_kernel(part.word_bytes), part.words.elements, bind(part.words));
      } else {
        launch_elements(stream, copy_kernel(bytes_), part.call.elements, bind(part.call));
      }
    }
  }

 private:
  struct Bound {
    size_t input;
    int64_t from, to;      // bytes
    CopyCall call, words;  // words: of word_bytes bytes, where addresses are multiples of that
    int64_t word_bytes = 0;
    std::optional<device::CopyTilesCall> tiles;
  };
  int64_t bytes_, elements_, fill_bytes_ = 0;
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
              .elements = query.out(0).shape.elements()},
        from_bytes_(dtype_size(query.in(0).dtype)),
        to_bytes_(dtype_size(query.out(0).dtype)),
        packs_(is_short(query.in(0).dtype) && is_short(query.out(0).dtype)) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::CastCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    if (packs_ && have_packs(call.from, call.to)) {
      const int64_t quads = call.elements / 4, done = quads * 4;
      launch_elements(stream, "cast_quads", (quads + 3) / 4, call);  // four of a thread
      call.from = static_cast<const std::byte*>(call.from) + done * from_bytes_;
      call.to = static_cast<std::byte*>(call.to) + done * to_bytes_;
      call.elements -= done;
    }
    launch_elements(stream, "cast_elements", call.elements, call);
  }

 private:
  static bool is_short(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }
  device::CastCall call_;
  int64_t from_bytes_, to_bytes_;
  bool packs_;
};
Support supports_cast(const KernelQuery& query) {
  if (query.in(0).dtype == DType::kF8E4M3 || query.out(0).dtype == DType::kF8E4M3) return Support::no("f8_e4m3");
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
