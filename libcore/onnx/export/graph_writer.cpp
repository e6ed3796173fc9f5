#include "libcore/onnx/export/graph_writer.h"

#include <algorithm>
#include <cstring>

#include "libcore/base/error.h"

namespace galley::onnx_export {

OnnxAttribute attribute(std::string name, int64_t value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kInt};
  made.i = value;
  return made;
}
OnnxAttribute attribute(std::string name, double value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kFloat};
  made.f = value;
  return made;
}
OnnxAttribute attribute(std::string name, std::string_view value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kString};
  made.s = value;
  return made;
}
OnnxAttribute attribute(std::string name, std::vector<int64_t> values) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kInts};
  made.ints = std::move(values);
  return made;
}
OnnxAttribute attribute(std::string name, Tensor value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kTensor};
  made.tensor.emplace();
  made.tensor->shape = value.shape();
  made.tensor->values = std::move(value);
  return made;
}

GraphWriter::GraphWriter(const OnnxExport& request, OnnxDocument& document) : request_(request), document_(document) {
  for (const ValueId id : graph().inputs()) {
    const ValueInfo& info = graph().value(id);
    used_names_.insert(info.name);
    if (info.role != ValueRole::kInput || info.type.shape.rank() == 0) continue;
    samples_ = info.type.shape[0];
    if (request.other != nullptr) other_samples_ = request.other->value(id).type.shape[0];
  }
  for (const auto& [name, id] : graph().outputs()) used_names_.insert(name);
  GALLEY_ASSERT(request.other == nullptr || (samples_ > 1 && other_samples_ > samples_),
                "the two captures must have different batches of more than one sample");
}

void GraphWriter::refuse(std::string_view reason) const {
  throw Error(ErrorCode::kRecipe, cat("the operator ", node_->op->name, node_->path.empty() ? "" : cat(" at ", node_->path),
                                      " cannot be exported to ONNX (opset 17): ", reason));
}

std::string GraphWriter::unique_name(const std::string& wish) {
  if (used_names_.insert(wish).second) return wish;
  while (true) {
    std::string name = cat(wish, "_", ++suffixes_[wish]);
    if (used_names_.insert(name).second) return name;
  }
}

Names GraphWriter::add_many(std::string_view op, Names inputs, Attributes attributes, size_t outputs) {
  OnnxNode node;
  node.op_type = op;
  node.name = unique_name(node_ == nullptr || node_->path.empty() ? std::string(op) : cat(node_->path, "/", op));
  node.inputs = std::move(inputs);
  while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
  node.attributes = std::move(attributes);
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(unique_name(cat(node.name, "_output", i == 0 ? "" : std::to_string(i))));
  document_.nodes.push_back(node);
  return node.outputs;
}
std::string GraphWriter::add(std::string_view op, Names inputs, Attributes attributes) {
  return add_many(op, std::move(inputs), std::move(attributes), 1).front();
}

const std::string& GraphWriter::name(ValueId id) const {
  const auto found = names_.find(id);
  GALLEY_ASSERT(found != names_.end(), "a value is read before it is exported");
  return found->second;
}

std::string GraphWriter::constant(const Tensor& tensor) {
  std::string key = tensor.str();
  key.append(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.bytes()));
  std::string& name = constants_[key];
  if (name.empty()) {
    // Constants become nodes because initializers hold only the model's parameters.
    name = unique_name(cat("constant_", constants_.size()));
    OnnxNode node{.name = name, .op_type = "Constant"};
    node.outputs = {name};
    node.attributes.push_back(attribute("value", tensor));
    document_.nodes.push_back(std::move(node));
  }
  return name;
}
std::string GraphWriter::ints(const std::vector<int64_t>& values) {
  Tensor tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data_as<int64_t>());
  return constant(tensor);
}
std::string GraphWriter::scalar(double value, DType dtype) {
  Tensor tensor(dtype, {});
  tensor.from_doubles({value});
  return constant(tensor);
}
std::string GraphWriter::uniform(int64_t count, double value) {
  Tensor tensor(DType::kF32, {count});
  tensor.from_doubles(std::vector<double>(static_cast<size_t>(count), value));
  return constant(tensor);
}
std::string GraphWriter::array(const std::string& name, DType dtype, const Shape& shape) {
  return array(name, dtype, shape, [values = request_.values, name] { return values(name); });
}
std::string GraphWriter::array(const std::string& name, DType dtype, const Shape& shape, std::function<Tensor()> values) {
  if (!arrays_.insert(name).second) return name;
  used_names_.insert(name);
  document_.initializers.push_back({name, dtype, shape, std::move(values)});
  return name;
}

std::vector<Dim> GraphWriter::dims(ValueId id) const {
  std::vector<Dim> dims;
  const Shape& shape = graph().type(id).shape;
  const Shape& other = request_.other == nullptr ? shape : request_.other->type(id).shape;
  GALLEY_ASSERT(shape.rank() == other.rank());
  for (int axis = 0; axis < shape.rank(); ++axis) {
    Dim dim{.size = shape[axis]};
    if (shape[axis] != other[axis]) {
      dim.per_sample = (other[axis] - shape[axis]) / (other_samples_ - samples_);
      if (dim.per_sample * samples_ != shape[axis] || dim.per_sample * other_samples_ != other[axis]) {
        refuse(cat("a size is neither fixed nor a multiple of the batch (", shape, " and ", other,
                   "): export it for a fixed batch with --batch N"));
      }
    }
    dims.push_back(dim);
  }
  return dims;
}

/// Name of an i64 [1] tensor with the number of samples, taken from an input of the file.
std::string GraphWriter::batch() {
  if (!batch_.empty()) return batch_;
  const Node* node = std::exchange(node_, nullptr);
  for (const OnnxValue& input : document_.inputs) {
    if (input.shape.empty() || input.shape[0].size) continue;
    batch_ = add("Slice", {add("Shape", {input.name}), ints({0}), ints({1})});
    break;
  }
  node_ = node;
  GALLEY_ASSERT(!batch_.empty());
  return batch_;
}

std::string GraphWriter::shape(const std::vector<Dim>& dims) {
  if (std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.per_sample == 0; })) {
    std::vector<int64_t> sizes;
    for (const Dim& dim : dims) sizes.push_back(dim.size);
    return ints(sizes);
  }
  Names parts;
  std::vector<int64_t> fixed;
  const auto flush = [&] {
    if (!fixed.empty()) parts.push_back(ints(fixed));
    fixed.clear();
  };
  for (const Dim& dim : dims) {
    if (dim.per_sample == 0) {
      fixed.push_back(dim.size);
      continue;
    }
    flush();
    parts.push_back(dim.per_sample == 1 ? batch() : add("Mul", {batch(), ints({dim.per_sample})}));
  }
  flush();
  return parts.size() == 1 ? parts.front() : add("Concat", parts, {attribute("axis", int64_t{0})});
}

std::string GraphWriter::reshape(const std::string& x, const std::vector<Dim>& from, const std::vector<Dim>& to) {
  // In Reshape, 0 copies the input's size at the same axis, and one size may be -1 (inferred).
  std::vector<int64_t> sizes;
  int open = 0;
  for (size_t axis = 0; axis < to.size(); ++axis) {
    const bool copied = to[axis].per_sample != 0 && axis < from.size() && from[axis] == to[axis];
    open += to[axis].per_sample != 0 && !copied;
    sizes.push_back(to[axis].per_sample == 0 ? to[axis].size : copied ? 0 : -1);
  }
  return add("Reshape", {x, open > 1 ? shape(to) : ints(sizes)});
}

void GraphWriter::declare_input(ValueId id) {
  const ValueInfo& info = graph().value(id);
  OnnxValue value{.name = info.name, .data_type = onnx_type(info.type.dtype), .has_shape = true};
  for (const Dim& dim : dims(id)) {
    OnnxDimension declared;
    if (dim.per_sample == 0) {
      declared.size = dim.size;
    } else {
      declared.name = "N";
    }
    value.shape.push_back(std::move(declared));
  }
  document_.inputs.push_back(std::move(value));
  set(id, info.name);
}

void GraphWriter::finish_outputs(const std::vector<std::pair<std::string, std::string>>& outputs) {
  node_ = nullptr;
  std::map<std::string, std::string> renamed;
  for (const auto& [wanted, made] : outputs) {
    const bool of_node = std::any_of(document_.nodes.begin(), document_.nodes.end(), [&, &made = made](const OnnxNode& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), made) != node.outputs.end();
    });
    if (of_node && renamed.emplace(made, wanted).second) continue;
    const std::string copy = add("Identity", {made});
    renamed[copy] = wanted;
  }
  for (OnnxNode& node : document_.nodes) {
    for (Names* names : {&node.inputs, &node.outputs}) {
      for (std::string& name : *names) {
        if (const auto found = renamed.find(name); found != renamed.end()) name = found->second;
      }
    }
  }
  for (const auto& [name, id] : graph().outputs()) {
    OnnxValue value{.name = name, .data_type = onnx_type(graph().type(id).dtype), .has_shape = true};
    for (const Dim& dim : dims(id)) {
      OnnxDimension declared;
      if (dim.per_sample == 0) {
        declared.size = dim.size;
      } else {
        declared.name = dim.per_sample == 1 ? std::string("N") : cat(dim.per_sample, "N");
      }
      value.shape.push_back(std::move(declared));
    }
    document_.outputs.push_back(std::move(value));
  }
}

}  // namespace galley::onnx_export
