#include "libcore/kernels/ref/ref.h"

#include <cstring>

#include "libcore/kernels/ref/table.h"
#include "libcore/kernels/table.h"

namespace galley {
namespace {

RefArray zeros(const Shape& shape) {
  RefArray array;
  array.shape = shape;
  array.v.assign(static_cast<size_t>(shape.elements()), 0.0);
  return array;
}

Tensor view(const TensorType& type, const void* data) {
  const std::shared_ptr<const void> nobody(data, [](const void*) {});
  return Tensor(type.dtype, type.shape, type.format, Storage::borrow(data, type.bytes(), nobody));
}

/// A reference as a kernel of the table: arguments become doubles, results are rounded to their dtype.
class PreparedReference : public PreparedKernel {
 public:
  PreparedReference(const KernelQuery& query, RefFunction function) : function_(function), attributes_(query.node.attributes) {
    for (const TensorType* type : query.context.inputs) {
      if (type != nullptr) inputs_.push_back(*type);
      present_.push_back(type != nullptr);
    }
    for (const TensorType* type : query.context.outputs) outputs_.push_back(*type);
  }
  void run(const KernelArgs& args) const override {
    std::vector<RefArray> in;
    in.reserve(inputs_.size());
    std::vector<const RefArray*> pointers;
    OpContext context;
    context.attributes = attributes_.get();
    for (size_t i = 0; i < present_.size(); ++i) {
      if (present_[i]) {
        const TensorType& type = inputs_[in.size()];
        context.inputs.push_back(&type);
        in.push_back(to_ref(view(type, args.inputs[i])));
        pointers.push_back(&in.back());
      } else {
        context.inputs.push_back(nullptr);
        pointers.push_back(nullptr);
      }
    }
    std::vector<RefArray> out;
    for (const TensorType& type : outputs_) {
      context.outputs.push_back(&type);
      out.push_back(zeros(type.shape));
    }
    RefCall call(attributes_.get(), std::move(context), std::move(pointers), out);
    function_(call);
    for (size_t o = 0; o < out.size(); ++o) {
      // Blocked formats have padding, which is zero and stays zero.
      if (outputs_[o].format.is_blocked()) std::memset(args.outputs[o], 0, static_cast<size_t>(outputs_[o].bytes()));
      Tensor result = view(outputs_[o], args.outputs[o]);
      result.from_doubles(out[o].v);
    }
  }
  std::string implementation() const override { return "ref"; }

 private:
  RefFunction function_;
  std::shared_ptr<const Fields> attributes_;
  std::vector<TensorType> inputs_, outputs_;  // of the inputs that are given
  std::vector<bool> present_;
};

std::span<const RefEntry> (*const kFamilies[])() = {ref_conv,   ref_matmul,    ref_norm,  ref_pool,   ref_softmax, ref_loss, ref_random,
                                                    ref_embedding, ref_unary, ref_binary, ref_reduce, ref_shape,   ref_update};

}  // namespace

RefFunction find_reference(std::string_view op) {
  static const std::map<std::string_view, RefFunction> all = [] {
    std::map<std::string_view, RefFunction> entries;
    for (const auto family : kFamilies) {
      for (const RefEntry& entry : family()) entries.emplace(entry.op, entry.run);
    }
    return entries;
  }();
  const auto found = all.find(op);
  return found == all.end() ? nullptr : found->second;
}

std::span<const Kernel> ref_kernels() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (const auto family : kFamilies) {
      for (const RefEntry& entry : family()) {
        list.push_back({.op = entry.op,
                        .name = "ref",
                        .supports = [](const KernelQuery&) { return Support::yes(); },
                        .prepare = [](const KernelQuery& query) -> std::unique_ptr<PreparedKernel> {
                          return std::make_unique<PreparedReference>(query, find_reference(query.node.op->name));
                        }});
      }
    }
    return list;
  }();
  return kernels;
}

RefArray to_ref(const Tensor& tensor) { return {tensor.shape(), tensor.to_doubles()}; }

std::map<ValueId, RefArray> interpret(const Graph& graph, const std::map<std::string, RefArray>& feeds, bool round) {
  std::map<ValueId, RefArray> values;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const auto feed = feeds.find(info.name);
    GALLEY_ASSERT(feed != feeds.end(), "input ", info.name, " is not fed");
    GALLEY_ASSERT(feed->second.shape == info.type.shape, "input ", info.name, " has shape ", feed->second.shape, ", the graph wants ", info.type.shape);
    values[id] = feed->second;
  }
  for (const Node& node : graph.nodes()) {
    const RefFunction function = find_reference(node.op->name);
    GALLEY_ASSERT(function != nullptr, "there is no reference of ", node.op->name);
    std::vector<const RefArray*> in;
    for (ValueId id : node.inputs) in.push_back(id == kNoValue ? nullptr : &values.at(id));
    std::vector<RefArray> out;
    for (ValueId id : node.outputs) out.push_back(zeros(graph.type(id).shape));
    RefCall call(node.attributes.get(), context_of(graph, node), std::move(in), out);
    function(call);
    for (size_t o = 0; o < out.size(); ++o) {
      if (round) {
        const DType dtype = graph.type(node.outputs[o]).dtype;
        for (double& value : out[o].v) {
          double cell = 0;
          store_element(dtype, &cell, value);
          value = load_element(dtype, &cell);
        }
      }
      values[node.outputs[o]] = std::move(out[o]);
    }
  }
  return values;
}

}  // namespace galley
