#pragma once
// TaskCapture: what a task captures with: the batch's fields, the recipe's model, and what becomes of its results.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/nn/zoo.h"

namespace galley {

/// Graph outputs by what they mean. The sum of a metric is an array of one value a sample or position; an evaluation adds the rows of
/// valid samples.
struct CapturedResults {
  std::vector<std::string> losses;                        ///< Parts of the objective by name, where it has several: outputs "loss.NAME".
  std::vector<std::pair<std::string, std::string>> sums;  ///< Metric and output.
  std::vector<std::string> results;                       ///< Names of outputs.
};

class TaskCapture {
 public:
  /// Captures into `graph`; graph, model and info must outlive it. `fields`: the types of a batch's tensors by name.
  TaskCapture(Graph& graph, const Component& model, const ModelInfo& info, std::map<std::string, TensorType> fields,
              BuilderOptions options);

  /// A tensor of the batch; declares the feed when first asked for. Throws Error (exit 3), naming the fields there are, where the data do
  /// not give it.
  Value field(const std::string& name);
  /// The recipe's model on the fields that its inputs name; a model of one input takes `input`. The main result is the first.
  const NamedValues& model();
  const ModelInfo& info() const { return info_; }
  Builder& builder() { return builder_; }

  /// A part of the objective: a scalar, mean over the batch. The objective is the sum of the parts by their weights; a training logs each
  /// part without its weight where there are several. Names are unique.
  void loss(const std::string& name, Value mean, double weight = 1);
  /// A metric's values, [N,...]: their mean over all elements of all valid samples.
  void sum(std::string_view metric, Value values);
  /// A result for collectors, comparisons and predictions.
  void result(const std::string& name, Value value);

  /// Ends the capture: the objective becomes the output "loss".
  CapturedResults finish();
  std::vector<ParameterSpec> take_parameters() { return builder_.take_parameters(); }

 private:
  Graph& graph_;
  const Component& model_;
  const ModelInfo& info_;
  std::map<std::string, TensorType> fields_;
  Builder builder_;
  std::map<std::string, Value> declared_;
  NamedValues results_;
  Value objective_;
  NamedValues parts_;  // of it
  CapturedResults captured_;
};

/// What prediction gives: the model's results, the main one named "output" unless the model names its outputs.
void capture_results(TaskCapture& capture);

}  // namespace galley
