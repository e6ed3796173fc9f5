// Exports attention as the products and the softmax of its definition (ops/define_attention.cpp).

#include "libcore/ops/attention.h"

#include <limits>

#include "libcore/onnx/export/graph_writer.h"

namespace galley::onnx_export {
namespace {

using namespace attention_port;

class AttentionWriter {
 public:
  explicit AttentionWriter(const NodeWriter& n)
      : n_(n), w_(n.to), attrs_(n.attrs<AttentionAttrs>()), shape_(attention_shape(attrs_, n.type(kQ), given(kK), given(kV))) {
    if (n.has(kLengths) || n.has(kPosition)) w_.refuse("its lengths and positions have no form in ONNX");
    if (n.has(kRng)) w_.refuse("it drops attention weights");
    const std::vector<Dim> query = w_.dims(n.node.inputs[kQ]);
    batch_ = query[0];
    queries_ = query[1];
    keys_ = w_.dims(n.node.inputs[shape_.arrays > 1 ? kK : kQ])[1];
  }

  std::string write() {
    const int k = shape_.arrays > 1 ? kK : kQ, v = shape_.arrays > 2 ? kV : k;
    const std::string scale = w_.scalar(shape_.scale(attrs_), n_.type(kQ).dtype);
    const std::string query = grouped(w_.add("Mul", {by_head(part(kQ, 0, shape_.heads)), scale}), Dim(shape_.width));
    const std::string key = w_.transpose(part(k, shape_.first_key, shape_.kv_heads), {0, 2, 3, 1});
    const std::string value = by_head(part(v, shape_.first_value, shape_.kv_heads));
    std::string s = ungrouped(w_.add("MatMul", {query, key}), keys_);
    if (attrs_.softcap != 0) {
      const auto times = [&](const std::string& x, double factor) { return w_.add("Mul", {x, w_.scalar(factor, n_.type(kQ).dtype)}); };
      s = times(w_.add("Tanh", {times(s, 1 / attrs_.softcap)}), attrs_.softcap);
    }
    if (n_.has(kBias)) s = biased(s);
    if (attrs_.causal || attrs_.window > 0) s = w_.add("Add", {s, mask()});
    s = w_.add("Softmax", {s}, {attribute("axis", int64_t{-1})});
    return by_head(ungrouped(w_.add("MatMul", {grouped(s, keys_), value}), Dim(shape_.value_width)));
  }

 private:
  const TensorType* given(int i) const { return n_.has(static_cast<size_t>(i)) ? &n_.type(static_cast<size_t>(i)) : nullptr; }
  std::string by_head(const std::string& x) { return w_.transpose(x, {0, 2, 1, 3}); }
  /// Heads [first, first + heads) of an input.
  std::string part(int input, int64_t first, int64_t heads) {
    const auto i = static_cast<size_t>(input);
    if (n_.type(i).shape[2] == heads) return n_.in(i);
    return w_.add("Slice", {n_.in(i), w_.ints({first}), w_.ints({first + heads}), w_.ints({2}), w_.ints({1})});
  }

  std::vector<Dim> by_heads(const Dim& width) const { return {batch_, Dim(shape_.heads), queries_, width}; }
  std::vector<Dim> by_groups(const Dim& width) const { return {batch_, Dim(shape_.kv_heads), queries_.times(shape_.group()), width}; }
  std::string grouped(const std::string& x, const Dim& width) {
    return shape_.group() == 1 ? x : w_.reshape(x, by_heads(width), by_groups(width));
  }
  std::string ungrouped(const std::string& x, const Dim& width) {
    return shape_.group() == 1 ? x : w_.reshape(x, by_groups(width), by_heads(width));
  }

  std::string biased(const std::string& s) {
    const Dim samples = w_.dims(n_.node.inputs[kBias])[0];
    if (samples == batch_ || samples == Dim(1)) return w_.add("Add", {s, n_.in(kBias)});
    if (samples.open()) w_.refuse("its bias is that of a part of the batch");
    const std::vector<Dim> whole = by_heads(keys_);
    std::vector<Dim> parts = whole;
    parts[0].size /= samples.size;
    parts[0].fixed /= samples.size;
    parts.insert(parts.begin() + 1, samples);
    return w_.reshape(w_.add("Add", {w_.reshape(s, whole, parts), n_.in(kBias)}), parts, whole);
  }
  /// [Tq,Tk]: -inf where causal or window forbids the pair.
  std::string mask() {
    if (queries_.open()) w_.refuse("its mask depends on the number of tokens: export it for a fixed one with --shape T");
    Tensor values(n_.type(kQ).dtype, {shape_.queries, shape_.keys});
    std::vector<double> numbers;
    for (int64_t i = 0; i < shape_.queries; ++i) {
      for (int64_t j = 0; j < shape_.keys; ++j) {
        const bool far = attrs_.window > 0 && (j <= i - attrs_.window || j >= i + attrs_.window);
        numbers.push_back((attrs_.causal && j > i) || far ? -std::numeric_limits<double>::infinity() : 0);
      }
    }
    values.from_doubles(numbers);
    return w_.constant(values);
  }

  const NodeWriter& n_;
  GraphWriter& w_;
  const AttentionAttrs& attrs_;
  AttentionShape shape_;
  Dim batch_, queries_, keys_;
};

Names attention_node(const NodeWriter& n) { return {AttentionWriter(n).write(), ""}; }

}  // namespace

WriteTable attention_rows() { return {{"attention", attention_node}}; }

}  // namespace galley::onnx_export
