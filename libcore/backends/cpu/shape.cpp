// Operators that move elements, of any dtype, contiguous or channels_last: strided copies, and boxes put into a constant.

#include "libcore/ops/shape.h"

#include <array>

#include "libcore/backends/cpu/strided_copy.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/rules.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

Support plain_formats(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
  }
  if (q.out(0).format.is_blocked()) return Support::no(cat("output format ", q.out(0).format));
  return Support::yes();
}

Support one_format(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (!(type->format == q.out(0).format)) return Support::no("inputs and output of different formats");
  }
  return plain_formats(q);
}

class Copy : public PreparedKernel {
 public:
  Copy(int64_t element, std::vector<CopyDim> dims, int64_t first) : copy_(element, std::move(dims)), offset_(first * element) {}
  void run(Stream&, const KernelArgs& args) const override { copy_.run(args.in<std::byte>(0) + offset_, args.out<std::byte>(0)); }

 private:
  StridedCopy copy_;
  int64_t offset_;
};

std::unique_ptr<PreparedKernel> prepare_slice(const KernelQuery& q) {
  const auto& attrs = q.attrs<SliceAttrs>();
  const TensorType &x = q.in(0), &y = q.out(0);
  const int axis = axis_of(attrs.axis, x);
  const Shape from = x.format.strides(x.shape), to = y.format.strides(y.shape);
  std::vector<CopyDim> dims;
  for (const int d : y.format.order(y.shape.rank())) dims.push_back({y.shape[d], from[d] * (d == axis ? attrs.step : 1), to[d]});
  return std::make_unique<Copy>(dtype_size(x.dtype), std::move(dims), attrs.range(x.shape[axis])[0] * from[axis]);
}

std::unique_ptr<PreparedKernel> prepare_permute(const KernelQuery& q) {
  const TensorType &x = q.in(0), &y = q.out(0);
  const std::vector<int64_t>& order = q.attrs<PermuteAttrs>().order;
  const Shape from = x.format.strides(x.shape), to = y.format.strides(y.shape);
  std::vector<CopyDim> dims;
  for (int d = 0; d < y.shape.rank(); ++d) dims.push_back({y.shape[d], from[static_cast<int>(order[static_cast<size_t>(d)])], to[d]});
  return std::make_unique<Copy>(dtype_size(x.dtype), std::move(dims), 0);
}

std::unique_ptr<PreparedKernel> prepare_reorder(const KernelQuery& q) {
  return std::make_unique<Copy>(dtype_size(q.in(0).dtype), copy_dims(q.in(0), q.out(0)), 0);
}

Support supports_reshape(const KernelQuery& q) {
  if (!q.in(0).format.is_contiguous() || !q.out(0).format.is_contiguous()) return Support::no("not contiguous");
  return Support::yes();
}
std::unique_ptr<PreparedKernel> prepare_reshape(const KernelQuery& q) {
  return std::make_unique<Copy>(dtype_size(q.in(0).dtype), std::vector<CopyDim>{{q.in(0).elements(), 1, 1}}, 0);
}

std::unique_ptr<PreparedKernel> prepare_broadcast(const KernelQuery& q) {
  const TensorType &x = q.in(0), &y = q.out(0);
  const Shape from = x.format.strides(x.shape), to = y.format.strides(y.shape);
  const int missing = y.shape.rank() - x.shape.rank();
  std::vector<CopyDim> dims;
  for (int d = 0; d < y.shape.rank(); ++d)
    dims.push_back({y.shape[d], d < missing || x.shape[d - missing] == 1 ? 0 : from[d - missing], to[d]});
  return std::make_unique<Copy>(dtype_size(x.dtype), std::move(dims), 0);
}

/// For each outer index, copies the parts of the inputs one after the other.
class Concat : public PreparedKernel {
 public:
  explicit Concat(const KernelQuery& q) {
    const TensorType& y = q.out(0);
    const int axis = axis_of(q.attrs<ConcatAttrs>().axis, q.in(0));
    bool before = true;
    int64_t inner = dtype_size(y.dtype);
    for (const int d : y.format.order(y.shape.rank())) {
      if (d == axis) before = false;
      if (d != axis) (before ? rows_ : inner) *= y.shape[d];
    }
    for (const TensorType* x : q.context.inputs) {
      parts_.push_back(x->shape[axis] * inner);
      row_bytes_ += parts_.back();
    }
  }
  void run(Stream&, const KernelArgs& args) const override {
    auto* y = args.out<std::byte>(0);
    if (row_bytes_ >= 1 << 20) {  // few long rows: each part is cut
      for (int64_t row = 0; row < rows_; ++row) {
        std::byte* to = y + row * row_bytes_;
        for (size_t i = 0; i < parts_.size(); ++i) {
          const std::byte* from = args.in<std::byte>(i) + row * parts_[i];
          parallel_for(parts_[i], 65536,
                       [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
          to += parts_[i];
        }
      }
      return;
    }
    if (row_bytes_ == 0) return;
    parallel_for(rows_, std::max<int64_t>(1, 65536 / row_bytes_), [&](int64_t begin, int64_t end) {
      std::byte* to = y + begin * row_bytes_;
      for (int64_t row = begin; row < end; ++row) {
        for (size_t i = 0; i < parts_.size(); ++i) {
          copy_run(to, args.in<std::byte>(i) + row * parts_[i], parts_[i]);
          to += parts_[i];
        }
      }
    });
  }

 private:
  std::vector<int64_t> parts_;  // bytes of each input's part of a row
  int64_t rows_ = 1, row_bytes_ = 0;
};

/// A box of the input, along each dimension from `start` every `step`, in an array that holds one value elsewhere. Dense in one order on
/// both sides, so that whole runs are copied and filled.
class Embed : public PreparedKernel {
 public:
  struct Dim {
    int64_t size = 1, count = 1, start = 0, step = 1;  // of the output; how many from the input, and where they go
    bool whole() const { return size == count; }
  };
  Embed(DType dtype, const std::vector<Dim>& dims, double value) : element_(dtype_size(dtype)) {
    for (size_t i = 0; i < pattern_.size(); i += static_cast<size_t>(element_)) store_element(dtype, pattern_.data() + i, value);
    for (const Dim& dim : dims) {
      if (!dims_.empty() && dim.whole() && dims_.back().step == 1) {
        Dim& outer = dims_.back();
        outer = {outer.size * dim.size, outer.count * dim.size, outer.start * dim.size, 1};
      } else {
        dims_.push_back(dim);
      }
    }
    if (dims_.size() > 1 && dims_.back().whole()) {  // below a stepped one
      element_ *= dims_.back().size;
      single_ = false;
      dims_.pop_back();
    }
    if (dims_.empty()) dims_.push_back({});
    inner_ = dims_.back();
    dims_.pop_back();
    for (const Dim& dim : dims_) rows_ *= dim.size;
  }
  void run(Stream&, const KernelArgs& args) const override {
    const auto* x = args.in<std::byte>(0);
    auto* y = args.out<std::byte>(0);
    if (element_ == 0) return;
    parallel_for(rows_ * inner_.size, std::max<int64_t>(1, 65536 / element_), [&](int64_t begin, int64_t end) {
      std::array<int64_t, Shape::kMaxRank> at;
      int64_t rest = begin / inner_.size, first = begin % inner_.size;
      for (size_t d = dims_.size(); d-- > 0;) {
        at[d] = rest % dims_[d].size;
        rest /= dims_[d].size;
      }
      std::byte* to = y + begin * element_;
      while (begin < end) {
        const int64_t last = std::min(inner_.size, first + end - begin);
        const int64_t row = row_of(at);
        if (row < 0) {
          fill_run(to, pattern_, (last - first) * element_);
        } else {
          write_row(x + row * inner_.count * element_, to, first, last);
        }
        to += (last - first) * element_;
        begin += last - first;
        first = 0;
        for (size_t d = dims_.size(); d-- > 0;) {
          if (++at[d] < dims_[d].size) break;
          at[d] = 0;
        }
      }
    });
  }

 private:
  /// The input's row at an outer index of the output, -1 where there is none.
  int64_t row_of(const std::array<int64_t, Shape::kMaxRank>& at) const {
    int64_t row = 0;
    for (size_t d = 0; d < dims_.size(); ++d) {
      const Dim& dim = dims_[d];
      int64_t i = at[d] - dim.start;
      if (i < 0) return -1;
      if (dim.step != 1) {
        if (i % dim.step != 0) return -1;
        i /= dim.step;
      }
      if (i >= dim.count) return -1;
      row = row * dim.count + i;
    }
    return row;
  }
  /// Every step-th element of first..last, which `to` is the start of, from its place in a row of the input.
  template <class T>
  void scatter(const std::byte* x, std::byte* to, int64_t first, int64_t last) const {
    const int64_t begin = (first - inner_.start + inner_.step - 1) / inner_.step,
                  end = std::min(inner_.count, (last - inner_.start + inner_.step - 1) / inner_.step);
    const auto* in = reinterpret_cast<const T*>(x);
    auto* out = reinterpret_cast<T*>(to) + inner_.start - first;
    for (int64_t i = begin; i < end; ++i) out[i * inner_.step] = in[i];
  }
  /// Elements first..last of a row; `to` is that of `first`.
  void write_row(const std::byte* x, std::byte* to, int64_t first, int64_t last) const {
    int64_t k = first;
    const auto fill_to = [&](int64_t end) {
      if (end <= k) return;
      fill_run(to, pattern_, (end - k) * element_);
      to += (end - k) * element_;
      k = end;
    };
    fill_to(std::min(last, inner_.start));
    if (inner_.step == 1) {
      const int64_t end = std::min(last, inner_.start + inner_.count);
      if (end > k) {
        copy_run(to, x + (k - inner_.start) * element_, (end - k) * element_);
        to += (end - k) * element_;
        k = end;
      }
    } else if (k < last && single_) {
      fill_run(to, pattern_, (last - k) * element_);
      switch (element_) {
        case 1: scatter<uint8_t>(x, to, k, last); return;
        case 2: scatter<uint16_t>(x, to, k, last); return;
        case 4: scatter<uint32_t>(x, to, k, last); return;
        default: scatter<uint64_t>(x, to, k, last); return;
      }
    } else if (k < last) {
      for (int64_t i = (k - inner_.start + inner_.step - 1) / inner_.step; i < inner_.count; ++i) {
        const int64_t next = inner_.start + i * inner_.step;
        if (next >= last) break;
        fill_to(next);
        copy_run(to, x + i * element_, element_);
        to += element_;
        ++k;
      }
    }
    fill_to(last);
  }

  int64_t element_;     // bytes
  bool single_ = true;  // element_ is the dtype's
  std::array<std::byte, 64> pattern_{};
  std::vector<Dim> dims_;
  Dim inner_;
  int64_t rows_ = 1;
};

std::unique_ptr<PreparedKernel> prepare_slice_backward(const KernelQuery& q) {
  const auto& attrs = q.attrs<SliceBackwardAttrs>();
  const TensorType& y = q.out(0);
  const int axis = axis_of(attrs.axis, q.in(0));
  std::vector<Embed::Dim> dims;
  for (const int d : y.format.order(y.shape.rank())) {
    dims.push_back({y.shape[d], q.in(0).shape[d], 0, 1});
    if (d == axis) dims.back() = {y.shape[d], q.in(0).shape[d], attrs.slice().range(y.shape[d])[0], attrs.step};
  }
  return std::make_unique<Embed>(y.dtype, dims, 0);
}

std::unique_ptr<PreparedKernel> prepare_pad(const KernelQuery& q) {
  const auto& attrs = q.attrs<PadAttrs>();
  const TensorType& y = q.out(0);
  std::vector<Embed::Dim> dims;
  for (const int d : y.format.order(y.shape.rank()))
    dims.push_back({y.shape[d], q.in(0).shape[d], attrs.padding[static_cast<size_t>(2 * d)], 1});
  return std::make_unique<Embed>(y.dtype, dims, attrs.value);
}

std::unique_ptr<PreparedKernel> prepare_concat(const KernelQuery& q) { return std::make_unique<Concat>(q); }

const std::array<Kernel, 8> kKernels{{{"slice", "strided_copy", plain_formats, prepare_slice},
                                      {"slice_backward", "embed", one_format, prepare_slice_backward},
                                      {"pad", "embed", one_format, prepare_pad},
                                      {"concat", "part_copies", one_format, prepare_concat},
                                      {"permute", "strided_copy", plain_formats, prepare_permute},
                                      {"reshape", "copy", supports_reshape, prepare_reshape},
                                      {"reorder", "strided_copy", plain_formats, prepare_reorder},
                                      {"broadcast_to", "strided_copy", plain_formats, prepare_broadcast}}};

}  // namespace

std::span<const Kernel> cpu_shape() { return kKernels; }

}  // namespace galley
