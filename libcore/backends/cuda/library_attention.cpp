#include "libcore/backends/cuda/library_attention.h"

#include <limits>

#include "libcore/backends/cuda/dnn_graph.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using namespace cuda;
using dnn::Descriptor;
using Value = DnnGraph::Value;
using Sizes = DnnGraph::Sizes;

enum Id : int64_t { kQ = 1, kK, kV, kO, kLse, kGrad, kDq, kDk, kDv, kSums, kParts, kScale, kNever, kOne };  // of operands

/// cuDNN knows attention by its graph of products and functions: what it has as one operation has no causal mask. The order of the
/// operations is that of NVIDIA's cudnn-frontend (scaled_dot_product_flash_attention.h, MIT), which its engines recognize.
class AttentionGraph {
 public:
  explicit AttentionGraph(const AttentionForm& form)
      : f_(form),
        type_(dnn_type(form.dtype)),
        pairs_{f_.batch, f_.heads, f_.queries, f_.keys},
        column_{f_.batch, f_.heads, f_.queries, 1},
        q_(graph.operand(kQ, type_, {f_.batch, f_.heads, f_.queries, f_.width}, steps(f_.q_steps))),
        scale_(graph.number(kScale)) {
    if (f_.backward) {
      backward();
    } else {
      forward();
    }
  }
  DnnGraph graph;

 private:
  static Sizes steps(const int64_t* s) { return {s[0], s[1], s[2], 1}; }
  static Sizes turned(const int64_t* s) { return {s[0], s[1], 1, s[2]}; }
  Value real(const Sizes& sizes) { return graph.intermediate(dnn::kDataF32, sizes); }
  Value function(int mode, const Sizes& sizes, Value x, Value b = -1, Value t = -1) {
    const Value y = real(sizes);
    graph.pointwise(mode, y, x, b, t);
    return y;
  }
  Value keys_turned() { return graph.operand(kK, type_, {f_.batch, f_.kv_heads, f_.width, f_.keys}, turned(f_.k_steps)); }
  Value lse() { return graph.operand(kLse, dnn::kDataF32, column_, {f_.heads * f_.queries, f_.queries, 1, 1}); }
  Value of_output(Id id) {
    return graph.operand(id, type_, {f_.batch, f_.heads, f_.queries, f_.value_width},
                         {f_.queries * f_.heads * f_.value_width, f_.value_width, f_.heads * f_.value_width, 1});
  }
  /// -inf where a query does not read a key.
  Value masked(Value scores) {
    if (!f_.causal) return scores;
    const Value row = graph.intermediate(dnn::kDataI32, pairs_), column = graph.intermediate(dnn::kDataI32, pairs_);
    graph.pointwise(dnn::kIndex, row, scores, -1, -1, dnn::kDataF32, 2);
    graph.pointwise(dnn::kIndex, column, scores, -1, -1, dnn::kDataF32, 3);
    const Value reads = graph.intermediate(dnn::kDataBoolean, pairs_);
    graph.pointwise(dnn::kGreaterEqual, reads, row, column, -1, dnn::kDataBoolean);
    return function(dnn::kSelect, pairs_, scores, graph.number(kNever), reads);
  }

  void forward() {
    const Value products = real(pairs_);
    graph.matmul(products, q_, keys_turned());
    const Value scores = masked(function(dnn::kMultiply, pairs_, products, scale_));
    const Value largest = real(column_), total = real(column_);
    graph.reduce(dnn::kReduceMaximum, largest, scores);
    const Value exponentials = function(dnn::kExp, pairs_, function(dnn::kSubtract, pairs_, scores, largest));
    graph.reduce(dnn::kReduceSum, total, exponentials);
    const Value logarithm = function(dnn::kLog, column_, total);
    graph.pointwise(dnn::kAdd, lse(), largest, logarithm);
    const Value weights = graph.intermediate(type_, pairs_);
    graph.pointwise(dnn::kDivide, weights, exponentials, total);
    graph.matmul(of_output(kO), weights, graph.operand(kV, type_, {f_.batch, f_.kv_heads, f_.keys, f_.value_width}, steps(f_.v_steps)));
  }

  /// The matrix of each pair of query and key with queries as columns, in the type of the operands.
  Value by_keys(Value x) {
    const Value y = graph.intermediate(type_, {f_.batch, f_.heads, f_.keys, f_.queries},
                                       {f_.heads * f_.queries * f_.keys, f_.queries * f_.keys, 1, f_.keys});
    graph.reshape(y, x);
    return y;
  }
  /// result = x other, of all heads that read a key head.
  void product_of_keys(Id id, const int64_t* result_steps, int64_t width, Value x, Value other) {
    const Value result = graph.operand(id, type_, {f_.batch, f_.kv_heads, f_.keys, width}, steps(result_steps));
    if (f_.heads == f_.kv_heads) return graph.matmul(result, x, other);
    const Value each = graph.intermediate(type_, {f_.batch, f_.heads, f_.keys, width});
    graph.matmul(each, x, other);
    graph.reduce(dnn::kReduceSum, result, each);
  }

  void backward() {
    const Value grad = of_output(kGrad), o = of_output(kO), keys = keys_turned();
    const Value along = function(dnn::kMultiply, {f_.batch, f_.heads, f_.queries, f_.value_width}, grad, o);
    const Value sum = real(column_);
    graph.reduce(dnn::kReduceSum, sum, along);
    const Value sums = graph.operand(kSums, dnn::kDataF32, column_, {f_.heads * f_.queries, f_.queries, 1, 1});
    graph.pointwise(dnn::kMultiply, sums, sum, graph.number(kOne));

    const Value products = real(pairs_);
    graph.matmul(products, q_, keys);
    const Value scaled = function(dnn::kMultiply, pairs_, products, scale_);
    const Value weights = function(dnn::kExp, pairs_, masked(function(dnn::kSubtract, pairs_, scaled, lse())));
    product_of_keys(kDv, f_.v_steps, f_.value_width, by_keys(weights), grad);

    const Value slopes = real(pairs_);
    graph.matmul(slopes, grad, graph.operand(kV, type_, {f_.batch, f_.kv_heads, f_.value_width, f_.keys}, turned(f_.v_steps)));
    const Value gradients = function(dnn::kMultiply, pairs_, function(dnn::kSubtract, pairs_, slopes, sums), weights);
    const Value of_products = function(dnn::kMultiply, pairs_, gradients, scale_);
    product_of_keys(kDk, f_.k_steps, f_.width, by_keys(of_products), q_);

    const Value rows = graph.intermediate(type_, {f_.batch, f_.kv_heads, f_.keys, f_.width}, steps(f_.k_steps));
    graph.reshape(rows, keys);
    const Sizes sizes{f_.batch, f_.heads, f_.queries, f_.width};
    const Value dq = graph.operand(kDq, type_, sizes, steps(f_.q_steps));
    if (f_.deterministic) return graph.matmul(dq, of_products, rows);
    const Value parts = graph.operand(kParts, dnn::kDataF32, sizes, {f_.heads * f_.queries * f_.width, f_.queries * f_.width, f_.width, 1});
    graph.matmul(parts, of_products, rows);
    graph.pointwise(dnn::kIdentity, dq, parts);
  }

  const AttentionForm& f_;
  int type_;
  Sizes pairs_, column_;
  Value q_, scale_;
};

DnnLimits limits_of(const AttentionForm& form) { return {.rounds_inputs = true, .deterministic = form.deterministic}; }

class Planned : public LibraryAttention {
 public:
  Planned(const AttentionForm& form, std::unique_ptr<const ChosenDnnPlan> chosen) : form_(form), chosen_(std::move(chosen)) {}
  int64_t scratch_bytes() const override { return rounded(chosen_->plan.workspace) + (form_.backward ? rounded(sums()) + parts() : 0); }
  void run(Stream& stream, const AttentionOperands& operands, void* scratch) const override {
    float scale = operands.scale, never = -std::numeric_limits<float>::infinity(), one = 1;
    std::vector<int64_t> ids{kQ, kK, kV, kO, kLse, kScale};
    std::vector<void*> at{
        const_cast<void*>(operands.q), const_cast<void*>(operands.k), const_cast<void*>(operands.v), operands.o, operands.lse, &scale};
    const auto pass = [&](int64_t id, const void* address) {
      ids.push_back(id);
      at.push_back(const_cast<void*>(address));
    };
    if (form_.causal) pass(kNever, &never);
    if (form_.backward) {
      auto* memory = static_cast<std::byte*>(scratch) + rounded(chosen_->plan.workspace);
      pass(kGrad, operands.grad);
      pass(kDq, operands.dq);
      pass(kDk, operands.dk);
      pass(kDv, operands.dv);
      pass(kOne, &one);
      pass(kSums, memory);
      if (!form_.deterministic) {
        pass(kParts, memory + rounded(sums()));
        stream.fill(memory + rounded(sums()), 0, parts());  // the engine adds to it
      }
    }
    run_dnn_plan(stream, chosen_->plan.descriptor, ids, at, scratch, "attention");
  }

 private:
  static int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  int64_t sums() const { return 4 * form_.batch * form_.heads * form_.queries; }
  int64_t parts() const { return form_.deterministic ? 0 : sums() * form_.width; }

  AttentionForm form_;
  std::unique_ptr<const ChosenDnnPlan> chosen_;
};

/// Why the library is not asked; empty: it is. The rules are those of cuDNN's fused engines.
std::string declines(const AttentionForm& form) {
  if (form.dtype != DType::kBF16 && form.dtype != DType::kF16) return cat("dtype ", form.dtype);
  if (form.width % 8 != 0 || form.value_width % 8 != 0) return "a width of heads that is not a multiple of 8";
  const int64_t most = form.backward ? 128 : 256;
  if (form.width > most || form.value_width > most) return cat("heads of more than ", most, " elements");
  if (form.backward && form.keys == 1) return "one key";
  return warn_of_problem(dnn::dnn().state);
}

std::shared_ptr<const LibraryAttention> build(const CudaDevice& device, const AttentionForm& form, std::string& reason) {
  const auto describe = [&](dnn::Handle handle) {
    const auto made = std::make_shared<AttentionGraph>(form);
    const dnn::Status status = made->graph.finish(handle);
    return DescribedGraph{made, &made->graph.graph(), status};
  };
  auto chosen = choose_dnn_plan(device, form.text(), limits_of(form), describe, reason);
  return chosen == nullptr ? nullptr : std::make_shared<Planned>(form, std::move(chosen));
}

}  // namespace

std::string AttentionForm::text() const {
  std::string all =
      cat(backward ? "attention gradients " : "attention ", dtype, causal ? " causal" : "", deterministic ? "" : " any order");
  for (const int64_t value : {batch, heads, kv_heads, queries, keys, width, value_width}) all += cat(" ", value);
  for (const int64_t* steps : {q_steps, k_steps, v_steps}) all += cat(" ", steps[0], " ", steps[1], " ", steps[2]);
  return all;
}

std::shared_ptr<const LibraryAttention> library_attention(const CudaDevice& device, const AttentionForm& form, std::string& reason) {
  reason = declines(form);
  if (!reason.empty()) return nullptr;
  static DnnPlans<LibraryAttention>& plans = *new DnnPlans<LibraryAttention>;
  return plans.of(device, form.text(), reason, [&](std::string& why) { return build(device, form, why); });
}

AttentionSupport attention_support(const AttentionForm& form, const std::string& card) {
  if (const std::string reason = declines(form); !reason.empty()) throw Error(ErrorCode::kResource, reason);
  const Descriptor properties = dnn_card(card);
  AttentionSupport support;
  AttentionGraph graph(form);
  if (graph.graph.finish(nullptr) != dnn::kSuccess) return support;
  for (const Descriptor& configuration : dnn_configurations(graph.graph.graph(), &properties)) {
    ++support.listed;
    if (!dnn_allows(configuration, limits_of(form)) || support.allowed++ > 0) continue;
    // A plan is compiled, which takes a second; without a GPU it cannot be loaded.
    const DnnPlan plan(configuration, nullptr, &properties);
    support.compiled = plan.status == dnn::kSuccess || plan.status == dnn::kDriverFailed;
    support.workspace = plan.workspace >= 0 ? plan.workspace : dnn_workspace(configuration);
  }
  return support;
}

}  // namespace galley
