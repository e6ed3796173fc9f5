#pragma once
// The test harness of operators. The cases of each family (tests/ops/<family>_cases.cpp) capture an operator with its inputs; the harness
// checks hand values, the gradient rule by finite differences, and every kernel that supports a node of the case's graph (including
// backward operators) against the reference.

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/philox.h"
#include "libcore/graph/graph.h"

namespace galley {
class Backend;
}

namespace galley::test {

/// The values of an input: uniform numbers at least `margin` away from each of `kinks`; `distinct`: any two are at least
/// (high - low) / elements / 2 apart (for maxima).
struct Fill {
  double low = -1, high = 1;
  std::vector<double> kinks = {};
  bool distinct = false;
  double margin = 0.02;
};

/// Declares inputs of the graph under test and generates their values, which depend only on the name of the case.
class CaseInputs {
 public:
  CaseInputs(Graph& graph, DType real, std::string_view seed_name) : graph_(graph), real_(real), random_(20240229, seed_name) {}
  /// Activations of the case's dtype (f64 for gradients, f32 or bf16 for kernels).
  Value real(const Shape& shape, const Fill& fill = {}) { return add(real_, shape, ValueRole::kInput, fill); }
  /// A parameter of that dtype, for which kernels may prefer a blocked format.
  Value weight(const Shape& shape, const Fill& fill = {}) { return add(real_, shape, ValueRole::kParameter, fill); }
  /// A parameter that is f32 also in low precision: bias, gamma.
  Value vector(int64_t size, const Fill& fill = {}) {
    return add(real_ == DType::kBF16 ? DType::kF32 : real_, Shape{size}, ValueRole::kParameter, fill);
  }
  /// Integers of type i64 in low..high-1; not differentiated.
  Value integers(const Shape& shape, int64_t low, int64_t high);
  /// The given values, in the dtype of the case or another one.
  Value values(const Shape& shape, const std::vector<double>& values) { return put(real_, shape, ValueRole::kInput, values); }
  Value values(const Shape& shape, const std::vector<double>& values, DType dtype) { return put(dtype, shape, ValueRole::kInput, values); }
  /// Integers of that dtype in low..high: activations (inputs) and weights (parameters) of operators on quantized values.
  Value quantized(DType dtype, const Shape& shape, int64_t low, int64_t high, ValueRole role = ValueRole::kInput);
  /// An input that is f32 in every run: scales and biases of quantized operators, and values to quantize.
  Value f32(const Shape& shape, const Fill& fill = {}) { return add(DType::kF32, shape, ValueRole::kInput, fill); }
  /// A scalar f32 [], not differentiated, such as a learning rate.
  Value scalar(double value) { return fixed(put(DType::kF32, Shape{}, ValueRole::kInput, {value})); }
  /// Marks an input that has no gradient (class weights, running statistics).
  Value fixed(Value value);
  Graph& graph() { return graph_; }

  const std::map<std::string, RefArray>& feeds() const { return feeds_; }
  const std::vector<Value>& declared() const { return declared_; }
  bool is_fixed(ValueId id) const { return fixed_.count(id) == 1; }

 private:
  Value add(DType dtype, const Shape& shape, ValueRole role, const Fill& fill);
  Value put(DType dtype, const Shape& shape, ValueRole role, std::vector<double> values);
  Graph& graph_;
  DType real_;
  RandomStream random_;
  std::map<std::string, RefArray> feeds_;
  std::vector<Value> declared_;
  std::set<ValueId> fixed_;
};

struct OpCase {
  std::string name;                        // "conv2d_strided_groups": unique, letters, digits, _
  std::function<void(CaseInputs&)> build;  // captures; the operator under test is the last node
  std::vector<double> expected = {};       // hand values of the first output, or none
  int differentiable_outputs = -1;         // number of leading outputs in the gradient check; -1: all floating-point ones
  double kernel_tolerance = 2e-5;  // f32 kernels against double, relative to the largest value of the output: sums of a few hundred terms
  bool forward_only = false;       // for fused forms without a gradient, and for hand values at a kink
  bool straight_through = false;   // by design, the gradient rule is not the slope of the forward pass: no finite differences
  bool large = false;              // for the blocking of kernels: no finite differences; smaller cases of the operator have them
  bool exact_ties = false;         // scales are powers of two: float32 kernels must round middles between two integers as the reference
  bool low_precision = false;      // also tests bf16 kernels (tolerance 2 * 2^-8; the inputs are rounded first)
};

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }

// The tables of the families.
std::vector<OpCase> conv_cases();
std::vector<OpCase> matmul_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> rotary_cases();
std::vector<OpCase> cache_cases();
std::vector<OpCase> norm_cases();
std::vector<OpCase> batch_norm_depthwise_cases();
std::vector<OpCase> pointwise_cases();
std::vector<OpCase> pool_cases();
std::vector<OpCase> softmax_cases();
std::vector<OpCase> loss_cases();
std::vector<OpCase> random_cases();
std::vector<OpCase> embedding_cases();
std::vector<OpCase> recurrent_cases();
std::vector<OpCase> elementwise_cases();
std::vector<OpCase> binary_cases();
std::vector<OpCase> reduce_cases();
std::vector<OpCase> shape_cases();
std::vector<OpCase> shuffle_cases();
std::vector<OpCase> index_cases();
std::vector<OpCase> boxes_cases();
std::vector<OpCase> detection_cases();
std::vector<OpCase> flow_cases();
std::vector<OpCase> update_cases();
std::vector<OpCase> quantize_cases();
std::vector<OpCase> quantized_cases();
std::vector<OpCase> quantized_recurrent_cases();
std::vector<OpCase> fake_quantize_cases();
std::vector<OpCase> winograd_cases();
std::vector<OpCase> weight_only_cases();
const std::vector<OpCase>& all_cases();

/// The graph of a case with values for its inputs. With `gradient`: applies the rule of the last node to random cotangents of its outputs;
/// `gradients` has the gradient of each requested input value (absent: the rule has none).
struct CaseGraph {
  Graph graph;
  std::map<std::string, RefArray> feeds;
  size_t node = 0;  // the operator under test
  std::vector<std::pair<ValueId, Value>> gradients;
  std::vector<std::pair<ValueId, ValueId>> cotangents;  // output, its cotangent's input
};
/// The result is on the heap, since `Value`s refer to the address of `graph`.
std::unique_ptr<CaseGraph> make_graph(const OpCase& c, DType real, bool gradient);

/// Largest difference between the rule's gradient (times `scale`) and central differences of the reference in double, relative to the
/// largest gradient of that input. Perturbs at most 49 elements per input. NaN if a value is not finite.
double gradient_error(const OpCase& c, double scale = 1);

/// Runs every supporting kernel of the back end on every node of the case's graph in every format; each failure is one line. With `tried`,
/// runs nothing and only collects "kernel of op" of the kernels that would run.
std::vector<std::string> kernel_failures(const Backend& backend, const OpCase& c, DType real, std::set<std::string>* tried = nullptr);

}  // namespace galley::test
