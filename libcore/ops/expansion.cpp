#include "libcore/ops/expansion.h"

#include <algorithm>

#include "libcore/ops/convert.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/update.h"

namespace galley {

Expansion::Expansion(Graph& graph, const OpDef& op, OpContext types, std::vector<Value> inputs, DType compute)
    : graph_(graph),
      op_(op),
      types_(std::move(types)),
      inputs_(std::move(inputs)),
      read_(inputs_.size()),
      compute_(compute),
      result_(types_.outputs.size()) {
  GALLEY_ASSERT(is_floating(compute_), "a definition must compute in a floating-point type, not in ", compute_);
}

Value Expansion::in(size_t i) {
  if (!has(i)) return {};
  if (read_[i]) return read_[i];
  Value value = inputs_[i];
  if (!value.type().names.empty()) {
    ReshapeAttrs unnamed;
    unnamed.shape.assign(value.shape().begin(), value.shape().end());
    unnamed.names.resize(unnamed.shape.size());
    value = reshape(value, unnamed);
  }
  if (is_floating(value.dtype())) value = cast(value, compute_);
  read_[i] = value;
  return value;
}

Value Expansion::real(size_t i) { return has(i) ? cast(in(i), compute_) : Value(); }

Value Expansion::constant(double value, const Shape& shape) const {
  TensorType type;
  type.dtype = compute_;
  type.shape = shape;
  return full(graph_, type, value);
}

void Expansion::set(size_t i, Value value) {
  const TensorType& type = output_type(i);
  GALLEY_ASSERT(value && value.shape() == type.shape, "a definition gives output ", i, " the shape ", value ? value.shape() : Shape(),
                ", but it must be ", type.shape);
  GALLEY_ASSERT(is_floating(type.dtype) ? is_floating(value.dtype()) : value.dtype() == type.dtype, "a definition gives output ", i,
                " the type ", value.dtype(), ", but it must be ", type.dtype);
  result_[i] = value;
}

void Expansion::assign(size_t i, size_t state, Value value) {
  const Value gate = op_.gate >= 0 && has(static_cast<size_t>(op_.gate)) ? inputs_[static_cast<size_t>(op_.gate)] : Value();
  set(i, galley::assign(inputs_[state], cast(value, inputs_[state].dtype()), gate));
}

DType default_compute_type(const OpContext& types) {
  const auto wide = [](const TensorType* type) { return type != nullptr && type->dtype == DType::kF64; };
  const bool any =
      std::any_of(types.inputs.begin(), types.inputs.end(), wide) || std::any_of(types.outputs.begin(), types.outputs.end(), wide);
  return any ? DType::kF64 : DType::kF32;
}

}  // namespace galley
