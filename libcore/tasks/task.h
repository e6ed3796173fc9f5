#pragma once
// Task: connects a model with data. It defines the target fields, the objective, the metrics of an evaluation and the presentation of
// predictions. Each kind of problem is one file of this room and one row of tasks.cpp.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/data/image.h"
#include "libcore/data/pixel_grid.h"
#include "libcore/graph/tensor_type.h"
#include "libcore/nn/zoo.h"
#include "libcore/tasks/metrics.h"
#include "libcore/tensor/batch.h"

namespace galley {

class TaskCapture;

/// The purpose of a captured graph.
enum class TaskMode : uint8_t { kTrain, kEvaluate, kPredict };

/// A metric of a task.
struct MetricInfo {
  std::string_view name;
  std::string_view unit = "";  ///< "%" or empty.
  bool larger_is_better = false;
  bool by_default = true;  ///< Included in `metrics: auto`.
  bool ranks = false;      ///< Ranks checkpoints if the recipe names no metric. At most one per task.
};

/// Metrics of one class, for reports.
struct ClassMetrics {
  int64_t index = 0;
  std::string label;
  int64_t count = 0;  ///< Of objects or samples of the class.
  MetricValues values;
};

/// Computes metrics that sums in the graph cannot express. Each collector serves one evaluation.
class Collector {
 public:
  virtual ~Collector() = default;
  /// Adds the results of one batch, by name (TaskCapture::result). Only the first `batch.valid` rows count.
  virtual void add(const std::map<std::string, Tensor>& results, const Batch& batch) = 0;
  /// Whether `add` reads this result. Results that no collector reads are not copied to the host.
  virtual bool reads(std::string_view result) const { return static_cast<void>(result), true; }
  /// Adds the metrics to `values`. Throws Error (kNumeric) if nothing was counted.
  virtual void finish(MetricValues& values) const = 0;
  /// Metrics of each class, where the task has them.
  virtual std::vector<ClassMetrics> classes() const { return {}; }
  /// The most memory in bytes that it takes for `samples` samples; 0: it keeps no samples. `results`: their types, for a batch.
  virtual int64_t bytes(int64_t samples, const std::map<std::string, TensorType>& results) const {
    return static_cast<void>(samples), static_cast<void>(results), 0;
  }
};

/// Options of a presenter.
struct PresentContext {
  std::vector<std::string> categories;  ///< Names of the classes; empty if unknown.
  int64_t top = 5;                      ///< Number of classes to show, if a sample has one class.
  double min_score = 0;                 ///< Smallest score of a class to show.
  double threshold = 0.5;               ///< Smallest probability of a label, if a sample may have several.

  /// The name of a class, or its number if it has no name.
  std::string label(int64_t index) const;
};

/// The image of a prediction: the decoded sample before the pipeline.
struct Canvas {
  const Image& image;
  bool draws = true;              ///< Whether the prediction is drawn on it; false: only its place is needed (Presenter::needs_image).
  std::optional<PixelGrid> seen;  ///< The pixels that the model received, in coordinates of the image; nullopt: unknown (Pipeline::grid).
};

/// The results of one sample, for people and for programs.
struct Presentation {
  std::string json;                            ///< A JSON object; galley-predict inserts the key `file` first.
  std::vector<std::vector<std::string>> rows;  ///< Rows of a table with Presenter::columns().
  std::vector<std::string> lines;              ///< Text to draw above the image.
  std::optional<Image> overlay;                ///< An image to draw instead of the sample.
  std::string mask_png;                        ///< A PNG file. Its path becomes the key `mask` of the JSON; null if it is not written.
  std::string flow_file;                       ///< A .flo file. Its path becomes the key `flow` of the JSON; null if it is not written.
};

/// Formats predictions.
class Presenter {
 public:
  virtual ~Presenter() = default;
  /// Columns of the table, after `file`.
  virtual std::vector<std::string> columns() const = 0;
  /// Whether present() needs a canvas even if nothing is drawn.
  virtual bool needs_image() const { return false; }
  /// `results`: the rows of one sample by name, [1,...]. `canvas`: null if nothing is drawn, unless needs_image(). Throws Error (kNumeric)
  /// if a result is not finite, (kRecipe) if the position of results on the canvas is unknown. `sample` names the sample in messages.
  virtual Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas* canvas) const = 0;
};

/// The model of a task.
struct TaskModel {
  ModelInfo info;
  TensorType output;  ///< Type of the main result for one sample, [1,...].
  Component loss;     ///< The recipe's loss; empty: the default of the task.
};

/// A kind of problem, for one model.
class Task {
 public:
  virtual ~Task() = default;
  /// E.g. "classification".
  virtual std::string_view name() const = 0;
  /// The fields of samples that the objective and the metrics read besides the model's inputs, with their `classes`.
  virtual std::vector<FieldType> targets() const = 0;
  /// Captures the model and the losses, metrics and results of the mode.
  virtual void capture(TaskMode mode, TaskCapture& capture) const = 0;
  /// The metrics of the task.
  virtual std::span<const MetricInfo> metrics() const = 0;
  /// The collector of these metrics; null if sums in the graph are enough.
  virtual std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const {
    return static_cast<void>(metrics), nullptr;
  }
  /// Null if results of this shape can only be written as tensors.
  virtual std::unique_ptr<Presenter> presenter(const PresentContext& context) const { return static_cast<void>(context), nullptr; }
  /// Tokens per sample for inputs of this type, for durations and rates; 0 if samples are not text.
  virtual int64_t tokens(const TensorType& input) const { return static_cast<void>(input), 0; }
  /// The result of an evaluation that comparisons of two models read.
  virtual std::string_view compared() const { return "scores"; }
  /// The predicted classes, from the compared result [1 or N,...], for comparisons of two models. Empty if the task predicts no classes.
  virtual std::vector<int64_t> decisions(const Tensor& scores) const { return static_cast<void>(scores), std::vector<int64_t>(); }

  /// Number of classes of the targets; 0 if they have none.
  int64_t classes() const;
};

/// Base of the options of a task: the section `task` of a recipe.
class TaskOptions : public Options {
 public:
  /// Makes the task. Throws Error (exit 3) if the model's output or the loss does not fit the task.
  virtual std::unique_ptr<Task> make(const TaskModel& model) const = 0;
  /// The metrics of the task for any model.
  virtual std::span<const MetricInfo> metrics() const = 0;
};

/// The table of tasks.
ComponentKinds tasks();
/// The task of a recipe. `task.type` "auto" derives it from the model and the loss, and returns null if they do not determine it. Null for
/// an empty component: results are tensors only. Throws as TaskOptions::make.
std::unique_ptr<Task> make_task(const Component& task, const TaskModel& model);

/// The metrics to compute. `names`: those of the recipe, or {"auto"}. The result always begins with the loss. Throws Error (exit 3) with
/// the nearest name for a metric that the task does not have.
std::vector<std::string> metric_names(const Task& task, const std::vector<std::string>& names);
/// The description of a metric of any task; ignores a prefix ("ema/"). Null if no task has it.
const MetricInfo* find_metric_info(std::string_view name);
/// Whether a larger value of the metric is better; false if no task has it.
bool larger_is_better(std::string_view metric);
/// A value as text: "91.20 %", "0.3100".
std::string metric_text(std::string_view metric, double value);

}  // namespace galley
