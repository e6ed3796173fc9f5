// Pre-training of BERT and ALBERT: masked tokens, and whether the second text follows the first (BERT) or both are in order (ALBERT).
#include <algorithm>
#include <cmath>

#include "libcore/tasks/count_collector.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/ranks.h"

namespace galley {
namespace {

constexpr const char* kLabel = "label";
constexpr const char* kNext = "next_sentence_label";
constexpr MetricInfo kMetrics[] = {
    {.name = "loss", .ranks = true},
    {.name = "masked_loss"},
    {.name = "perplexity"},
    {.name = "next_sentence", .unit = "%", .larger_is_better = true},
    {.name = "top1", .unit = "%", .larger_is_better = true, .by_default = false},
};

/// Sums over the tokens whose label is not negative, and over the pairs.
class PreTrainingMetrics : public CountCollector {
 public:
  explicit PreTrainingMetrics(std::vector<std::string> names) : names_(std::move(names)) {
    ranks_ = std::find(names_.begin(), names_.end(), "top1") != names_.end();
  }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const Tensor &losses = results.at("losses"), &next_losses = results.at("next_losses"), &next = results.at("next_scores");
    const Tensor scores = ranks_ ? results.at("scores") : Tensor();
    const int64_t* label = batch.at(kLabel).data_as<int64_t>();
    for (int64_t i = 0; i < batch.valid * losses.shape()[1]; ++i) {
      if (label[i] < 0) continue;
      masked_loss_ += static_cast<double>(losses.data_as<float>()[i]);
      ++tokens_;
      if (ranks_) counts_.add(scores.data_as<float>() + i * scores.shape()[2], scores.shape()[2], label[i]);
    }
    for (int64_t n = 0; n < batch.valid; ++n) {
      const float* row = next.data_as<float>() + 2 * n;
      next_loss_ += static_cast<double>(next_losses.data_as<float>()[n]);
      right_ += (row[1] > row[0] ? 1 : 0) == batch.at(kNext).data_as<int64_t>()[n];
    }
    pairs_ += batch.valid;
  }
  bool reads(std::string_view result) const override { return result != "scores" || ranks_; }
  bool only_counts() const override { return true; }
  std::vector<double> counts() const override {
    return {masked_loss_, static_cast<double>(tokens_), static_cast<double>(counts_.top1),
            next_loss_,   static_cast<double>(right_),  static_cast<double>(pairs_)};
  }
  void set_counts(std::span<const double> counts) override {
    masked_loss_ = counts[0];
    tokens_ = std::llround(counts[1]);
    counts_.top1 = std::llround(counts[2]);
    next_loss_ = counts[3];
    right_ = std::llround(counts[4]);
    pairs_ = std::llround(counts[5]);
  }
  void finish(MetricValues& values) const override {
    if (tokens_ == 0) fail(ErrorCode::kNumeric, "no masked token was evaluated");
    const auto tokens = static_cast<double>(tokens_), pairs = static_cast<double>(pairs_);
    const double masked = masked_loss_ / tokens;
    for (const std::string& name : names_) {
      if (name == "loss") values.emplace_back(name, masked + next_loss_ / pairs);
      if (name == "masked_loss") values.emplace_back(name, masked);
      if (name == "perplexity") values.emplace_back(name, std::exp(masked));
      if (name == "next_sentence") values.emplace_back(name, 100.0 * static_cast<double>(right_) / pairs);
      if (name == "top1") values.emplace_back(name, 100.0 * static_cast<double>(counts_.top1) / tokens);
    }
  }

 private:
  std::vector<std::string> names_;
  bool ranks_ = false;
  RankCounts counts_;
  double masked_loss_ = 0, next_loss_ = 0;
  int64_t tokens_ = 0, right_ = 0, pairs_ = 0;
};

class PreTraining : public Task {
 public:
  explicit PreTraining(const TaskModel& model) : loss_(task_loss("pre_training", model, "cross_entropy")) {
    if (model.info.output != ModelOutput::kMaskedTokens || model.output.shape.rank() != 3) refuse();
    positions_ = model.output.shape[1];
    vocabulary_ = model.output.shape[2];
  }
  std::string_view name() const override { return "pre_training"; }
  std::vector<FieldType> targets() const override {
    return {{.name = kLabel, .kind = FieldKind::kClass, .dtype = DType::kI64, .sample = {positions_}, .classes = vocabulary_},
            {.name = kNext, .kind = FieldKind::kClass, .dtype = DType::kI64, .classes = 2}};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    if (capture.model().size() != 2) refuse();
    const Value tokens = capture.model().at(0).second, next = capture.model().at(1).second;
    const Value label = capture.field(kLabel), follows = capture.field(kNext);
    const Component by_token = over_last_dimension(loss_);
    if (mode == TaskMode::kTrain) {
      capture.loss("masked", build_loss(capture.builder(), by_token, tokens, label));
      capture.loss("next_sentence", build_loss(capture.builder(), loss_, next, follows));
      return;
    }
    capture.result("losses", build_element_losses(capture.builder(), by_token, tokens, label));
    capture.result("next_losses", build_sample_losses(capture.builder(), loss_, next, follows));
    capture.result("scores", tokens);
    capture.result("next_scores", next);
  }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<PreTrainingMetrics>(metrics);
  }
  int64_t tokens(const TensorType& input) const override { return input.shape[1]; }

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::kRecipe,
                "the task pre_training needs a model with prediction_logits and seq_relationship_logits, or sop_logits of ALBERT")
        .key("task")
        .suggest("model: {type: bert, head: pre_training}");
  }

  Component loss_;
  int64_t positions_ = 0, vocabulary_ = 0;
};

}  // namespace

std::unique_ptr<Task> PreTrainingTask::make(const TaskModel& model) const { return std::make_unique<PreTraining>(model); }
std::span<const MetricInfo> PreTrainingTask::metrics() const { return kMetrics; }

}  // namespace galley
