#include "libcore/tasks/token_task.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "libcore/tasks/confusion.h"
#include "libcore/tasks/count_collector.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/ranks.h"

namespace galley {
namespace {

constexpr std::string_view kLabel = "label";
constexpr std::string_view kTextSize = "text_size";  // characters and bytes of each label's token; absent where samples are tensors
/// Sums over the tokens whose label is not negative. Others are ignored.
class TokenMetrics : public CountCollector {
 public:
  explicit TokenMetrics(std::vector<std::string> names) : names_(std::move(names)) {
    for (const std::string& name : names_) {
      ranks_ |= name == "top1" || name == "top5";
      confuses_ |= name == "f1" || name == "mcc";
    }
  }

  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const Tensor& losses = results.at("losses");
    const Tensor scores = reads("scores") ? results.at("scores") : Tensor();
    const int64_t tokens = batch.valid * losses.shape()[1], classes = scores.defined() ? scores.shape()[-1] : 0;
    const int64_t* label = batch.at(std::string(kLabel)).data_as<int64_t>();
    const int32_t* size = batch.has(std::string(kTextSize)) ? batch.at(std::string(kTextSize)).data_as<int32_t>() : nullptr;
    if (confuses_) confusion_.resize(classes);
    for (int64_t n = 0; n < tokens; ++n) {
      if (label[n] < 0) continue;
      const float* row = scores.defined() ? scores.data_as<float>() + n * classes : nullptr;
      if (confuses_) confusion_.add(label[n], std::max_element(row, row + classes) - row);
      loss_ += static_cast<double>(losses.data_as<float>()[n]);
      ++tokens_;
      characters_ += size ? size[2 * n] : 1;
      bytes_ += size ? size[2 * n + 1] : 0;
      if (ranks_) counts_.add(row, classes, label[n]);
    }
  }
  bool reads(std::string_view result) const override { return result == "losses" || ranks_ || confuses_; }
  bool only_counts() const override { return !confuses_; }
  std::vector<double> counts() const override {
    return {loss_,
            static_cast<double>(tokens_),
            static_cast<double>(characters_),
            static_cast<double>(bytes_),
            static_cast<double>(counts_.top1),
            static_cast<double>(counts_.top5)};
  }
  void set_counts(std::span<const double> counts) override {
    loss_ = counts[0];
    tokens_ = std::llround(counts[1]);
    characters_ = std::llround(counts[2]);
    bytes_ = std::llround(counts[3]);
    counts_.top1 = std::llround(counts[4]);
    counts_.top5 = std::llround(counts[5]);
  }
  void finish(MetricValues& values) const override {
    if (tokens_ == 0) fail(ErrorCode::kNumeric, "no token was evaluated");
    const double count = static_cast<double>(tokens_), loss = loss_ / count;
    for (const std::string& name : names_) {
      if (name == "loss") {
        values.emplace_back(name, loss);
      } else if (name == "perplexity") {
        values.emplace_back(name, std::exp(loss));
      } else if (name == "bits_per_char") {
        values.emplace_back(name, bits_per(characters_, "characters"));
      } else if (name == "bits_per_byte") {
        values.emplace_back(name, bits_per(bytes_, "bytes"));
      } else if (name == "f1") {
        values.emplace_back(name, 100.0 * confusion_.f1());
      } else if (name == "mcc") {
        values.emplace_back(name, confusion_.mcc());
      } else {
        values.emplace_back(name, 100.0 * static_cast<double>(name == "top1" ? counts_.top1 : counts_.top5) / count);
      }
    }
  }

 private:
  double bits_per(int64_t units, std::string_view what) const {
    if (units > 0) return loss_ / std::numbers::ln2 / static_cast<double>(units);
    throw Error(ErrorCode::kRecipe, cat("the samples do not say how many ", what, " of text their tokens are"))
        .key("metrics")
        .suggest("a source of texts, or the metric perplexity");
  }

  std::vector<std::string> names_;
  bool ranks_ = false, confuses_ = false;
  Confusion confusion_;
  RankCounts counts_;
  double loss_ = 0;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;  // a token is one where samples have no text_size
  int64_t bytes_ = 0;
};

class TokenTask : public Task {
 public:
  TokenTask(std::string_view name, std::span<const MetricInfo> metrics, const TaskModel& model)
      : name_(name), metrics_(metrics), loss_(over_last_dimension(task_loss(name, model, "cross_entropy"))) {
    GALLEY_CHECK(model.output.shape.rank() == 3, "the task ", name, " needs outputs [N,T,",
                 name == "language_modeling" ? "vocabulary" : "classes", "], not ", model.output);
    if (!model.info.loss_weights.empty()) {
      throw Error(ErrorCode::kRecipe,
                  cat("the task ", name, " trains one result, but the model also has ", model.info.loss_weights[0].first))
          .key("task")
          .suggest("task: auto, or the head masked_lm");
    }
    positions_ = model.output.shape[1];
    vocabulary_ = model.output.shape[2];
  }
  std::string_view name() const override { return name_; }
  std::vector<FieldType> targets() const override {
    return {{.name = std::string(kLabel), .kind = FieldKind::kClass, .dtype = DType::kI64, .sample = {positions_}, .classes = vocabulary_}};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    if (mode == TaskMode::kTrain) return capture_losses(capture, loss_, std::string(kLabel));
    const Value logits = capture.model().front().second;
    capture.result("losses", build_element_losses(capture.builder(), loss_, logits, capture.field(std::string(kLabel))));
    capture.result("scores", logits);
  }
  std::span<const MetricInfo> metrics() const override { return metrics_; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<TokenMetrics>(metrics);
  }
  int64_t tokens(const TensorType& input) const override { return input.shape[1]; }

 private:
  std::string_view name_;
  std::span<const MetricInfo> metrics_;
  Component loss_;
  int64_t positions_ = 0, vocabulary_ = 0;
};

}  // namespace

std::unique_ptr<Task> make_token_task(std::string_view name, std::span<const MetricInfo> metrics, const TaskModel& model) {
  return std::make_unique<TokenTask>(name, metrics, model);
}

}  // namespace galley
