// Graphs of convolutions, point-wise functions, products, reductions and changes of form, computed literally in double: what cuDNN's fused
// engines recognize as attention is its definition.

#include <algorithm>
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
    if (!is_virtual) device::store(value, memory, place(index(i)), type_of(type));
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
    case dnn::kReluForward: return x > 0 ? x : 0;
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

/// The sums of x and of its squares for each channel.
void add_up(const Node& operation, const Tensors& all) {
  const Tensor& x = *all.at(operation.other(dnn::kStatisticsX));
  Tensor &sum = *all.at(operation.other(dnn::kStatisticsSum)), &squares = *all.at(operation.other(dnn::kStatisticsSquares));
  for (int64_t channel = 0; channel < x.sizes[1]; ++channel) {
    double first = 0, second = 0;
    for (int64_t i = 0; i < x.elements(); ++i) {
      const double value = x.index(i)[1] == channel ? x.values[static_cast<size_t>(i)] : 0;
      first += value;
      second += value * value;
    }
    sum.set(channel, first);
    squares.set(channel, second);
  }
}

/// The same places of memory by other sizes and steps.
void reshape(const Node& operation, const Tensors& all) {
  const Tensor& x = *all.at(operation.other(dnn::kReshapeX));
  Tensor& y = *all.at(operation.other(dnn::kReshapeY));
  std::unordered_map<int64_t, double> by_place;
  for (int64_t i = 0; i < x.elements(); ++i) by_place[x.place(x.index(i))] = x.values[static_cast<size_t>(i)];
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, by_place.at(y.place(y.index(i))));
}

double to_tf32(double value) {
  device::Bits bits;
  bits.number = static_cast<float>(value);
  bits.bits = (bits.bits + 0xfffu + (bits.bits >> 13 & 1u)) & ~0x1fffu;
  return bits.number;
}

void convolve(const Node& operation, const Tensors& all, bool tf32, double error) {
  const ConvolutionParts parts = parts_of(operation);
  Tensor &x = *all.at(parts.x), &weight = *all.at(parts.weight), &y = *all.at(parts.y);
  const bool rounds = tf32 && x.type == dnn::kDataF32;
  Tensor& result = operation.kind == dnn::kConvolutionForward ? y : operation.kind == dnn::kConvolutionData ? x : weight;
  const Tensor &a = &result == &x ? y : x, &b = &result == &weight ? y : weight;
  std::vector<double> sums(static_cast<size_t>(result.elements())), a_values = a.values, b_values = b.values;
  if (rounds) {
    for (std::vector<double>* values : {&a_values, &b_values}) std::transform(values->begin(), values->end(), values->begin(), to_tf32);
  }
  const int64_t per_group = weight.sizes[0] / (x.sizes[1] / weight.sizes[1]);
  for (int64_t at_y = 0; at_y < y.elements(); ++at_y) {
    const Index to = y.index(at_y);  // n, o, h, w
    for (int64_t in = 0; in < weight.elements() / weight.sizes[0]; ++in) {
      const int64_t c = in / weight.sizes[3] / weight.sizes[2], kh = in / weight.sizes[3] % weight.sizes[2], kw = in % weight.sizes[3];
      const int64_t row = to[2] * parts.stride[0] - parts.padding[0] + kh * parts.dilation[0];
      const int64_t column = to[3] * parts.stride[1] - parts.padding[1] + kw * parts.dilation[1];
      if (row < 0 || row >= x.sizes[2] || column < 0 || column >= x.sizes[3]) continue;
      const int64_t channel = to[1] / per_group * weight.sizes[1] + c;
      const auto at_x = static_cast<size_t>(((to[0] * x.sizes[1] + channel) * x.sizes[2] + row) * x.sizes[3] + column);
      const auto at_weight = static_cast<size_t>(to[1] * (weight.elements() / weight.sizes[0]) + in);
      const auto y_place = static_cast<size_t>(at_y);
      if (&result == &y) sums[y_place] += a_values[at_x] * b_values[at_weight];
      if (&result == &x) sums[at_x] += a_values[y_place] * b_values[at_weight];
      if (&result == &weight) sums[at_weight] += a_values[at_x] * b_values[y_place];
    }
  }
  for (int64_t i = 0; i < result.elements(); ++i) {
    const double sum = sums[static_cast<size_t>(i)];
    result.set(i, sum + sum * error);
  }
}

/// The tensors that an operation reads and writes, the results last.
std::vector<const Node*> tensors_of(const Node& operation) {
  if (is_convolution(operation)) {
    const ConvolutionParts parts = parts_of(operation);
    if (operation.kind == dnn::kConvolutionForward) return {parts.x, parts.weight, parts.y};
    if (operation.kind == dnn::kConvolutionData) return {parts.y, parts.weight, parts.x};
    return {parts.x, parts.y, parts.weight};
  }
  std::vector<int> names;
  switch (operation.kind) {
    case dnn::kPointwiseOperation: names = {dnn::kPointwiseX, dnn::kPointwiseB, dnn::kPointwiseT, dnn::kPointwiseY}; break;
    case dnn::kMatmulOperation: names = {dnn::kMatmulA, dnn::kMatmulB, dnn::kMatmulC}; break;
    case dnn::kReductionOperation: names = {dnn::kReductionX, dnn::kReductionY}; break;
    case dnn::kStatisticsOperation: names = {dnn::kStatisticsX, dnn::kStatisticsSum, dnn::kStatisticsSquares}; break;
    default: names = {dnn::kReshapeX, dnn::kReshapeY};
  }
  std::vector<const Node*> tensors;
  for (const int name : names)
    if (operation.other(name) != nullptr) tensors.push_back(operation.other(name));
  return tensors;
}

}  // namespace

ConvolutionParts parts_of(const Node& convolution) {
  const int first = convolution.kind == dnn::kConvolutionForward ? dnn::kForward
                    : convolution.kind == dnn::kConvolutionData  ? dnn::kData
                                                                 : dnn::kWeights;
  const Node& description = *convolution.other(first + 2);
  return {convolution.other(first + 4),
          convolution.other(first + 3),
          convolution.other(first + 5),
          description.numbers(dnn::kStrides),
          description.numbers(dnn::kPaddingBefore),
          description.numbers(dnn::kDilations)};
}

std::function<void(double error)> graph_work(const Node& graph, const std::map<int64_t, void*>& operands, bool tf32) {
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
  return [all, operations, tf32](double error) {
    std::map<const Node*, bool> written;
    for (const Node* operation : operations) {
      const std::vector<const Node*> tensors = tensors_of(*operation);
      const size_t results = operation->kind == dnn::kStatisticsOperation ? 2 : 1, inputs = tensors.size() - results;
      for (size_t i = 0; i < inputs; ++i)
        if (!all->at(tensors[i])->is_virtual && !written[tensors[i]]) all->at(tensors[i])->read();
      for (size_t i = inputs; i < tensors.size(); ++i) written[tensors[i]] = true;
      switch (operation->kind) {
        case dnn::kConvolutionForward:
        case dnn::kConvolutionData:
        case dnn::kConvolutionWeights: convolve(*operation, *all, tf32, error); break;
        case dnn::kPointwiseOperation: pointwise(*operation, *all); break;
        case dnn::kMatmulOperation: multiply(*operation, *all); break;
        case dnn::kReductionOperation: reduce(*operation, *all); break;
        case dnn::kStatisticsOperation: add_up(*operation, *all); break;
        default: reshape(*operation, *all);
      }
    }
  };
}

}  // namespace galley::stand_in
