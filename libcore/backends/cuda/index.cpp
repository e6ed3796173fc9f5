// Operators that read and write elements by indices, look-ups and random bits, by the kernels of kernels/copy.h and kernels/random.h.

#include "libcore/ops/index.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/axis_view.h"
#include "libcore/backends/cuda/fixed_sums.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/random.h"
#include "libcore/ops/random_mask.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

Support supports_scatter_add(const KernelQuery& query) {
  if (!is_floating(query.in(0).dtype) || query.in(0).dtype == DType::kF64) return Support::no(cat("dtype ", query.in(0).dtype));
  return only_contiguous(query);
}

/// A kernel with one call, whose addresses `bind` sets.
template <class Call>
class OneCall : public PreparedKernel {
 public:
  using Bind = void (*)(Call&, const KernelArgs&);
  OneCall(const char* kernel, int64_t elements, const Call& call, Bind bind)
      : kernel_(kernel), elements_(elements), call_(call), bind_(bind) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    Call call = call_;
    bind_(call, args);
    launch_elements(stream, kernel_, elements_, call);
  }

 private:
  const char* kernel_;
  int64_t elements_;
  Call call_;
  Bind bind_;
};
template <class Call>
std::unique_ptr<PreparedKernel> one_call(const char* kernel, int64_t elements, const Call& call, typename OneCall<Call>::Bind bind) {
  return std::make_unique<OneCall<Call>>(kernel, elements, call, bind);
}

void bind_gather(device::GatherCall& call, const KernelArgs& args) {
  call.from = args.inputs[0];
  call.index = args.inputs[1];
  call.to = args.outputs[0];
}
device::GatherCall gather_call(const KernelQuery& query, int64_t axis_attribute, const Shape& whole_shape) {
  const int axis = axis_of(axis_attribute, query.in(0));
  const AxisView picked(query.in(1).shape, axis), whole(whole_shape, axis);
  return {.type = type_of(query.in(0)),
          .index_type = type_of(query.in(1)),
          .outer = picked.outer,
          .picked = picked.size,
          .whole = whole.size,
          .inner = picked.inner};
}
std::unique_ptr<PreparedKernel> prepare_gather(const KernelQuery& query) {
  const device::GatherCall call = gather_call(query, query.attrs<GatherAttrs>().axis, query.in(0).shape);
  return one_call("gather_elements", query.out(0).shape.elements(), call, bind_gather);
}

/// Of few elements, each result walks them; of more, they are added as integers.
class ScatterAdd : public PreparedKernel {
 public:
  explicit ScatterAdd(const KernelQuery& query)
      : call_(gather_call(query, query.attrs<ScatterAddAttrs>().axis, query.out(0).shape)),
        numbers_(query.in(0).shape.elements()),
        sums_(query.out(0).shape.elements()),
        results_(query.out(0).shape.elements()) {}
  int64_t scratch_bytes() const override { return call_.picked <= kFew ? 0 : sums_.bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GatherCall call = call_;
    bind_gather(call, args);
    if (call.picked <= kFew) return launch_elements(stream, "scatter_add_elements", results_, call);
    const device::FixedSumCall fixed = sums_.call_of(args.scratch, nullptr, numbers_, 0);
    stream.fill(fixed.sums, 0, 8 * results_);
    cuda_launch(stream, "scatter_largest_parts", fixed.part_count, call, fixed);
    cuda_launch(stream, "largest_of_parts", 1, fixed);
    cuda_launch(stream, "scatter_add_fixed", cuda_blocks(stream, numbers_), call, fixed);
    cuda_launch(stream, "scatter_sums", cuda_blocks(stream, results_), call, fixed);
  }

 private:
  static constexpr int64_t kFew = 32;
  device::GatherCall call_;
  int64_t numbers_;
  FixedSums sums_;
  int64_t results_;
};

std::unique_ptr<PreparedKernel> prepare_one_hot(const KernelQuery& query) {
  const AxisView y(query.out(0).shape, axis_of(query.attrs<OneHotAttrs>().axis, query.out(0)));
  const device::OneHotCall call{
      .index_type = type_of(query.in(0)), .type = type_of(query.out(0)), .outer = y.outer, .size = y.size, .inner = y.inner};
  return one_call<device::OneHotCall>("one_hot_elements", query.out(0).shape.elements(), call,
                                      [](device::OneHotCall& c, const KernelArgs& args) {
                                        c.index = args.inputs[0];
                                        c.to = args.outputs[0];
                                      });
}

std::unique_ptr<PreparedKernel> prepare_iota(const KernelQuery& query) {
  const AxisView y(query.out(0).shape, axis_of(query.attrs<IotaAttrs>().axis, query.out(0)));
  const device::IotaCall call{.type = type_of(query.out(0)), .outer = y.outer, .size = y.size, .inner = y.inner};
  return one_call<device::IotaCall>("iota_elements", query.out(0).shape.elements(), call,
                                    [](device::IotaCall& c, const KernelArgs& args) { c.to = args.outputs[0]; });
}

Support supports_lookup(const KernelQuery& query) {
  return query.in(0).format == query.out(0).format ? Support::yes() : Support::no("operands of different formats");
}
std::unique_ptr<PreparedKernel> prepare_lookup(const KernelQuery& query) {
  device::LookupCall call{.from_type = type_of(query.in(0)), .elements = query.out(0).shape.elements()};
  const std::vector<int64_t>& table = query.attrs<LookupAttrs>().table;
  std::transform(table.begin(), table.end(), call.table, [](int64_t value) { return static_cast<int8_t>(value); });
  return one_call<device::LookupCall>("lookup_elements", call.elements, call, [](device::LookupCall& c, const KernelArgs& args) {
    c.from = args.inputs[0];
    c.to = args.outputs[0];
  });
}

std::unique_ptr<PreparedKernel> prepare_random_bits(const KernelQuery& query) {
  const auto& attrs = query.attrs<RandomBitsAttrs>();
  const Shape& shape = query.out(0).shape;
  const int64_t elements = shape.elements();
  const device::RandomBitsCall call{.stream = attrs.stream,
                                    .elements = elements,
                                    .per_sample = attrs.whole_batch || elements == 0 ? std::max<int64_t>(1, elements) : elements / shape[0],
                                    .whole_batch = attrs.whole_batch};
  return one_call<device::RandomBitsCall>("random_words", elements, call, [](device::RandomBitsCall& c, const KernelArgs& args) {
    c.rng = args.in<int64_t>(0);
    c.to = args.outputs[0];
  });
}

Support supports_dropout(const KernelQuery& query) {
  if (query.in(0).dtype == DType::kF64 || query.out(0).dtype != query.in(0).dtype) return Support::no(cat("dtype ", query.in(0).dtype));
  return only_contiguous(query);
}
std::unique_ptr<PreparedKernel> prepare_dropout(const KernelQuery& query) {
  const auto& attrs = query.attrs<DropoutAttrs>();
  const Shape& shape = query.out(0).shape;
  const int64_t elements = shape.elements(), per_sample = elements == 0 ? 1 : elements / shape[0];
  const device::DropoutCall call{.type = type_of(query.out(0)),
                                 .least = static_cast<uint32_t>(std::ceil(attrs.p * 0x1p24)),  // mask_keeps in integers
                                 .scale = static_cast<float>(mask_scale(attrs.p)),
                                 .stream = attrs.stream,
                                 .elements = elements,
                                 .per_sample = per_sample};
  return one_call<device::DropoutCall>("dropout_elements", per_sample % 8 == 0 ? packs_of(elements) : elements, call,
                                       [](device::DropoutCall& c, const KernelArgs& args) {
                                         c.from = args.inputs[0];
                                         c.rng = args.in<int64_t>(1);
                                         c.to = args.outputs[0];
                                       });
}

constexpr Kernel kKernels[] = {
    {"dropout", "philox", supports_dropout, prepare_dropout},
    {"gather", "gather", only_contiguous, prepare_gather},
    {"scatter_add", "scatter_add", supports_scatter_add, prepare_cuda<ScatterAdd>},
    {"one_hot", "one_hot", only_contiguous, prepare_one_hot},
    {"iota", "iota", only_contiguous, prepare_iota},
    {"lookup", "lookup", supports_lookup, prepare_lookup},
    {"random_bits", "philox", only_contiguous, prepare_random_bits},
};

}  // namespace

std::span<const Kernel> cuda_index() { return kKernels; }

}  // namespace galley
