// Laws: metrics are sums over samples for any batches, ranks count strictly higher scores, unknown names are errors with a near name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "libcore/nn/loss.h"
#include "libcore/tasks/metric_sums.h"

namespace galley {
namespace {

std::unique_ptr<Task> task_of(const std::string& loss, Shape output, ModelOutput kind = ModelOutput::kOther) {
  Component automatic;
  automatic.type = "auto";
  return make_task(
      automatic,
      {.info = {.family = "test", .output = kind}, .output = {.shape = output}, .loss = loss.empty() ? Component() : make_loss(loss)});
}

Tensor labels_of(const Shape& shape, const std::vector<int64_t>& values) {
  Tensor labels(DType::kI64, shape);
  std::copy(values.begin(), values.end(), labels.data_as<int64_t>());
  return labels;
}

/// The metrics of a task over the given batches.
class Sums {
 public:
  Sums(const std::vector<std::string>& names, std::unique_ptr<Task> task, bool tokens = false)
      : task_(std::move(task)),
        sums_(*task_, metric_names(*task_, names),
              tokens ? CapturedResults{.results = {"losses", "scores"}}
                     : CapturedResults{.sums = {{"loss", "losses"}}, .results = {"scores"}}) {}
  void add(const Tensor& losses, const Tensor& scores, const Tensor& labels, int64_t valid, const Tensor& sizes = {}) {
    Batch batch;
    batch.fields.emplace("label", labels);
    if (sizes.defined()) batch.fields.emplace("text_size", sizes);
    batch.valid = valid;
    sums_.add([&](const std::string& name) { return name == "losses" ? losses : scores; }, batch);
  }
  MetricValues values() const { return sums_.values(); }
  int64_t samples() const { return sums_.samples(); }

 private:
  std::unique_ptr<Task> task_;
  MetricSums sums_;
};

TEST(Metrics, CountsHandMadeRanks) {
  Sums metrics({}, task_of("cross_entropy", {1, 6}));
  // Sample 0: class 2 is best and true. Sample 1: the true class 0 has rank 5 (six classes): neither top1 nor top5.
  // Sample 2: the true class 3 is second.
  metrics.add(Tensor::of({3}, {0.5f, 2.0f, 1.0f}), Tensor::of({3, 6}, {0, 1, 9, 2, 3, 4, -1, 5, 4, 3, 2, 1, 7, 1, 2, 6, 3, 0}),
              labels_of({3}, {2, 0, 3}), 3);
  const MetricValues values = metrics.values();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_DOUBLE_EQ(find_metric(values, "loss"), 3.5 / 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "top1"), 100.0 / 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "top5"), 200.0 / 3);
  EXPECT_EQ(metric_names(*task_of("cross_entropy", {1, 5}), {"auto"}), (std::vector<std::string>{"loss", "top1"}))
      << "top5 of five classes says nothing";
}

/// Metrics of numbers or labels, the same in one batch and in two, the last of which has rows that fill it up.
void expect_golden(const std::string& part, int64_t rows, int64_t width, const std::string& loss, const std::vector<std::string>& names) {
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(GALLEY_SOURCE_DIR "/tests/golden/tasks/numbers.json"))[part];
  const auto output = golden["output"].get<std::vector<float>>(), target = golden["target"].get<std::vector<float>>();
  for (const int64_t first : {rows, rows / 3}) {
    SCOPED_TRACE(first);
    const auto task = task_of(loss, {1, width});
    MetricSums sums(*task, metric_names(*task, names), CapturedResults{.sums = {{"loss", "losses"}}, .results = {"scores"}});
    for (int64_t begin = 0; begin < rows; begin += begin == 0 ? first : rows) {
      const int64_t valid = begin == 0 ? first : rows - first, size = valid + 2;
      std::vector<float> scores(static_cast<size_t>(size * width), 9), wanted(scores.size(), 1);
      std::copy_n(output.begin() + begin * width, valid * width, scores.begin());
      std::copy_n(target.begin() + begin * width, valid * width, wanted.begin());
      Batch batch;
      batch.fields.emplace("target", Tensor::of({size, width}, wanted));
      batch.valid = valid;
      batch.indices.resize(static_cast<size_t>(size));
      const Tensor losses(DType::kF32, {size});
      const Tensor results = Tensor::of({size, width}, scores);
      sums.add([&](const std::string& name) { return name == "losses" ? losses : results; }, batch);
    }
    EXPECT_EQ(sums.only_sums(), loss == "bce_with_logits" && names.size() == 3);
    for (const std::string& name : names) EXPECT_NEAR(find_metric(sums.values(), name), golden[name].get<double>(), 1e-5) << name;
  }
}

// SciPy and scikit-learn, whose results are of float64; the outputs here are rounded to float.
TEST(Metrics, NumbersAndLabelsAreThoseOfScikitLearn) {
  expect_golden("numbers", 60, 2, "mse", {"mae", "pearson", "spearman"});
  expect_golden("labels", 50, 5, "bce_with_logits", {"f1_micro", "f1_macro", "map", "exact_match"});
  expect_golden("labels", 50, 5, "bce_with_logits", {"f1_micro", "f1_macro", "exact_match"});
  EXPECT_EQ(metric_names(*task_of("mse", {1, 2}), {"auto"}), (std::vector<std::string>{"loss"}));
  EXPECT_EQ(metric_names(*task_of("bce_with_logits", {1, 5}), {"auto"}), (std::vector<std::string>{"loss", "f1_micro", "f1_macro"}));
  EXPECT_EQ(metric_names(*task_of("bce_with_logits", {1, 5, 4}), {"auto"}), (std::vector<std::string>{"loss"}));
}

TEST(Metrics, ConstantNumbersHaveNoCorrelation) {
  const auto task = task_of("mse", {1, 1});
  MetricSums sums(*task, metric_names(*task, {"pearson", "spearman"}),
                  CapturedResults{.sums = {{"loss", "losses"}}, .results = {"scores"}});
  Batch batch;
  batch.fields.emplace("target", Tensor::of({2, 1}, {1, 2}));
  batch.valid = 2;
  batch.indices = {0, 1};
  const Tensor zeros = Tensor::of({2, 1}, {0, 0});
  sums.add([&](const std::string&) { return zeros; }, batch);
  EXPECT_EQ(find_metric(sums.values(), "pearson"), 0);
  EXPECT_EQ(find_metric(sums.values(), "spearman"), 0);
}

// Two pairs of two tokens, of which one token is masked in the first and both in the second.
TEST(Metrics, PreTrainingIsTheSumOfBothLosses) {
  Component automatic;
  automatic.type = "auto";
  const auto task = make_task(automatic, {.info = {.family = "test", .output = ModelOutput::kMaskedTokens, .loss_weights = {{"next", 1}}},
                                          .output = {.shape = {1, 2, 3}},
                                          .loss = {}});
  ASSERT_EQ(task->name(), "pre_training");
  const ComponentKinds kinds = tasks();
  const auto other = std::find_if(kinds.begin(), kinds.end(), [](const ComponentKind& item) { return item.type == "language_modeling"; });
  ASSERT_NE(other, kinds.end());
  const auto options = other->make();
  EXPECT_THROW(dynamic_cast<const TaskOptions&>(*options).make(
                   {.info = {.family = "test", .output = ModelOutput::kMaskedTokens, .loss_weights = {{"next", 1}}},
                    .output = {.shape = {1, 2, 3}},
                    .loss = {}}),
               Error);
  MetricSums sums(*task, metric_names(*task, {"masked_loss", "perplexity", "next_sentence", "top1"}),
                  CapturedResults{.results = {"losses", "next_losses", "scores", "next_scores"}});
  EXPECT_TRUE(sums.only_sums());
  const std::map<std::string, Tensor> results{{"losses", Tensor::of({2, 2}, {1, 50, 2, 3})},
                                              {"next_losses", Tensor::of({2}, {0.5f, 1.5f})},
                                              {"scores", Tensor::of({2, 2, 3}, {0, 1, 0, 9, 9, 9, 2, 1, 0, 0, 0, 5})},
                                              {"next_scores", Tensor::of({2, 2}, {0, 1, 0, 1})}};
  Batch batch;
  batch.fields.emplace("label", labels_of({2, 2}, {1, -100, 0, 1}));
  batch.fields.emplace("next_sentence_label", labels_of({2}, {1, 0}));
  batch.valid = 2;
  sums.add([&](const std::string& name) { return results.at(name); }, batch);
  EXPECT_DOUBLE_EQ(find_metric(sums.values(), "loss"), 2 + 1);
  EXPECT_DOUBLE_EQ(find_metric(sums.values(), "masked_loss"), 2);
  EXPECT_DOUBLE_EQ(find_metric(sums.values(), "perplexity"), std::exp(2.0));
  EXPECT_DOUBLE_EQ(find_metric(sums.values(), "next_sentence"), 50);
  EXPECT_DOUBLE_EQ(find_metric(sums.values(), "top1"), 200.0 / 3);
}

TEST(Metrics, F1AndMatthewsOfTwoClasses) {
  // Truth 1 1 0 0 1, predicted 1 0 0 1 1: two true positives, one false, one missed, one true negative.
  Sums metrics({"f1", "mcc", "top1"}, task_of("cross_entropy", {1, 2}));
  metrics.add(Tensor::of({3}, {0, 0, 0}), Tensor::of({3, 2}, {0, 1, 1, 0, 1, 0}), labels_of({3}, {1, 1, 0}), 3);
  metrics.add(Tensor::of({3}, {0, 0, 0}), Tensor::of({3, 2}, {0, 1, 0, 1, 9, 0}), labels_of({3}, {0, 1, -100}), 2);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "f1"), 100 * 4.0 / 6);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "mcc"), 1.0 / 6);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "top1"), 60);
}

TEST(Metrics, F1AndMatthewsOfSeveralClasses) {
  // Truth 0 1 2 2 1, predicted 0 2 2 1 1, of four classes: F1 1, 1/2, 1/2; class 3 never occurs. Matthews (15 - 9) / 16.
  const Tensor scores = Tensor::of({5, 4}, {1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0});
  Sums metrics({"f1", "mcc"}, task_of("cross_entropy", {1, 4}));
  metrics.add(Tensor::of({5}, {0, 0, 0, 0, 0}), scores, labels_of({5}, {0, 1, 2, 2, 1}), 5);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "f1"), 100 * 2.0 / 3);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "mcc"), 6.0 / 16);
  Sums constant({"f1", "mcc"}, task_of("cross_entropy", {1, 4}));
  constant.add(Tensor::of({5}, {0, 0, 0, 0, 0}), scores, labels_of({5}, {2, 2, 2, 2, 2}), 5);
  EXPECT_DOUBLE_EQ(find_metric(constant.values(), "mcc"), 0) << "the truth is constant";
}

TEST(Metrics, ClassesOfTokensCountWhereTheyHaveOne) {
  // The same as above with one class fewer, in two samples of three tokens, of which the last has no class.
  Sums metrics({}, task_of("", {1, 3, 3}, ModelOutput::kTokenClasses), /*tokens=*/true);
  metrics.add(Tensor::of({2, 3}, {1, 2, 3, 4, 5, 100}), Tensor::of({2, 3, 3}, {1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0}),
              labels_of({2, 3}, {0, 1, 2, 2, 1, -100}), 2);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "loss"), 3);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "top1"), 60);
  EXPECT_DOUBLE_EQ(find_metric(metrics.values(), "f1"), 100 * 2.0 / 3);
}

TEST(Metrics, AnswersAreSpansThatDoNotEndBeforeTheyStart) {
  const std::unique_ptr<Task> task = task_of("", {1, 5}, ModelOutput::kSpans);
  const std::unique_ptr<Collector> collector = task->collector({"exact_match", "f1"});
  Batch batch;
  // Sample 0: 1..2 is found. 1: the best start is 4, but no end after it is good: 1..3, of which 2..4 has two in common. 2: 0..0 and 3..3
  // have nothing in common. 3: has no answer. The last row is padding.
  batch.fields.emplace("start_positions", labels_of({5}, {1, 2, 3, -100, 0}));
  batch.fields.emplace("end_positions", labels_of({5}, {2, 4, 3, -100, 0}));
  batch.valid = 4;
  const Tensor start = Tensor::of({5, 5}, {0, 5, 1, 1, 1, 0, 5, 0, 0, 6, 7, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0});
  const Tensor end = Tensor::of({5, 5}, {9, 0, 5, 1, 1, 0, 0, 0, 7, 1, 7, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0});
  collector->add({{"scores", start}, {"end_scores", end}}, batch);
  MetricValues values;
  collector->finish(values);
  EXPECT_DOUBLE_EQ(find_metric(values, "exact_match"), 100.0 / 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "f1"), 100 * (1 + 2 * 2.0 / 6 + 0) / 3);
}

TEST(Metrics, PaddedSamplesAndBatchSizesDoNotCount) {
  Sums whole({"loss", "top1"}, task_of("cross_entropy", {1, 2})), cut({"loss", "top1"}, task_of("cross_entropy", {1, 2}));
  const Tensor losses = Tensor::of({4}, {1, 2, 3, 1e9f});
  const Tensor scores = Tensor::of({4, 2}, {1, 0, 0, 1, 1, 0, 1, 0});
  whole.add(losses, scores, labels_of({4}, {0, 0, 0, 0}), 3);
  cut.add(losses, scores, labels_of({4}, {0, 0, 0, 0}), 1);
  cut.add(Tensor::of({2}, {2, 3}), Tensor::of({2, 2}, {0, 1, 1, 0}), labels_of({2}, {0, 0}), 2);
  EXPECT_EQ(whole.values(), cut.values());
  EXPECT_EQ(whole.samples(), 3);
  EXPECT_NEAR(find_metric(whole.values(), "top1"), 66.667, 1e-3);
}

TEST(Metrics, ANaNScoreIsNeverRight) {
  Sums metrics({"top1"}, task_of("cross_entropy", {1, 2}));
  metrics.add(Tensor::of({1}, {0}), Tensor::of({1, 2}, {NAN, NAN}), labels_of({1}, {0}), 1);
  EXPECT_EQ(find_metric(metrics.values(), "top1"), 0);
}

TEST(Metrics, MixedLabelsCountForTheLossAlone) {
  Sums metrics({}, task_of("cross_entropy", {1, 2}));
  metrics.add(Tensor::of({1}, {2}), Tensor::of({1, 2}, {1, 0}), Tensor::of({1, 2}, {0.5f, 0.5f}), 1);
  EXPECT_EQ(metrics.values(), (MetricValues{{"loss", 2}, {"top1", 0}}));
}

TEST(Metrics, TokensCountNotSamples) {
  const auto model = [] { return task_of("", {1, 3, 2}, ModelOutput::kTokens); };
  Sums metrics({}, model(), true);
  // Three tokens in a batch of two samples, the last of which is padding; then one token. Losses of the padding are ignored.
  metrics.add(Tensor::of({2, 3}, {1, 2, 4, 99, 99, 99}), Tensor::of({2, 3, 2}, {1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0}),
              labels_of({2, 3}, {0, 0, 0, -100, -100, -100}), 1);
  metrics.add(Tensor::of({1, 3}, {5, 99, 99}), Tensor::of({1, 3, 2}, {0, 1, 0, 0, 0, 0}), labels_of({1, 3}, {1, -100, -100}), 1);
  const MetricValues values = metrics.values();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_DOUBLE_EQ(find_metric(values, "loss"), 3);
  EXPECT_DOUBLE_EQ(find_metric(values, "perplexity"), std::exp(3.0));
  EXPECT_DOUBLE_EQ(find_metric(values, "bits_per_char"), 3 / std::log(2.0));
  EXPECT_EQ(metrics.samples(), 2);
  Sums sized({"bits_per_char", "bits_per_byte"}, model(), true);
  Tensor sizes(DType::kI32, {1, 3, 2});
  const std::vector<int32_t> counts{3, 4, 2, 6, 100, 100};  // the last label is ignored
  std::copy(counts.begin(), counts.end(), sizes.data_as<int32_t>());
  sized.add(Tensor::of({1, 3}, {1, 4, 99}), Tensor::of({1, 3, 2}, {1, 0, 0, 1, 1, 0}), labels_of({1, 3}, {0, 0, -100}), 1, sizes);
  EXPECT_DOUBLE_EQ(find_metric(sized.values(), "bits_per_char"), 1 / std::log(2.0)) << "loss 5, five characters";
  EXPECT_DOUBLE_EQ(find_metric(sized.values(), "bits_per_byte"), 0.5 / std::log(2.0));
  EXPECT_THROW(
      {
        Sums bytes({"bits_per_byte"}, model(), true);
        bytes.add(Tensor::of({1, 3}, {1, 2, 4}), Tensor::of({1, 3, 2}, {1, 0, 0, 1, 1, 0}), labels_of({1, 3}, {0, 0, -100}), 1);
        bytes.values();
      },
      Error)
      << "samples without texts";
  Sums ranks({"top1"}, model(), true);
  ranks.add(Tensor::of({1, 3}, {1, 2, 4}), Tensor::of({1, 3, 2}, {1, 0, 0, 1, 1, 0}), labels_of({1, 3}, {0, 0, -100}), 1);
  EXPECT_DOUBLE_EQ(find_metric(ranks.values(), "top1"), 50);
  EXPECT_THROW(metric_names(*task_of("cross_entropy", {1, 10}), {"perplexity"}), Error) << "of a classifier";
}

TEST(Metrics, NamesAreThoseOfTheTasks) {
  EXPECT_FALSE(larger_is_better("perplexity"));
  EXPECT_FALSE(larger_is_better("bits_per_char"));
  EXPECT_TRUE(larger_is_better("ema/miou"));
  EXPECT_EQ(metric_text("ema/top1", 91.2), "91.20 %");
  EXPECT_EQ(metric_text("loss", 0.31), "0.3100");
  for (const ComponentKind& kind : tasks()) {
    const auto options = kind.make();
    int ranking = 0;
    for (const MetricInfo& metric : dynamic_cast<const TaskOptions&>(*options).metrics()) ranking += metric.ranks;
    EXPECT_EQ(ranking, 1) << kind.type << ": one metric ranks checkpoints";
  }
}

TEST(Metrics, RefusesUnknownNamesAndNoSamples) {
  try {
    metric_names(*task_of("cross_entropy", {1, 10}), {"top_1"});
    FAIL() << "an unknown metric was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("did you mean top1?"), std::string::npos) << error.message();
  }
  EXPECT_THROW(Sums({}, task_of("cross_entropy", {1, 10})).values(), Error);
}

}  // namespace
}  // namespace galley
