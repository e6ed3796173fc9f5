#pragma once
// A back end with kernels only for primitives, so that every composite must be expanded, as for a back end without reference kernels.

#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/registry.h"

namespace galley::test {

/// Whether the node is a primitive, or in a form that its definition keeps: a convolution without bias, residual and activation.
inline bool is_primitive(const KernelQuery& query) {
  const OpDef& op = *query.node.op;
  if (!op.composite()) return true;
  Graph graph;
  std::vector<Value> inputs;
  for (size_t i = 0; i < query.context.inputs.size(); ++i) {
    const TensorType* type = query.context.inputs[i];
    inputs.push_back(type == nullptr ? Value() : graph.add_input(cat("in", i), {type->dtype, type->shape, {}, {}}, ValueRole::kState));
  }
  Expansion expansion(graph, op, query.context, std::move(inputs), default_compute_type(query.context));
  op.definition(expansion);
  return expansion.kept();
}

/// A back end with the last kernels of `whole` (the references) for primitives that are not in `without`, on the same device.
class Primitives : public Backend {
 public:
  explicit Primitives(std::shared_ptr<const Backend> whole, std::set<std::string_view> without = {})
      : Backend(whole->options()), whole_(std::move(whole)) {
    ensure_ops_registered();
    for (const OpDef* op : all_ops()) {
      const std::span<const Kernel* const> all = whole_->kernels(*op);
      if (all.empty() || without.contains(op->name)) continue;
      Kernel kernel = *all.back();
      kernel.supports = [](const KernelQuery& query) { return is_primitive(query) ? Support::yes() : Support::no("a composite"); };
      by_op_[op] = {&kernels_.emplace_back(kernel)};
    }
  }
  std::string_view name() const override { return "primitives"; }
  bool reference() const override { return true; }
  Device& device() const override { return whole_->device(); }
  std::span<const Kernel* const> kernels(const OpDef& op) const override {
    const auto found = by_op_.find(&op);
    return found == by_op_.end() ? std::span<const Kernel* const>() : found->second;
  }

 private:
  std::shared_ptr<const Backend> whole_;
  std::deque<Kernel> kernels_;
  std::map<const OpDef*, std::vector<const Kernel*>> by_op_;
};

/// A back end with the kernels of `whole` except for the operators in `without`, and without rewrites.
class Without : public Backend {
 public:
  Without(std::shared_ptr<const Backend> whole, std::set<std::string_view> without)
      : Backend(whole->options()), whole_(std::move(whole)), without_(std::move(without)) {}
  std::string_view name() const override { return "partial"; }
  Device& device() const override { return whole_->device(); }
  std::span<const Kernel* const> kernels(const OpDef& op) const override {
    return without_.contains(op.name) ? std::span<const Kernel* const>() : whole_->kernels(op);
  }

 private:
  std::shared_ptr<const Backend> whole_;
  std::set<std::string_view> without_;
};

}  // namespace galley::test
