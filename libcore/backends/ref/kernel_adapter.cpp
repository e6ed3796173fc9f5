// Each reference as a kernel called "ref": arguments become arrays of double, the result is rounded to the node's dtypes. Slow, for
// any dtype and format; inputs are read before an output is written, so updates in place and reused memory are safe.

#include <optional>

#include "libcore/backends/ref/memory.h"
#include "libcore/backends/ref/reference.h"
#include "libcore/backends/table.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

class ReferenceKernel : public PreparedKernel {
 public:
  explicit ReferenceKernel(const KernelQuery& query)
      : reference_(*query.node.op, query.node.attributes, query.context), attributes_(query.node.attributes) {
    for (const TensorType* type : query.context.inputs) inputs_.push_back(type ? std::optional(*type) : std::nullopt);
    for (const TensorType* type : query.context.outputs) outputs_.push_back(*type);
  }

  void run(Stream&, const KernelArgs& args) const override {
    OpContext context;
    context.attributes = attributes_.get();
    std::vector<RefArray> arrays;
    arrays.reserve(inputs_.size());
    std::vector<const RefArray*> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      context.inputs.push_back(inputs_[i] ? &*inputs_[i] : nullptr);
      if (inputs_[i]) arrays.push_back(read_array(*inputs_[i], args.inputs[i]));
      inputs.push_back(inputs_[i] ? &arrays.back() : nullptr);
    }
    std::vector<RefArray> outputs;
    for (const TensorType& type : outputs_) {
      context.outputs.push_back(&type);
      outputs.push_back({type.shape, std::vector<double>(static_cast<size_t>(type.elements()))});
    }
    RefCall call(attributes_.get(), std::move(context), std::move(inputs), outputs);
    reference_.run(call);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (args.outputs[i] != nullptr) write_array(outputs_[i], outputs[i], args.outputs[i]);
    }
  }

 private:
  Reference reference_;
  std::shared_ptr<const Options> attributes_;
  std::vector<std::optional<TensorType>> inputs_;
  std::vector<TensorType> outputs_;
};

/// A definition with collectives is not interpreted: its operators become nodes.
Support supports(const KernelQuery& query) {
  const Options* attributes = query.node.attributes.get();
  const auto* forward = dynamic_cast<const BatchNormAttrs*>(attributes);
  const auto* backward = dynamic_cast<const BatchNormBackwardAttrs*>(attributes);
  const bool sums = (forward != nullptr && !forward->sync.empty()) || (backward != nullptr && !backward->sync.empty());
  return sums ? Support::no("statistics of all ranks") : Support::yes();
}
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& query) { return std::make_unique<ReferenceKernel>(query); }

}  // namespace

std::span<const Kernel> ref_kernels() {
  static const std::vector<Kernel> table = [] {
    std::vector<Kernel> kernels;
    for (const OpDef* op : all_ops()) {
      if (!op->composite() && find_reference(op->name) == nullptr) continue;
      kernels.push_back({.op = op->name, .algorithm = "ref", .supports = supports, .prepare = prepare, .reference = true});
    }
    return kernels;
  }();
  return table;
}

}  // namespace galley
