// Constants of a file as values of the graph: parameters, buffers, and those that depend on sizes of inputs.

#include <algorithm>
#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

/// A list of whole numbers at equal distances, counted in the graph; an empty value for other constants.
Value counting(Graph& graph, const Tensor& known) {
  if (known.shape().rank() != 1 || known.elements() < 2 || (known.dtype() != DType::kI64 && known.dtype() != DType::kI32)) return {};
  const std::vector<int64_t> values = to_ints(known);
  const int64_t first = values[0], step = values[1] - values[0];
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != first + static_cast<int64_t>(i) * step) return {};
  }
  const auto number = [&](int64_t x) { return full(graph, {.dtype = known.dtype(), .shape = {}}, static_cast<double>(x)); };
  Value made = iota(graph, known.dtype(), known.shape(), 0);
  if (step != 1) made = mul(made, number(step));
  return first != 0 ? add(made, number(first)) : made;
}

}  // namespace

Value Importer::value(Item& item) {
  if (item.value) return item.value;
  const Tensor& known = item.constant;
  GALLEY_ASSERT(known.defined());
  if (item.transposed) return item.value = permute(value(items_.at(item.name)), {1, 0});
  const DType dtype = known.dtype();
  GALLEY_CHECK_INPUT(dtype != DType::kF64 && dtype != DType::kF16 && dtype != DType::kBF16, "a constant is ", known.str(),
                     ", but Galley computes in f32; export the model in float32");
  if (item.is_weight) return parameter(item, "weight", "onnx");
  const std::vector<double> values = known.elements() <= (1 << 16) ? known.to_doubles() : std::vector<double>{};
  const bool uniform = !values.empty() && std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
  if (uniform) return item.value = full(b_.graph(), {.dtype = dtype, .shape = known.shape()}, values.front());
  if (!item.sized.empty()) return item.value = computed(item);
  // A constant table becomes a buffer: saved with the model, not trained.
  std::string name = item.name.empty() || item.name.find("::") != std::string::npos ? std::string("constant") : item.name;
  std::string module = item.name == name ? std::string() : path_;
  if (const size_t dot = name.rfind('.'); item.name == name && dot != std::string::npos && dot > 0 && dot + 1 < name.size()) {
    module = name.substr(0, dot);
    name = name.substr(dot + 1);
  }
  const std::string wish = name;
  for (int turn = 2; declared(module.empty() ? name : cat(module, ".", name)); ++turn) name = cat(wish, "_", turn);
  return item.value =
             in_module(module, [&] { return b_.buffer(name, {.dtype = dtype, .shape = known.shape()}, Init::given(known), "onnx"); });
}

/// Whether the outputs of a node that was made depend on sizes of inputs: it reads sizes of a value, or constants that do.
void Importer::mark_sized(const OnnxNode& node) {
  const bool reads_sizes = node.op_type == "Shape" || node.op_type == "Size";
  const bool sized = std::any_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& input) {
    const auto found = items_.find(input);
    return found != items_.end() && (!found->second.sized.empty() || (reads_sizes && found->second.value));
  });
  if (!sized) return;
  for (const std::string& output : node.outputs) {
    const auto found = items_.find(output);
    if (found != items_.end() && found->second.constant.defined() && !found->second.is_weight) found->second.sized = output;
  }
}

/// A constant that depends on sizes of inputs, computed in the graph. Lists are counted or put together, since sizes have no node there.
Value Importer::computed(const Item& item) {
  constexpr int64_t kFewNumbers = 8;
  const std::string name = item.sized;
  const Tensor known = item.constant;
  if (const Value made = items_.at(name).value) return made;
  Graph& graph = b_.graph();
  if (const Value made = counting(graph, known)) return items_.at(name).value = made;
  if (known.shape().rank() == 1 && known.elements() <= kFewNumbers) {
    std::vector<Value> numbers;
    for (const double number : known.to_doubles()) numbers.push_back(full(graph, {.dtype = known.dtype(), .shape = {1}}, number));
    ConcatAttrs attrs;
    attrs.axis = 0;
    return items_.at(name).value = concat(numbers, attrs);
  }
  const OnnxNode& node = *producer(name);
  const std::string path = module_path(node), reader = path_;
  std::map<std::string, Item> outputs;  // whose constants stay
  for (const std::string& output : node.outputs) {
    if (const auto found = items_.find(output); found != items_.end()) outputs.insert(*found);
  }
  const Value made = in_module(path, [&] {
    path_ = path;
    const MakeNode row = find_row(node.op_type);
    GALLEY_ASSERT(row != nullptr);
    Call call(*this, node);
    row(call);
    Item result = items_.at(name);
    result.sized.clear();
    return value(result);
  });
  path_ = reader;
  for (auto& [output, before] : outputs) {
    if (!before.value) before.value = output == name ? made : items_.at(output).value;
    items_[output] = before;
  }
  return made;
}

Value Importer::table(const Tensor& values) {
  Item item{.constant = values};
  return value(item);
}

}  // namespace galley::onnx_import
