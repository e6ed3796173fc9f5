// Laws: exact match and F1 of answers are SQuAD's, and the best spans over windows those of all spans of the context, against an
// independent program (tests/golden/tasks/answers.json, made by make_answers.py beside it); an evaluation counts questions, not windows.
#include "libcore/data/answers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/tasks/answers.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/source_collector.h"

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
}

TEST(Answers, BestSpansAreThoseOfAllWindows) {
  for (const nlohmann::json& question : golden()["spans"]) {
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
