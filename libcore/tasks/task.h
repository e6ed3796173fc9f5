#pragma once
// Task: what connects a model and data. It says which fields are targets, how the objective is built, which metrics an evaluation gives
// and how a prediction is shown. A kind of problem is one file of this room and one row of tasks.cpp.

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

enum class TaskMode : uint8_t { kTrain, kEvaluate, kPredict };

/// A metric of a task.
struct MetricInfo {
  std::string_view name;
  std::string_view unit = "";  ///< "%" or nothing.
  bool larger_is_better = false;
  bool by_default = true;  ///< Given where the recipe says `metrics: auto`.
  bool ranks = false;      ///< Ranks checkpoints where the recipe names no metric; of each task at most one.
};

/// Metrics that sums in the graph cannot express. One evaluation each.
class Collector {
 public:
  virtual ~Collector() = default;
  /// The results of one batch, by name (TaskCapture::result); the first `batch.valid` rows count.
  virtual void add(const std::map<std::string, Tensor>& results, const Batch& batch) = 0;
  /// Adds its metrics to those of the sums. Throws Error (kNumeric) where nothing was counted.
  virtual void finish(MetricValues& values) const = 0;
};

/// What a presenter may need besides the results.
struct PresentContext {
  std::vector<std::string> categories;  ///< Names of the classes; empty where they are not known.
  int64_t top = 5;                      ///< Classes shown, where a sample has one of them.
  double min_score = 0;                 ///< Classes of a lower score are left out.
  double threshold = 0.5;               ///< Least probability of a label, where a sample may have several.

  /// The name of a class, or its number.
  std::string label(int64_t index) const;
};

/// The image that a prediction is drawn on: the sample as it was read.
struct Canvas {
  const Image& image;
  std::optional<PixelGrid> seen;  ///< The pixels that the model took, in the image's coordinates; nullopt: unknown (Pipeline::grid).
};

/// One sample's results as people and programs read them.
struct Presentation {
  std::string json;                            ///< A JSON object; galley-predict puts `file` before its keys.
  std::vector<std::vector<std::string>> rows;  ///< Of a table with Presenter::columns().
  std::vector<std::string> lines;              ///< Text to be drawn above the image.
  std::optional<Image> overlay;                ///< Drawn instead of the image.
  std::string mask_png;                        ///< A PNG file; its path becomes the key `mask` of the JSON, null where it is not written.
};

class Presenter {
 public:
  virtual ~Presenter() = default;
  /// Columns of the table, after `file`.
  virtual std::vector<std::string> columns() const = 0;
  /// `results`: one sample's rows by name, [1,...]. `canvas`: null where nothing is drawn. Throws Error (kNumeric) where a result is not
  /// finite, (kRecipe) where results have no place on the canvas; `sample` is for the message.
  virtual Presentation present(const std::map<std::string, Tensor>& results, const std::string& sample, const Canvas* canvas) const = 0;
};

/// The model that a task is made for.
struct TaskModel {
  ModelInfo info;
  TensorType output;  ///< The main result for one sample, [1,...].
  Component loss;     ///< The recipe's; empty: the task's own.
};

class Task {
 public:
  virtual ~Task() = default;
  /// "classification"
  virtual std::string_view name() const = 0;
  /// The fields of samples that the objective and the metrics compare with; the model's inputs come on top. With their `classes`.
  virtual std::vector<FieldType> targets() const = 0;
  /// Captures the model and, where the mode has them, loss, sums and results.
  virtual void capture(TaskMode mode, TaskCapture& capture) const = 0;
  virtual std::span<const MetricInfo> metrics() const = 0;
  /// For the metrics of these names; null where sums are enough.
  virtual std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const {
    return static_cast<void>(metrics), nullptr;
  }
  /// Null where results of this shape are written as tensors only.
  virtual std::unique_ptr<Presenter> presenter(const PresentContext& context) const { return static_cast<void>(context), nullptr; }
  /// Tokens of a sample in batches of that input, for durations and rates; 0: samples are not text.
  virtual int64_t tokens(const TensorType& input) const { return static_cast<void>(input), 0; }
  /// What a sample is decided as, from the result "scores" [1 or N,...]; none where the task decides nothing. For comparisons of two
  /// models.
  virtual std::vector<int64_t> decisions(const Tensor& scores) const { return static_cast<void>(scores), std::vector<int64_t>(); }

  /// Classes of the targets, 0 where they have none.
  int64_t classes() const;
};

/// Base of the options of a task: the recipe's section `task`.
class TaskOptions : public Options {
 public:
  /// Throws Error (exit 3) where the model's output, or the loss, does not fit the task.
  virtual std::unique_ptr<Task> make(const TaskModel& model) const = 0;
  virtual std::span<const MetricInfo> metrics() const = 0;
};

/// The tasks that a recipe may name.
ComponentKinds tasks();
/// The task of a recipe: `task.type` "auto": what the model and the loss say, null where they say nothing; an empty component: null,
/// results are tensors only. Throws what TaskOptions::make throws.
std::unique_ptr<Task> make_task(const Component& task, const TaskModel& model);

/// Metrics of a task by their names: `names` of the recipe, or {"auto"}. Loss is always there, first. Throws Error (exit 3), with the
/// nearest name, for one that the task does not give.
std::vector<std::string> metric_names(const Task& task, const std::vector<std::string>& names);
/// What any task says of a metric; a prefix ("ema/") does not matter. Null where no task has it.
const MetricInfo* find_metric_info(std::string_view name);
/// Whether a larger value of the metric is better; false where no task has it.
bool larger_is_better(std::string_view metric);
/// "91.20 %", "0.3100": a value as people read it.
std::string metric_text(std::string_view metric, double value);

}  // namespace galley
