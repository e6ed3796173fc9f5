// Laws: exact match and F1 of answers are SQuAD's, and the best spans over windows those of all spans of the context, against an
// independent program (tests/golden/tasks/answers.json, made by make_answers.py beside it); an evaluation counts questions, not windows.
#include "libcore/data/answers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/error.h"
#include "libcore/nn/encoder.h"
#include "libcore/nn/loss.h"
#include "libcore/tasks/answers.h"
#include "libcore/tasks/capture.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/source_collector.h"
#include "tests/nn/set_option.h"

namespace galley {
namespace {

nlohmann::json golden() {
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/tasks/answers.json");
  EXPECT_TRUE(file);
  return nlohmann::json::parse(file);
}

TEST(Answers, MetricsAreThoseOfSquad) {
  const nlohmann::json all = golden()["metrics"];
  ASSERT_GE(all.size(), 80u);
  for (const nlohmann::json& row : all) {
    const std::string prediction = row["prediction"];
    const auto answers = row["answers"].get<std::vector<std::string>>();
    EXPECT_EQ(normalized_answer(prediction), row["normalized"]) << prediction;
    EXPECT_EQ(exact_match(prediction, answers), row["exact"] == 1) << row;
    EXPECT_NEAR(answer_f1(prediction, answers), row["f1"].get<double>(), 1e-12) << row;
  }
  // A word counts as often as the answer has it: precision 2/3, recall 1.
  EXPECT_NEAR(answer_f1("red red fox", std::vector<std::string>{"red fox"}), 0.8, 1e-12);
}

TEST(Answers, BestSpansAreThoseOfAllWindows) {
  const nlohmann::json all = golden()["spans"];
  ASSERT_GE(all.size(), 5u);
  for (const nlohmann::json& question : all) {
    BestSpans best(question["longest"], question["no_answer"]);
    for (const nlohmann::json& window : question["windows"]) {
      const auto start = window["start"].get<std::vector<float>>(), end = window["end"].get<std::vector<float>>();
      best.add(start.data(), end.data(), window["first"], window["bytes"].get<std::vector<std::pair<uint32_t, uint32_t>>>());
    }
    const std::vector<AnswerSpan> got = best.result();
    const nlohmann::json& expected = question["spans"];
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      // Logits are float32 here: scores of 2 digits differ by up to 1e-6, so equal ones may come in another order.
      EXPECT_NEAR(got[i].score, expected[i]["score"].get<double>(), 1e-5) << i;
      EXPECT_NEAR(got[i].probability, expected[i]["probability"].get<double>(), 1e-5) << i;
      const bool unique = std::count_if(expected.begin(), expected.end(), [&](const nlohmann::json& other) {
                            return std::abs(other["score"].get<double>() - got[i].score) < 1e-4;
                          }) == 1;
      if (!unique) continue;
      EXPECT_EQ(got[i].begin, expected[i]["begin"]) << i;
      EXPECT_EQ(got[i].end, expected[i]["end"]) << i;
    }
  }
}

// Windows share tokens: a span counts once, with its best score.
TEST(Answers, ASpanOfTwoWindowsCountsOnce) {
  BestSpans best(2, false);
  const std::vector<std::pair<uint32_t, uint32_t>> first{{0, 3}, {4, 7}}, second{{4, 7}, {8, 11}};
  best.add(std::vector<float>{0, 1, 2}.data(), std::vector<float>{0, 1, 4}.data(), 1, first);
  best.add(std::vector<float>{0, 3, 0}.data(), std::vector<float>{0, 5, 0}.data(), 1, second);
  std::vector<std::tuple<uint32_t, uint32_t, double>> got;
  for (const AnswerSpan& span : best.result()) got.emplace_back(span.begin, span.end, span.score);
  EXPECT_EQ(got, (std::vector<std::tuple<uint32_t, uint32_t, double>>{{4, 7, 8}, {0, 7, 5}, {4, 11, 3}, {0, 3, 2}, {8, 11, 0}}));
}

/// -log softmax(logits)[target], by its definition.
double entropy(const double* logits, int64_t count, int64_t target) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[i] - logits[target]);
  return std::log(sum);
}

// The loss of training and of evaluation is the mean of that of the first and of the last token.
TEST(Answers, TheLossIsTheMeanOfBothEnds) {
  constexpr int64_t kTokens = 4;
  Component model = default_model("bert");
  for (const auto& [key, value] : std::map<std::string, double>{{"vocab_size", 9},
                                                                {"hidden_size", 4},
                                                                {"num_hidden_layers", 1},
                                                                {"num_attention_heads", 2},
                                                                {"intermediate_size", 6},
                                                                {"max_position_embeddings", 8},
                                                                {"hidden_dropout_prob", 0},
                                                                {"attention_probs_dropout_prob", 0},
                                                                {"head", static_cast<double>(EncoderHead::kQuestionAnswering)}}) {
    Setter setter(key, {value});
    model.params->options(setter);
    ASSERT_TRUE(setter.found) << key;
  }
  const ModelInfo info = model_info(model);
  const std::unique_ptr<Task> task =
      QuestionAnsweringTask().make({.info = info, .output = {.shape = {2, kTokens}}, .loss = make_loss("cross_entropy")});
  const TensorType ids{.dtype = DType::kI64, .shape = {2, kTokens}}, place{.dtype = DType::kI64, .shape = {2}};
  const std::map<std::string, TensorType> fields{{"input_ids", ids}, {"start_positions", place}, {"end_positions", place}};
  std::map<std::string, RefArray> feeds{
      {"input_ids", {ids.shape, {2, 5, 8, 3, 6, 3, 5, 2}}}, {"start_positions", {{2}, {1, 0}}}, {"end_positions", {{2}, {3, 2}}}};
  double expected = 0;
  for (const TaskMode mode : {TaskMode::kEvaluate, TaskMode::kTrain}) {
    Graph graph;
    TaskCapture capture(graph, model, info, fields, {.mode = mode == TaskMode::kTrain ? Mode::kTraining : Mode::kEvaluation});
    task->capture(mode, capture);
    capture.finish();
    for (const ParameterSpec& spec : capture.take_parameters()) {
      RefArray& values = feeds[spec.name] = {spec.type.shape, {}};
      for (int64_t i = 0; i < spec.type.elements(); ++i) values.v.push_back(0.5 * std::sin(static_cast<double>(i + 3)));
    }
    const auto values = interpret(graph, feeds);
    if (mode == TaskMode::kTrain) {
      EXPECT_NEAR(values.at(graph.find_output("loss")).v[0], expected, 1e-12);
      continue;
    }
    const RefArray &start = values.at(graph.find_output("scores")), &end = values.at(graph.find_output("end_scores")),
                   &losses = values.at(graph.find_output("sum.loss"));
    for (int64_t n = 0; n < 2; ++n) {
      const double loss =
          (entropy(start.v.data() + n * kTokens, kTokens, n == 0 ? 1 : 0) + entropy(end.v.data() + n * kTokens, kTokens, n == 0 ? 3 : 2)) /
          2;
      EXPECT_NEAR(losses.v[static_cast<size_t>(n)], loss, 1e-12);
      expected += loss / 2;
    }
  }
}

/// Two questions, the first with two windows.
class TwoQuestions : public AnswerSource {
 public:
  TwoQuestions() {
    const auto context = std::make_shared<const std::string>("the red fox ran");
    questions_ = {{.question = "who", .context = context, .answers = {"red fox"}, .begin = 4, .end = 11, .name = "q0"},
                  {.question = "why", .context = context, .answers = {}, .name = "q1"}};
  }
  int64_t size() const override { return 3; }
  std::vector<FieldType> fields() const override { return {}; }
  Sample read(int64_t) const override { return {}; }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t) const override { return ""; }
  std::string describe() const override { return ""; }
  const Question& question(int64_t number) const override { return questions_[static_cast<size_t>(number)]; }
  AnswerWindow window(int64_t index) const override {
    if (index == 0) return {.question = 0, .first = 1, .bytes = {{0, 3}, {4, 7}}};
    if (index == 1) return {.question = 0, .first = 1, .bytes = {{4, 7}, {8, 11}, {12, 15}}};
    return {.question = 1, .first = 1, .bytes = {{0, 3}, {4, 7}, {8, 11}, {12, 15}}};
  }

 private:
  std::vector<Question> questions_;
};

TEST(Answers, EvaluationsCountQuestions) {
  const TwoQuestions source;
  QuestionAnsweringTask options;
  const auto evaluate = [&](bool no_answer) {
    options.no_answer = no_answer;
    const std::unique_ptr<Task> task = options.make({.info = {.output = ModelOutput::kSpans}, .output = {.shape = {1, 5}}, .loss = {}});
    const std::unique_ptr<Collector> collector = task->collector({"exact_match", "f1"});
    dynamic_cast<SourceCollector&>(*collector).begin(source);
    Batch batch;
    batch.valid = 2;
    batch.indices = {2, 1};  // the order of windows does not matter
    const Tensor start = Tensor::of({2, 5}, {3, 0, 1, 0, 0, 0, 5, 0, 0, 9}), end = Tensor::of({2, 5}, {3, 0, 0, 2, 0, 0, 0, 5, 0, 9});
    collector->add({{"scores", start}, {"end_scores", end}}, batch);
    batch.valid = 1;
    batch.indices = {0};
    collector->add({{"scores", Tensor::of({2, 5}, {0, 4, 0, 0, 0, 9, 9, 9, 9, 9})},
                    {"end_scores", Tensor::of({2, 5}, {0, 4, 0, 0, 0, 9, 9, 9, 9, 9})}},
                   batch);
    MetricValues values;
    collector->finish(values);
    return values;
  };
  // Question 0: "red fox" (10) beats "the" (8); padding (9 + 9) does not count. Question 1: "red fox" (3), or none (6).
  EXPECT_EQ(evaluate(false), (MetricValues{{"exact_match", 50}, {"f1", 50}}));
  EXPECT_EQ(evaluate(true), (MetricValues{{"exact_match", 100}, {"f1", 100}}));
}

}  // namespace
}  // namespace galley
