#pragma once
// TaskCapture: the interface that a task uses to capture its graph: fields of the batch, the recipe's model, losses, metrics and results.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/nn/zoo.h"
#include "libcore/tensor/pixels.h"

namespace galley {

/// The outputs of a graph by meaning. The output of a metric has one value per sample or position; an evaluation adds the rows of valid
/// samples.
struct CapturedResults {
  std::vector<std::string> losses;                        ///< Names of the parts of the objective, if it has several. Output: "loss.NAME".
  std::vector<std::pair<std::string, std::string>> sums;  ///< Metrics and their outputs.
  std::vector<std::string> results;                       ///< Names of the other outputs.
};

/// Captures the graph of a task.
class TaskCapture {
 public:
  /// Captures into `graph`; graph, model and info must outlive it. `fields`: the types of a batch's tensors by name. `pixels`: of the
  /// fields in bytes, whose numbers the graph computes.
  TaskCapture(Graph& graph, const Component& model, const ModelInfo& info, std::map<std::string, TensorType> fields, BuilderOptions options,
              PixelConversions pixels = {});

  /// A tensor of the batch. The first call for a field declares the graph input. Throws Error (exit 3) that lists the fields of the data if
  /// they do not include this one.
  Value field(const std::string& name);
  /// The results of the recipe's model, the main result first. Its inputs are the fields of the same names, optional ones where the data
  /// have them; a model with one input reads the field `input`.
  const NamedValues& model();
  const ModelInfo& info() const { return info_; }
  Builder& builder() { return builder_; }

  /// Adds a part of the objective: a scalar, the mean over the batch. The objective is the weighted sum of the parts. If there are several,
  /// training logs each part without its weight. Names must be unique.
  void loss(const std::string& name, Value mean, double weight = 1);
  /// Adds a metric, the mean of `values` [N,...] over all elements of all valid samples.
  void sum(std::string_view metric, Value values);
  /// Adds a result for collectors, comparisons and predictions.
  void result(const std::string& name, Value value);

  /// Ends the capture: the objective becomes the output "loss".
  CapturedResults finish();
  std::vector<ParameterSpec> take_parameters() { return builder_.take_parameters(); }

 private:
  Graph& graph_;
  const Component& model_;
  const ModelInfo& info_;
  std::map<std::string, TensorType> fields_;
  Value numbers_of(const std::string& name, Value bytes);

  PixelConversions pixels_;
  Builder builder_;
  std::map<std::string, Value> declared_;
  NamedValues results_;
  Value objective_;
  NamedValues parts_;  // parts of the objective
  CapturedResults captured_;
};

/// Captures the results for prediction: those of the model. The main one is called "output" unless the model names its outputs.
void capture_results(TaskCapture& capture);

}  // namespace galley
