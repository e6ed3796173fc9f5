// Question answering: the answer is a span of the input's tokens, given by its first and its last token.
#include <algorithm>
#include <map>

#include "libcore/data/answers.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/unary.h"
#include "libcore/tasks/answers.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/source_collector.h"

namespace galley {
namespace {

constexpr const char* kStart = "start_positions";
constexpr const char* kEnd = "end_positions";
constexpr MetricInfo kMetrics[] = {
    {.name = "loss"},
    {.name = "exact_match", .unit = "%", .larger_is_better = true},
    {.name = "f1", .unit = "%", .larger_is_better = true, .ranks = true},
};

struct Span {
  int64_t first = 0, last = 0;
  int64_t size() const { return last - first + 1; }
};

/// The span with the largest sum of both logits among those that do not end before they start.
Span best_span(const float* start, const float* end, int64_t length) {
  Span best;
  int64_t first = 0;  // the best start up to the present end
  float score = start[0] + end[0];
  for (int64_t last = 1; last < length; ++last) {
    if (start[last] > start[first]) first = last;
    if (start[first] + end[last] <= score) continue;
    score = start[first] + end[last];
    best = {first, last};
  }
  return best;
}

/// Of a source of questions: the texts of the best answers over all windows are compared with the right ones. Of other sources, tensors:
/// the positions of tokens are.
class SpanMetrics : public SourceCollector {
 public:
  SpanMetrics(std::vector<std::string> names, int64_t longest, bool no_answer)
      : names_(std::move(names)), longest_(longest), no_answer_(no_answer) {}

  void begin(const Source& source) override { source_ = dynamic_cast<const AnswerSource*>(&source); }
  void add(const std::map<std::string, Tensor>& results, const Batch& batch) override {
    const Tensor &start = results.at("scores"), &end = results.at("end_scores");
    const int64_t length = start.shape()[1];
    for (int64_t n = 0; source_ != nullptr && n < batch.valid; ++n) {
      const AnswerWindow window = source_->window(batch.indices[static_cast<size_t>(n)]);
      BestSpans& spans = questions_.try_emplace(window.question, longest_, no_answer_).first->second;
      spans.add(start.data_as<float>() + n * length, end.data_as<float>() + n * length, window.first, window.bytes);
    }
    if (source_ != nullptr) return;
    for (int64_t n = 0; n < batch.valid; ++n) {
      const Span truth{batch.at(kStart).data_as<int64_t>()[n], batch.at(kEnd).data_as<int64_t>()[n]};
      if (truth.first < 0 || truth.last < truth.first) continue;
      const Span found = best_span(start.data_as<float>() + n * length, end.data_as<float>() + n * length, length);
      ++spans_;
      exact_ += found.first == truth.first && found.last == truth.last;
      const int64_t common = std::max<int64_t>(0, std::min(found.last, truth.last) - std::max(found.first, truth.first) + 1);
      f1_ += 2 * static_cast<double>(common) / static_cast<double>(found.size() + truth.size());
    }
  }
  void finish(MetricValues& values) const override {
    double exact = static_cast<double>(exact_), f1 = f1_;
    for (const auto& [number, spans] : questions_) {
      const Question& question = source_->question(number);
      const AnswerSpan best = spans.result().front();
      const std::string answer = question.context->substr(best.begin, best.end - best.begin);
      exact += exact_match(answer, question.answers) ? 1 : 0;
      f1 += answer_f1(answer, question.answers);
    }
    const auto count = static_cast<double>(spans_ + std::ssize(questions_));
    if (count == 0) fail(ErrorCode::kNumeric, "no answer was evaluated");
    for (const std::string& name : names_) {
      if (name == "exact_match") values.emplace_back(name, 100.0 * exact / count);
      if (name == "f1") values.emplace_back(name, 100.0 * f1 / count);
    }
  }

 private:
  std::vector<std::string> names_;
  int64_t longest_;
  bool no_answer_;
  const AnswerSource* source_ = nullptr;
  std::map<int64_t, BestSpans> questions_;  // by their numbers
  int64_t spans_ = 0, exact_ = 0;           // of tensors
  double f1_ = 0;
};

class QuestionAnswering : public Task {
 public:
  QuestionAnswering(const TaskModel& model, const QuestionAnsweringTask& options)
      : longest_(options.max_answer_length), no_answer_(options.no_answer), loss_(task_loss("question_answering", model, "cross_entropy")) {
    GALLEY_CHECK(model.output.shape.rank() == 2 && model.info.output == ModelOutput::kSpans,
                 "the task question_answering needs a model with start_logits and end_logits [N,T], not ", model.output);
    tokens_ = model.output.shape[1];
  }
  std::string_view name() const override { return "question_answering"; }
  std::vector<FieldType> targets() const override {
    const auto position = [&](const char* name) {
      return FieldType{.name = name, .kind = FieldKind::kClass, .dtype = DType::kI64, .classes = tokens_};
    };
    return {position(kStart), position(kEnd)};
  }
  void capture(TaskMode mode, TaskCapture& capture) const override {
    if (mode == TaskMode::kPredict) return capture_results(capture);
    const Value start = capture.model().at(0).second, end = capture.model().at(1).second;
    const Value first = capture.field(kStart), last = capture.field(kEnd);
    if (mode == TaskMode::kTrain) {
      capture.loss("start", build_loss(capture.builder(), loss_, start, first), 0.5);
      capture.loss("end", build_loss(capture.builder(), loss_, end, last), 0.5);
      return;
    }
    const Value both =
        add(build_sample_losses(capture.builder(), loss_, start, first), build_sample_losses(capture.builder(), loss_, end, last));
    capture.sum("loss", affine(both, 0.5));
    capture.result("scores", start);  // what comparisons of two models read
    capture.result("end_scores", end);
  }
  std::span<const MetricInfo> metrics() const override { return kMetrics; }
  std::unique_ptr<Collector> collector(const std::vector<std::string>& metrics) const override {
    return std::make_unique<SpanMetrics>(metrics, longest_, no_answer_);
  }
  int64_t tokens(const TensorType& input) const override { return input.shape[1]; }

 private:
  int64_t longest_;
  bool no_answer_;
  Component loss_;
  int64_t tokens_ = 0;
};

}  // namespace

void QuestionAnsweringTask::options(OptionVisitor& visitor) {
  visitor.option({.name = "max_answer_length", .doc = "Longest answer of an evaluation or a prediction", .unit = "tokens", .min = 1},
                 max_answer_length);
  visitor.option({.name = "no_answer", .doc = "A context may have no answer: the first token of all stands for that"}, no_answer);
}

std::unique_ptr<Task> QuestionAnsweringTask::make(const TaskModel& model) const {
  return std::make_unique<QuestionAnswering>(model, *this);
}
std::span<const MetricInfo> QuestionAnsweringTask::metrics() const { return kMetrics; }

}  // namespace galley
