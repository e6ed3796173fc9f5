// Graphs of point-wise functions, products, reductions and changes of form, computed literally in double: what cuDNN's fused engines
// recognize as attention is its definition.

#include <cmath>
#include <memory>
#include <unordered_map>

#include "tests/backends/cuda/stand_in/dnn_node.h"

namespace galley::stand_in {
namespace {

using Index = std::vector<int64_t>;

struct Tensor {
  Index sizes, steps;
  int type = 0;
  bool is_virtual = false;
  void* memory = nullptr;      // of an operand
  std::vector<double> values;  // in logical order

  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return count;
  }
  Index index(int64_t i) const {
    Index at(sizes.size());
    for (size_t d = sizes.size(); d-- > 0; i /= sizes[d]) at[d] = i % sizes[d];
    return at;
  }
  int64_t place(const Index& at) const {
    int64_t place = 0;
    for (size_t d = 0; d < at.size(); ++d) place += at[d] * steps[d];
    return place;
  }
  /// The value for an index of an array with other sizes, each a multiple of these.
  double at(const Index& index, const Index& of) const {
    int64_t logical = 0;
    for (size_t d = 0; d < sizes.size(); ++d) logical = logical * sizes[d] + index[d] / (of[d] / sizes[d]);
    return values[static_cast<size_t>(logical)];
  }
  void read() {
    values.resize(static_cast<size_t>(elements()));
    for (int64_t i = 0; i < elements(); ++i) values[static_cast<size_t>(i)] = device::load<double>(memory, place(index(i)), type_of(type));
  }
  double rounded(double value) const {
    if (type == dnn::kDataF16) return device::from_f16(device::to_f16(static_cast<float>(value)));
    if (type == dnn::kDataBF16) return device::from_bf16(device::to_bf16(static_cast<float>(value)));
    return value;
  }
  void set(int64_t i, double value) {
    values[static_cast<size_t>(i)] = rounded(value);
    if (!is_virtual) device::store(static_cast<float>(value), memory, place(index(i)), type_of(type));
  }
};

using Tensors = std::map<const Node*, std::shared_ptr<Tensor>>;

double function_of(int mode, double x, double b, double t) {
  switch (mode) {
    case dnn::kAdd: return x + b;
    case dnn::kMultiply: return x * b;
    case dnn::kSubtract: return x - b;
    case dnn::kDivide: return x / b;
    case dnn::kExp: return std::exp(x);
    case dnn::kLog: return std::log(x);
    case dnn::kGreaterEqual: return x >= b ? 1 : 0;
    case dnn::kLess: return x < b ? 1 : 0;
    case dnn::kAnd: return x != 0 && b != 0 ? 1 : 0;
    case dnn::kSelect: return t != 0 ? x : b;
    default: return x;
  }
}

void pointwise(const Node& operation, const Tensors& all) {
  const Node& function = *operation.other(dnn::kPointwiseFunction);
  const auto tensor = [&](int name) { return operation.other(name) == nullptr ? nullptr : all.at(operation.other(name)).get(); };
  Tensor *y = tensor(dnn::kPointwiseY), *x = tensor(dnn::kPointwiseX), *b = tensor(dnn::kPointwiseB), *t = tensor(dnn::kPointwiseT);
  const int mode = function.one<int>(dnn::kPointwiseMode);
  for (int64_t i = 0; i < y->elements(); ++i) {
    const Index at = y->index(i);
    const auto value = [&](const Tensor* from) { return from == nullptr ? 0.0 : from->at(at, y->sizes); };
    y->set(i, mode == dnn::kIndex ? static_cast<double>(at[function.one<size_t>(dnn::kPointwiseAxis)])
                                  : function_of(mode, value(x), value(b), value(t)));
  }
}

void multiply(const Node& operation, const Tensors& all) {
  const Tensor &a = *all.at(operation.other(dnn::kMatmulA)), &b = *all.at(operation.other(dnn::kMatmulB));
  Tensor& y = *all.at(operation.other(dnn::kMatmulC));
  for (int64_t i = 0; i < y.elements(); ++i) {
    const Index at = y.index(i);
    double sum = 0;
    for (int64_t k = 0; k < a.sizes[3]; ++k) {
      // Of operands with fewer heads, several heads of y read one.
      sum += a.at({at[0], at[1], at[2], k}, {y.sizes[0], y.sizes[1], y.sizes[2], a.sizes[3]}) *
             b.at({at[0], at[1], k, at[3]}, {y.sizes[0], y.sizes[1], b.sizes[2], y.sizes[3]});
    }
    y.set(i, sum);
  }
}

void reduce(const Node& operation, const Tensors& all) {
  const Tensor& x = *all.at(operation.other(dnn::kReductionX));
  Tensor& y = *all.at(operation.other(dnn::kReductionY));
  const bool largest = operation.other(dnn::kReductionFunction)->one<int>(dnn::kReductionMode) == dnn::kReduceMaximum;
  std::vector<double> results(static_cast<size_t>(y.elements()), largest ? -HUGE_VAL : 0.0);
  for (int64_t i = 0; i < x.elements(); ++i) {
    const Index at = x.index(i);
    int64_t place = 0;
    for (size_t d = 0; d < at.size(); ++d) place = place * y.sizes[d] + at[d] / (x.sizes[d] / y.sizes[d]);
    double& result = results[static_cast<size_t>(place)];
    const double value = x.values[static_cast<size_t>(i)];
    result = largest ? std::max(result, value) : result + value;
  }
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, results[static_cast<size_t>(i)]);
}

/// The same places of memory by other sizes and steps.
void reshape(const Node& operation, const Tensors& all) {
  const Tensor& x = *all.at(operation.other(dnn::kReshapeX));
  Tensor& y = *all.at(operation.other(dnn::kReshapeY));
  std::unordered_map<int64_t, double> by_place;
  for (int64_t i = 0; i < x.elements(); ++i) by_place[x.place(x.index(i))] = x.values[static_cast<size_t>(i)];
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, by_place.at(y.place(y.index(i))));
}

/// The tensors that an operation reads and writes, the result last.
std::vector<const Node*> tensors_of(const Node& operation) {
  std::vector<int> names;
  switch (operation.kind) {
    case dnn::kPointwiseOperation: names = {dnn::kPointwiseX, dnn::kPointwiseB, dnn::kPointwiseT, dnn::kPointwiseY}; break;
    case dnn::kMatmulOperation: names = {dnn::kMatmulA, dnn::kMatmulB, dnn::kMatmulC}; break;
    case dnn::kReductionOperation: names = {dnn::kReductionX, dnn::kReductionY}; break;
    default: names = {dnn::kReshapeX, dnn::kReshapeY};
  }
  std::vector<const Node*> tensors;
  for (const int name : names)
    if (operation.other(name) != nullptr) tensors.push_back(operation.other(name));
  return tensors;
}

}  // namespace

std::function<void()> graph_work(const Node& graph, const std::map<int64_t, void*>& operands) {
  auto all = std::make_shared<Tensors>();
  std::vector<const Node*> operations;
  for (const int64_t address : graph.numbers(dnn::kGraphOperations)) operations.push_back(reinterpret_cast<const Node*>(address));
  for (const Node* operation : operations) {
    for (const Node* node : tensors_of(*operation)) {
      if (all->count(node) != 0) continue;
      auto tensor = std::make_shared<Tensor>();
      tensor->sizes = node->numbers(dnn::kTensorSizes);
      tensor->steps = node->numbers(dnn::kTensorStrides);
      tensor->type = node->one<int>(dnn::kTensorType);
      tensor->is_virtual = node->one<bool>(dnn::kTensorVirtual);
      tensor->values.resize(static_cast<size_t>(tensor->elements()));
      if (!tensor->is_virtual) {
        const auto found = operands.find(node->numbers(dnn::kTensorId).front());
        if (found == operands.end() || found->second == nullptr) return nullptr;
        tensor->memory = found->second;
        if (node->one<bool>(dnn::kTensorByValue)) {
          tensor->is_virtual = true;
          tensor->values = {*static_cast<const float*>(found->second)};
        }
      }
      (*all)[node] = tensor;
    }
  }
  return [all, operations] {
    std::map<const Node*, bool> written;
    for (const Node* operation : operations) {
      const std::vector<const Node*> tensors = tensors_of(*operation);
      for (const Node* node : tensors)
        if (node != tensors.back() && !all->at(node)->is_virtual && !written[node]) all->at(node)->read();
      written[tensors.back()] = true;
      switch (operation->kind) {
        case dnn::kPointwiseOperation: pointwise(*operation, *all); break;
        case dnn::kMatmulOperation: multiply(*operation, *all); break;
        case dnn::kReductionOperation: reduce(*operation, *all); break;
        default: reshape(*operation, *all);
      }
    }
  };
}

}  // namespace galley::stand_in
