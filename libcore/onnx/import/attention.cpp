// Recognizes attention in the products that exporters write: softmax(scale q k^T + bias) v.

#include "libcore/ops/attention.h"

#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

constexpr int kLongestChain = 16;  // nodes between the products: files may have cycles

bool is(const OnnxNode* node, std::string_view op, size_t inputs) {
  return node != nullptr && node->op_type == op && node->domain.empty() && node->inputs.size() == inputs && node->outputs.size() == 1;
}

/// A factor of a value: x becomes the other operand of a product with, or a quotient by, a known number.
bool take_factor(Importer& to, std::string& x, double& factor) {
  const OnnxNode* node = to.producer(x);
  if (is(node, "Div", 2)) {
    const std::optional<double> by = to.known_scalar(node->inputs[1]);
    if (!by || *by == 0) return false;
    factor /= *by;
    x = node->inputs[0];
    return true;
  }
  if (!is(node, "Mul", 2)) return false;
  for (size_t i : {0u, 1u}) {
    if (const std::optional<double> by = to.known_scalar(node->inputs[i])) {
      factor *= *by;
      x = node->inputs[1 - i];
      return true;
    }
  }
  return false;
}

/// The operands of an attention, by their names in the file.
struct Operands {
  std::string q, k, v;  // [N,H,T,D], [N,H,D,S], [N,H,S,E]
  double scale = 1;
  std::vector<std::pair<std::string, double>> biases;  // with factors
};

/// The weights of attention at `name`: without dropout, which does nothing in inference, and without the rule that a query without keys
/// has weights 0, which is the operator's own.
const OnnxNode* find_softmax(Importer& to, std::string name) {
  for (int step = 0; step < kLongestChain; ++step) {
    const OnnxNode* node = to.producer(name);
    if (node == nullptr || !node->domain.empty() || node->outputs.empty() || node->outputs[0] != name) return nullptr;
    if (node->op_type == "Softmax") return node;
    if (is(node, "Identity", 1) || is(node, "Cast", 1)) {
      name = node->inputs[0];
    } else if (is(node, "Where", 3)) {
      const OnnxNode* test = to.producer(node->inputs[0]);
      const std::optional<double> otherwise = to.known_scalar(node->inputs[1]);
      if (!is(test, "IsNaN", 1) || test->inputs[0] != node->inputs[2] || !otherwise || *otherwise != 0) return nullptr;
      name = node->inputs[2];
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

/// The shape of an item of the file.
std::optional<Shape> shape_of_item(Importer& to, const std::string& name) {
  const Item& item = to.item(name);
  if (item.value) return item.value.shape();
  return item.constant.defined() && !item.transposed ? std::optional<Shape>(item.constant.shape()) : std::nullopt;
}

/// Whether a value is a product to which biases and factors were added.
bool from_product(Importer& to, std::string name) {
  double unused = 1;
  for (int step = 0; step < kLongestChain; ++step) {
    const OnnxNode* source = to.producer(name);
    if (is(source, "MatMul", 2)) return true;
    if (is(source, "Add", 2)) {
      name = source->inputs[0];
    } else if (!take_factor(to, name, unused)) {
      return false;
    }
  }
  return false;
}

std::optional<Operands> find_operands(Call& c) {
  Importer& to = c.to;
  Operands found;
  const OnnxNode* softmax = find_softmax(to, c.node.inputs[0]);
  if (softmax == nullptr || softmax->inputs.size() != 1 || c.opset() < 13) return std::nullopt;
  const OnnxAttribute* axis = softmax->find("axis");
  if (axis != nullptr && axis->i != -1 && axis->i != 3) return std::nullopt;
  found.v = c.node.inputs[1];
  std::string scores = softmax->inputs[0];
  for (int step = 0; found.q.empty(); ++step) {
    const OnnxNode* node = to.producer(scores);
    if (step == kLongestChain) return std::nullopt;
    if (is(node, "MatMul", 2)) {
      found.q = node->inputs[0];
      found.k = node->inputs[1];
    } else if (!take_factor(to, scores, found.scale)) {
      if (!is(node, "Add", 2)) return std::nullopt;
      // The scores are the operand that comes from a product; the other is a bias.
      const size_t side = from_product(to, node->inputs[0]) ? 0 : 1;
      if (side == 1 && !from_product(to, node->inputs[1])) return std::nullopt;
      found.biases.emplace_back(node->inputs[1 - side], found.scale);
      scores = node->inputs[side];
    }
  }
  for (std::string* operand : {&found.q, &found.k}) {
    for (int step = 0; step < kLongestChain && take_factor(to, *operand, found.scale);) ++step;
  }
  return found;
}

/// The heads that a repetition of grouped keys or values repeats: x [N,T,G r,D] from [N,T,G,D], or x itself.
Value unrepeated_heads(Call& c, Value x) {
  // reshape(broadcast(reshape(y [N,G,T,D] -> [N,G,1,T,D]) -> [N,G,r,T,D])) with its axes permuted.
  const Node* permuting = c.to.made_by(x);
  if (permuting == nullptr || !permuting->is("permute") || permuting->attrs<PermuteAttrs>().order != std::vector<int64_t>{0, 2, 1, 3})
    return x;
  Graph& graph = x.graph();
  const auto source = [&](const Node* node) { return graph.at(node->inputs[0]); };
  const Node* merging = c.to.made_by(source(permuting));
  if (merging == nullptr || !merging->is("reshape")) return x;
  const Node* repeating = c.to.made_by(source(merging));
  if (repeating == nullptr || !repeating->is("broadcast_to")) return x;
  const Shape from = source(repeating).shape(), to = graph.type(repeating->outputs[0]).shape;
  const Shape whole = graph.type(merging->outputs[0]).shape;
  if (from.rank() != 5 || to.rank() != 5 || whole.rank() != 4 || from[2] != 1) return x;
  for (int axis : {0, 1, 3, 4}) {
    if (from[axis] != to[axis]) return x;
  }
  if (whole != Shape({to[0], to[1] * to[2], to[3], to[4]})) return x;
  return permuted(c, reshape(source(repeating), Shape{from[0], from[1], from[3], from[4]}), {0, 2, 1, 3});
}

/// Keys [N,H,D,S] as [N,S,H,D]. torch.export transposes them with samples and heads as one axis.
Value keys_by_token(Call& c, Value x) {
  Graph& graph = x.graph();
  const auto source = [&](const Node* node) { return graph.at(node->inputs[0]); };
  const Node* outer = c.to.made_by(x);
  if (outer != nullptr && outer->is("reshape")) {
    const Node* turning = c.to.made_by(source(outer));
    if (turning != nullptr && turning->is("permute") && turning->attrs<PermuteAttrs>().order == std::vector<int64_t>{0, 2, 1}) {
      const Node* inner = c.to.made_by(source(turning));
      if (inner != nullptr && inner->is("reshape")) {
        const Value y = source(inner);
        const Shape &s = x.shape(), &t = y.shape();
        if (t.rank() == 4 && t == Shape({s[0], s[1], s[3], s[2]})) return permuted(c, y, {0, 2, 1, 3});
      }
    }
  }
  return permuted(c, x, {0, 3, 1, 2});
}

/// The sum of the biases as the operator takes it, [1 or N, 1 or H, 1 or T, S].
std::optional<Value> joined_bias(Call& c, const Operands& operands, const Shape& q, int64_t keys) {
  Value bias;
  for (const auto& [name, factor] : operands.biases) {
    Value part = c.to.value(c.to.item(name));
    if (part.dtype() != DType::kF32 || part.shape().rank() > 4) return std::nullopt;
    if (factor != 1) part = affine(part, factor);
    bias = bias ? add(bias, part) : part;
  }
  if (!bias) return bias;
  Shape shape = bias.shape();
  while (shape.rank() < 4) shape = unsqueezed_shape(shape, {0});
  const auto fits = [&](int axis, int64_t size) { return shape[axis] == 1 || shape[axis] == size; };
  if (!fits(0, q[0]) || !fits(1, q[1]) || !fits(2, q[2]) || !fits(3, keys)) return std::nullopt;
  if (shape != bias.shape()) bias = reshape(bias, shape);
  if (shape[3] != keys) {
    shape[3] = keys;
    bias = broadcast_to(bias, shape);
  }
  return bias;
}

}  // namespace

bool make_attention(Call& c) {
  if (c.node.inputs.size() != 2) return false;
  const std::optional<Operands> operands = find_operands(c);
  if (!operands) return false;
  const std::optional<Shape> q = shape_of_item(c.to, operands->q), k = shape_of_item(c.to, operands->k),
                             v = shape_of_item(c.to, operands->v);
  if (!q || !k || !v || q->rank() != 4 || k->rank() != 4 || v->rank() != 4) return false;
  const int64_t samples = (*q)[0], heads = (*q)[1], width = (*q)[3], keys = (*k)[3];
  if ((*k)[0] != samples || (*v)[0] != samples || (*k)[2] != width || (*v)[2] != keys) return false;
  // One head of keys and values serves all queries (Falcon): the products broadcast it.
  if ((*k)[1] != (*v)[1] || ((*k)[1] != heads && (*k)[1] != 1)) return false;
  if (operands->scale <= 0 || !std::isfinite(operands->scale)) return false;
  const auto value = [&](const std::string& name) { return c.to.value(c.to.item(name)); };
  for (const std::string* name : {&operands->q, &operands->k, &operands->v}) {
    if (value(*name).dtype() != DType::kF32) return false;
  }
  const std::optional<Value> bias = joined_bias(c, *operands, *q, keys);
  if (!bias) return false;
  AttentionInputs inputs{.q = permuted(c, value(operands->q), {0, 2, 1, 3}),
                         .k = keys_by_token(c, value(operands->k)),
                         .v = permuted(c, value(operands->v), {0, 2, 1, 3}),
                         .bias = *bias};
  const Value grouped_k = unrepeated_heads(c, inputs.k), grouped_v = unrepeated_heads(c, inputs.v);
  if (grouped_k.shape()[2] == grouped_v.shape()[2]) inputs.k = grouped_k, inputs.v = grouped_v;
  AttentionAttrs attrs;
  attrs.scale = operands->scale;
  Value result = c.to.attend() ? c.to.attend()(c.to, inputs, attrs) : Value();
  if (!result) result = attention(inputs, attrs).o;
  c.set(permuted(c, result, {0, 2, 1, 3}));
  return true;
}

}  // namespace galley::onnx_import
