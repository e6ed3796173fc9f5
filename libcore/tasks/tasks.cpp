// The table of tasks, the choice of the task `auto`, and the names of metrics.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/tasks/kinds.h"

namespace galley {
namespace {

constexpr std::string_view kNoTask = "";

/// The task of a model and a loss; kNoTask if they do not determine one.
std::string_view auto_task(const TaskModel& model) {
  if (model.info.output == ModelOutput::kDetections) return "detection";
  if (model.info.output == ModelOutput::kFlow) return "optical_flow";
  if (model.loss.as<MseParams>() != nullptr) return "regression";
  if (model.loss.as<BceWithLogitsParams>() != nullptr) return "multi_label";
  if (model.info.output == ModelOutput::kMaskedTokens && !model.info.loss_weights.empty()) return "pre_training";
  if (model.info.output == ModelOutput::kTokens || model.info.output == ModelOutput::kMaskedTokens) return "language_modeling";
  if (model.info.output == ModelOutput::kTokenClasses) return "token_classification";
  if (model.info.output == ModelOutput::kSpans) return "question_answering";
  if (model.info.output == ModelOutput::kClasses) return "classification";
  if (model.info.output == ModelOutput::kPixelClasses) return "segmentation";
  if (!model.loss) return kNoTask;
  const int rank = model.output.shape.rank(), axis = class_axis(model.loss, model.output);
  if (rank == 3 && axis == 2) return "language_modeling";
  return rank > 2 ? "segmentation" : "classification";
}

/// "ema/top1" -> "top1".
std::string_view without_prefix(std::string_view metric) {
  const size_t slash = metric.rfind('/');
  return slash == std::string_view::npos ? metric : metric.substr(slash + 1);
}

}  // namespace

ComponentKinds tasks() {
  static constexpr std::array<ComponentKind, 10> kKinds{{
      {"classification", "one class per sample: outputs [N,classes], field label [N]", make_options<ClassificationTask>},
      {"regression", "numbers: outputs and field target of the same shape", make_options<RegressionTask>},
      {"multi_label", "any number of classes per sample: outputs [N,classes], field target [N,classes] of 0 and 1",
       make_options<MultiLabelTask>},
      {"language_modeling", "the next token at every position: outputs [N,T,vocabulary], field label [N,T]",
       make_options<LanguageModelingTask>},
      {"token_classification", "one class per token: outputs [N,T,classes], field label [N,T]", make_options<TokenClassificationTask>},
      {"question_answering", "a span of tokens: start_logits and end_logits [N,T], fields start_positions and end_positions [N]",
       make_options<QuestionAnsweringTask>},
      {"pre_training",
       "masked tokens and the next sentence: head pre_training of BERT and ALBERT, fields label [N,T] and next_sentence_label [N]",
       make_options<PreTrainingTask>},
      {"segmentation", "one class per pixel: outputs [N,classes,H,W], field label [N,H,W]", make_options<SegmentationTask>},
      {"detection", "boxes around objects, with their classes: a detector, fields boxes and labels", make_options<DetectionTask>},
      {"optical_flow", "how far each pixel moves between two images: a model of flows, field flow [N,3,H,W]",
       make_options<OpticalFlowTask>},
  }};
  return kKinds;
}

std::unique_ptr<Task> make_task(const Component& task, const TaskModel& model) {
  if (task) {
    const auto* options = task.as<TaskOptions>();
    GALLEY_ASSERT(options != nullptr, "not a task: ", task.type);
    return options->make(model);
  }
  if (task.type != "auto") return nullptr;
  const std::string_view type = auto_task(model);
  if (type == kNoTask) return nullptr;
  const auto kind = std::find_if(tasks().begin(), tasks().end(), [&](const ComponentKind& item) { return item.type == type; });
  GALLEY_ASSERT(kind != tasks().end());
  return dynamic_cast<const TaskOptions&>(*kind->make()).make(model);
}

std::string PresentContext::label(int64_t index) const {
  return index < static_cast<int64_t>(categories.size()) ? categories[static_cast<size_t>(index)] : std::to_string(index);
}

int64_t Task::classes() const {
  const std::vector<FieldType> fields = targets();
  const auto found = std::find_if(fields.begin(), fields.end(), [](const FieldType& type) { return type.classes > 0; });
  return found == fields.end() ? 0 : found->classes;
}

Component task_loss(std::string_view task, const TaskModel& model, std::string_view usual) {
  if (!model.loss) return make_loss(usual);
  if (model.loss.type != usual) {
    throw Error(ErrorCode::kRecipe, cat("the task ", task, " needs the loss ", usual, ", but the recipe has ", model.loss.type))
        .key("loss")
        .suggest(cat("write loss=", usual, ", or another task"));
  }
  return model.loss;
}

void check_finite_output(const Tensor& output, const std::string& sample) {
  for (int64_t i = 0; i < output.elements(); ++i) {
    const float value = output.data_as<float>()[i];
    if (std::isfinite(value)) continue;
    throw Error(ErrorCode::kNumeric, cat(sample, ": the model's output ", i, " is ", value))
        .suggest("check the weights with galley-weights verify");
  }
}

void capture_losses(TaskCapture& capture, const Component& loss, const std::string& target) {
  const NamedValues& results = capture.model();
  const Value wanted = capture.field(target);
  capture.loss(results.front().first, build_loss(capture.builder(), loss, results.front().second, wanted));
  for (const auto& [name, weight] : capture.info().loss_weights) {
    const auto found = std::find_if(results.begin(), results.end(), [&, &result = name](const auto& item) { return item.first == result; });
    GALLEY_ASSERT(found != results.end(), "the model has no result '", name, "' in training");
    capture.loss(name, build_loss(capture.builder(), loss, found->second, wanted), weight);
  }
}

std::vector<std::string> metric_names(const Task& task, const std::vector<std::string>& names) {
  const std::span<const MetricInfo> known = task.metrics();
  std::vector<std::string> wanted, all;
  for (const MetricInfo& metric : known) all.emplace_back(metric.name);
  if (names.empty() || names == std::vector<std::string>{"auto"}) {
    for (const MetricInfo& metric : known)
      if (metric.by_default) wanted.emplace_back(metric.name);
    return wanted;
  }
  for (const std::string& name : names) {
    if (std::find(all.begin(), all.end(), name) != all.end()) {
      wanted.push_back(name);
      continue;
    }
    const std::string near = nearest(name, all);
    std::string list;
    for (const std::string& item : all) list += (list.empty() ? "" : ", ") + item;
    if (find_metric_info(name) != nullptr)
      throw Error(ErrorCode::kRecipe, cat("metric '", name, "' is not a metric of the task ", task.name(), ", which has: ", list))
          .key("metrics");
    throw Error(ErrorCode::kRecipe,
                cat("unknown metric '", name, "' (known: ", list, ")", near.empty() ? "" : "; did you mean " + near + "?"))
        .key("metrics");
  }
  if (std::find(wanted.begin(), wanted.end(), "loss") == wanted.end()) wanted.insert(wanted.begin(), "loss");
  return wanted;
}

const MetricInfo* find_metric_info(std::string_view name) {
  static const std::vector<MetricInfo> all = [] {
    std::vector<MetricInfo> list;
    for (const ComponentKind& kind : tasks()) {
      const std::unique_ptr<Options> made = kind.make();
      for (const MetricInfo& metric : dynamic_cast<const TaskOptions&>(*made).metrics()) list.push_back(metric);
    }
    return list;
  }();
  const auto found =
      std::find_if(all.begin(), all.end(), [bare = without_prefix(name)](const MetricInfo& metric) { return metric.name == bare; });
  return found == all.end() ? nullptr : &*found;
}

bool larger_is_better(std::string_view metric) {
  const MetricInfo* info = find_metric_info(metric);
  return info != nullptr && info->larger_is_better;
}

std::string metric_text(std::string_view metric, double value) {
  if (std::isnan(value) && metric != "loss") return "-";  // e.g. of small objects, where there are none
  const MetricInfo* info = find_metric_info(metric);
  return info != nullptr && info->unit == "%" ? fixed(value, 2) + " %" : fixed(value, 4);
}

double find_metric(const MetricValues& values, std::string_view name) {
  for (const auto& [metric, value] : values) {
    if (metric == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace galley
