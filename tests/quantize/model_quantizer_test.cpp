// Laws: quantized weights are within half a step of the float weights and use the whole range; a calibration that is continued equals one
// of all samples, and its ranges are those of the data; the search keeps in float exactly the layers that the goal requires.

#include "libcore/quantize/model_quantizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include "libcore/base/digest.h"
#include "libcore/data/loader.h"
#include "libcore/infer/components.h"
#include "libcore/nn/parameter.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/quantize/quantization_search.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

LoadedRecipe load(const std::string& section) {
  const TemporaryFolder folder;
  std::ofstream(folder / "recipe.yaml") << R"(
recipe: 1
threads: 2
seed: 3
model:
  type: layers
  input: {shape: [3, 8, 8]}
  layers:
    - {name: conv1, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1}
    - {type: relu}
    - {name: conv2, type: conv2d, out_channels: 4, kernel_size: 3}
    - {type: flatten}
    - {name: fc, type: linear, out_features: 4}
loss: cross_entropy
data:
  train: {source: {type: synthetic, samples: 40}}
  val: {source: {type: synthetic, samples: 16}, batch: 8}
  calibration: {samples: 20, batch: 8}
quantize: )" << section << "\n";
  return load_recipe(folder / "recipe.yaml", recipe_components(), {});
}

class QuantizerTest : public testing::Test {
 protected:
  void use(const std::string& section, const std::function<void(Recipe&)>& change = [](Recipe&) {}) {
    loaded_.emplace(load(section));
    change(loaded_->recipe);
    session_.emplace(loaded_->recipe);
    quantizer_.emplace(*session_);
    config_ = resolve_quantize(loaded_->recipe.quantize, quantizer_->graph());
  }

  std::optional<LoadedRecipe> loaded_;
  std::optional<Session> session_;
  std::optional<ModelQuantizer> quantizer_;
  QuantizeConfig config_;
};

TEST_F(QuantizerTest, WeightsAreWithinHalfAStepAndUseTheWholeRange) {
  use("{method: weight_only, weights: {observer: min_max}}");
  const QuantizedModel model = quantizer_->quantize(config_, nullptr);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.tensors) bytes += tensor.bytes();
  EXPECT_EQ(model.bytes(), bytes);
  int checked = 0;
  int64_t biases = 0;
  for (const ParameterSpec& spec : quantizer_->parameters()) {
    if (spec.name.ends_with(".bias")) biases += spec.type.bytes();
    if (!spec.name.ends_with(".weight")) continue;
    SCOPED_TRACE(spec.name);
    const auto layer = std::find_if(model.layers.begin(), model.layers.end(),
                                    [&](const LayerResult& each) { return each.plan.name + ".weight" == spec.name; });
    ASSERT_NE(layer, model.layers.end());
    const std::vector<double> real = initialize(spec, 3).to_doubles(), integers = model.tensors.at(spec.name).to_doubles(),
                              scales = model.tensors.at(spec.name + "_scale").to_doubles();
    ASSERT_EQ(integers.size(), real.size());
    ASSERT_EQ(static_cast<int64_t>(scales.size()), spec.type.shape[0]);
    const size_t row = real.size() / scales.size();
    double signal = 0, noise = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      const double error = integers[i] * scales[i / row] - real[i];
      signal += real[i] * real[i];
      noise += error * error;
    }
    // The quantizer sums values that are rounded to f32.
    EXPECT_NEAR(layer->sqnr_weight_db, 10 * std::log10(signal / noise), 1e-3);
    EXPECT_NEAR(layer->mse_weight, noise / static_cast<double>(real.size()), 1e-4 * layer->mse_weight);
    for (size_t c = 0; c < scales.size(); ++c) {
      double largest = 0;
      for (size_t i = c * row; i < (c + 1) * row; ++i) {
        // 1e-5: the quotient is rounded in f32, which matters near the middle between two integers.
        EXPECT_LE(std::abs(integers[i] * scales[c] - real[i]), scales[c] * (0.5 + 1e-5));
        largest = std::max(largest, std::abs(integers[i]));
      }
      EXPECT_EQ(largest, 127) << "channel " << c;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 3);
  int64_t of_layers = 0, float_of_layers = 0, weights = 0;
  for (const LayerResult& layer : model.layers) of_layers += layer.bytes, float_of_layers += layer.bytes_float;
  for (const ParameterSpec& spec : quantizer_->parameters()) weights += spec.name.ends_with(".weight") ? spec.type.bytes() : 0;
  EXPECT_EQ(of_layers, model.bytes()) << "this model has nothing but layers";
  EXPECT_EQ(float_of_layers, weights + biases);
}

TEST_F(QuantizerTest, ContinuedCalibrationEqualsOneRun) {
  use("{method: static}");
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  EXPECT_EQ(calibrator.samples(), 20);
  Calibration whole, parts;
  std::vector<int64_t> reported;
  calibrator.run(whole, [&](int64_t samples) {
    reported.push_back(samples);
    return true;
  });
  EXPECT_EQ(reported, (std::vector<int64_t>{8, 16, 20}));
  calibrator.run(parts, [](int64_t samples) { return samples < 16; });
  EXPECT_EQ(parts.samples(), 16);
  calibrator.run(parts);
  EXPECT_EQ(parts.samples(), 20);
  EXPECT_EQ(parts.values, whole.values);
  EXPECT_EQ(parts.model, whole.model);
  // Only the 20 valid samples count, although the last batch has room for 24.
  EXPECT_EQ(whole.at("input").elements(), 20 * 3 * 8 * 8);
  EXPECT_EQ(whole.at("conv1").elements(), 20 * 8 * 8 * 8);
  EXPECT_EQ(whole.at("fc").elements(), 20 * 4);
  ASSERT_EQ(whole.parts.size(), 1u);
  EXPECT_EQ(whole.parts[0].batches, 3);
  ASSERT_EQ(parts.parts.size(), 2u);
  EXPECT_EQ(parts.parts[0].first, 0);
  EXPECT_EQ(parts.parts[0].samples, 16);
  EXPECT_EQ(parts.parts[1].first, 16);
  EXPECT_EQ(parts.parts[1].samples, 4);
  EXPECT_NE(parts.parts[0].data, parts.parts[1].data);
  Calibration again;
  calibrator.run(again);
  EXPECT_EQ(again.parts[0].data, whole.parts[0].data);

  double low = std::numeric_limits<double>::infinity(), high = -low;
  const std::unique_ptr<DataLoader> loader = session_->calibration_loader(8, 0, 20);
  while (const Batch* batch = loader->next()) {
    const std::vector<double> values = batch->at("input").to_doubles();
    const auto count = static_cast<ptrdiff_t>(batch->valid * 3 * 8 * 8);
    low = std::min(low, *std::min_element(values.begin(), values.begin() + count));
    high = std::max(high, *std::max_element(values.begin(), values.begin() + count));
  }
  EXPECT_EQ(whole.at("input").range(), (BatchRange{static_cast<float>(low), static_cast<float>(high)}));
}

/// Batches have the size of data.calibration.batch; the digest is that of all valid values in order, so it does not depend on the size.
TEST_F(QuantizerTest, DataOfACalibrationAreThoseOfTheSection) {
  use("{method: static}", [](Recipe& recipe) { recipe.data.calibration.batch.count = 3; });
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  calibrator.run(calibration);
  EXPECT_EQ(calibration.parts.at(0).batch, 3);
  EXPECT_EQ(calibration.parts.at(0).batches, 7);  // 20 samples
  Digest digest;
  const std::unique_ptr<DataLoader> loader = session_->calibration_loader(1, 0, 20);
  while (const Batch* batch = loader->next()) {
    const Tensor& values = batch->at("input");
    digest.update(std::span(static_cast<const std::byte*>(values.data()), size_t{3 * 8 * 8 * sizeof(float)}));
  }
  EXPECT_EQ(calibration.parts.at(0).data, digest.hex());
  // A histogram of each value is in memory, besides the parameters.
  int64_t parameters = 0;
  for (const ParameterSpec& spec : calibrator.parameters()) parameters += spec.type.bytes();
  const int64_t histograms = calibrator.values() * Histogram::kBins * static_cast<int64_t>(sizeof(int64_t));
  const Program& program = calibrator.program();
  EXPECT_GE(calibrator.planned_bytes(), parameters + program.scratch_bytes() + program.prepared_bytes() + histograms);

  use("{method: static}", [](Recipe& recipe) { recipe.data.calibration.from = "val"; });
  Calibrator other(*session_);
  session_->initialize(other.parameters(), other.store());
  try {
    other.run(calibration);
    ADD_FAILURE() << "a calibration of other data continues";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.message().find("is of other data"), std::string::npos) << error.message();
  }
}

/// The largest integer of each channel of a weight, in magnitude.
std::vector<double> largest_integers(const QuantizedModel& model, const std::string& name) {
  const std::vector<double> integers = model.tensors.at(name).to_doubles();
  std::vector<double> largest(static_cast<size_t>(model.tensors.at(name).shape()[0]));
  const size_t row = integers.size() / largest.size();
  for (size_t i = 0; i < integers.size(); ++i) largest[i / row] = std::max(largest[i / row], std::abs(integers[i]));
  return largest;
}

TEST_F(QuantizerTest, WeightsKeepOneBitFreeWhereTheConfigSaysSo) {
  use("{method: static, saturation: reduce, weights: {observer: min_max}}");
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  calibrator.run(calibration);
  const QuantizedModel model = quantizer_->quantize(config_, &calibration);
  bool reduced = false;
  for (const LayerResult& layer : model.layers) {
    reduced = reduced || layer.plan.reduced;
    for (const double largest : largest_integers(model, layer.plan.weight())) {
      EXPECT_GE(largest, layer.plan.reduced ? 63 : 127) << layer.plan.name;  // 7 bits hold -64 to 63
      EXPECT_LE(largest, layer.plan.reduced ? 64 : 128) << layer.plan.name;
    }
  }
  EXPECT_TRUE(reduced);
}

/// Bounds that training learned take the place of those of the observer.
TEST_F(QuantizerTest, TrainedBoundsDetermineTheScales) {
  use("{method: static}");
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  calibrator.run(calibration);
  calibration.weight_bounds["fc.weight"] = Tensor::of({4}, {1, 2, 4, 8});
  const QuantizedModel model = quantizer_->quantize(config_, &calibration);
  const std::vector<double> scales = model.tensors.at("fc.weight_scale").to_doubles();
  ASSERT_EQ(scales.size(), 4u);
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_NEAR(scales[i], std::pow(2, i) / 127, 1e-4 * scales[i]);
}

TEST_F(QuantizerTest, ACalibrationOfOtherWeightsIsRefused) {
  use("{method: static}");
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  calibrator.run(calibration);
  quantizer_->adopt(calibration, "stats.calib");
  loaded_->recipe.seed = 4;
  EXPECT_THROW(ModelQuantizer(*session_).adopt(calibration, "stats.calib"), Error);
}

GoalSection goal_of(double max_drop, bool relative = false) {
  GoalSection goal;
  goal.metric = "top1";
  goal.max_drop.emplace();
  goal.max_drop->value = max_drop;
  goal.max_drop->relative = relative;
  goal.objective = GoalObjective::kSize;
  return goal;
}

TEST(Judge, ComparesTheDropWithTheGoal) {
  const auto met = [](const GoalSection& goal, double before, double after) {
    return judge(goal, {{goal.metric, before}}, {.metrics = {{goal.metric, after}}}).met;
  };
  EXPECT_TRUE(met(goal_of(0.5), 90, 89.5));
  EXPECT_FALSE(met(goal_of(0.5), 90, 89.4));
  EXPECT_TRUE(met(goal_of(1, true), 50, 49.5)) << "1 % of 50";
  EXPECT_FALSE(met(goal_of(1, true), 50, 49.4));
  EXPECT_FALSE(met(goal_of(100), 90, std::nan("")));
  GoalSection loss = goal_of(0.1);
  loss.metric = "loss";
  EXPECT_TRUE(met(loss, 2, 2.05));
  EXPECT_FALSE(met(loss, 2, 2.2)) << "a larger loss is worse";
  EXPECT_DOUBLE_EQ(judge(loss, {{"loss", 2}}, {.metrics = {{"loss", 2.25}}}).drop, 0.25);
  loss.max_drop.reset();
  loss.min = 1.5;
  EXPECT_TRUE(met(loss, 2, 1.4));
  EXPECT_FALSE(met(loss, 2, 1.6));
  GoalSection both = goal_of(0.5);
  both.min = 80;
  EXPECT_TRUE(met(both, 90, 89.5));
  EXPECT_FALSE(met(both, 90, 85)) << "above the minimum, but the drop is too large";
  EXPECT_FALSE(met(both, 80, 79.9)) << "a small drop, but below the minimum";
  EXPECT_THROW(judge(goal_of(1), {{"loss", 1}}, {}), Error) << "a metric that was not computed";
}

/// A search whose trials are made up: a quantized layer costs some accuracy and saves bytes.
class SearchTest : public QuantizerTest {
 protected:
  void SetUp() override {
    use("{method: weight_only}");
    trials_ = std::make_unique<QuantizationTrials>(*session_, *quantizer_, config_, nullptr);
    ASSERT_EQ(trials_->layers(), (std::vector<std::string>{"conv1", "conv2", "fc"}));
    float_top1_ = find_metric(trials_->float_metrics(), "top1");
    hooks_.find = [this](const TrialSetting& setting, const TrialQuestions&) -> std::optional<Trial> { return made_up(setting); };
    hooks_.add = [](const Trial&) { ADD_FAILURE() << "every trial is known"; };
  }
  Trial made_up(const TrialSetting& setting) const {
    Trial trial{.setting = setting, .sqnr_db = 60};
    double top1 = float_top1_;
    for (const auto& [layer, cost] : cost_) {
      const bool real = std::count(setting.float_layers.begin(), setting.float_layers.end(), layer) > 0;
      trial.bytes += real ? 400 : 100;
      if (real) continue;
      top1 -= cost;
      trial.sqnr_db -= 10 * cost;
    }
    trial.metrics = {{"top1", top1}};
    return trial;
  }
  SearchResult search(const GoalSection& goal) {
    return search_quantization(*session_, *quantizer_, *trials_, goal, hooks_, [this](const SearchTrial&) { ++reported_; });
  }

  std::map<std::string, double> cost_{{"conv1", 3}, {"conv2", 0.25}, {"fc", 0.5}};
  std::unique_ptr<QuantizationTrials> trials_;
  TrialHooks hooks_;
  double float_top1_ = 0;
  size_t reported_ = 0;
};

TEST_F(SearchTest, KeepsInFloatWhatTheGoalRequires) {
  const std::pair<double, std::vector<std::string>> cases[] = {
      {10, {}}, {1, {"conv1"}}, {0.4, {"conv1", "fc"}}, {0, {"conv1", "conv2", "fc"}}};
  for (const auto& [max_drop, expected] : cases) {
    const SearchResult result = search(goal_of(max_drop));
    const SearchTrial& best = result.trials.at(result.best);
    std::vector<std::string> kept = best.trial.setting.float_layers;
    std::sort(kept.begin(), kept.end());
    EXPECT_EQ(kept, expected) << "max_drop " << max_drop;
    EXPECT_TRUE(best.met);
    EXPECT_FALSE(result.stopped);
    for (const SearchTrial& trial : result.trials) {
      EXPECT_TRUE(!trial.met || trial.trial.bytes >= best.trial.bytes);
      EXPECT_EQ(trial.pareto, std::none_of(result.trials.begin(), result.trials.end(), [&](const SearchTrial& other) {
                  return other.drop <= trial.drop && other.trial.bytes <= trial.trial.bytes &&
                         (other.drop < trial.drop || other.trial.bytes < trial.trial.bytes);
                }));
    }
  }
}

/// The order of single layers is not the whole truth: here the layer with the largest error alone is not the one that costs accuracy.
TEST_F(SearchTest, QuantizesLayersAgainThatNeedNotBeInFloat) {
  hooks_.find = [this](const TrialSetting& setting, const TrialQuestions&) -> std::optional<Trial> {
    Trial trial = made_up(setting);
    const bool real = std::count(setting.float_layers.begin(), setting.float_layers.end(), "fc") > 0;
    trial.metrics[0].second = float_top1_ - (real ? 0 : 3) - (setting.float_layers.size() < 2 ? 0.5 : 0.25);
    trial.latency_s = setting.weights ? 4 : 5 - static_cast<double>(setting.float_layers.size());
    return trial;
  };
  GoalSection goal = goal_of(1);
  for (const GoalObjective objective : {GoalObjective::kSize, GoalObjective::kLatency}) {
    goal.objective = objective;
    const SearchResult result = search(goal);
    const SearchTrial& best = result.trials.at(result.best);
    EXPECT_TRUE(best.met);
    size_t met = 0;
    for (const SearchTrial& trial : result.trials) {
      met += trial.met;
      const auto price = [&](const Trial& of) { return objective == GoalObjective::kSize ? static_cast<double>(of.bytes) : of.latency_s; };
      EXPECT_TRUE(!trial.met || price(trial.trial) >= price(best.trial));
      EXPECT_EQ(trial.pareto, std::none_of(result.trials.begin(), result.trials.end(),
                                           [&](const SearchTrial& other) {
                                             const Trial &a = trial.trial, &b = other.trial;
                                             return other.drop <= trial.drop && b.bytes <= a.bytes && b.latency_s <= a.latency_s &&
                                                    (other.drop < trial.drop || b.bytes < a.bytes || b.latency_s < a.latency_s);
                                           }))
          << trial.trial.setting.text();
    }
    EXPECT_GE(met, 2u) << "the smallest and the fastest differ";
    EXPECT_TRUE(objective == GoalObjective::kLatency || best.trial.setting.float_layers == std::vector<std::string>{"fc"});
  }
  // The configured model and the one with other observers differ only in time.
  const SearchResult result = search(goal);
  EXPECT_FALSE(result.trials.at(0).pareto);
}

TEST_F(SearchTest, EndsWhenItsTimeIsOver) {
  GoalSection goal = goal_of(1);
  goal.time_budget.value = 0;
  const SearchResult result = search(goal);
  EXPECT_TRUE(result.out_of_time);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.trials.size(), 1u);
}

/// Observers of a trial replace those of the section and of its overrides.
TEST_F(SearchTest, ATrialsObserversAreThoseOfEveryLayer) {
  use("{method: weight_only, weights: {dtype: int4, observer: min_max}, overrides: [{match: conv2, weights: {observer: percentile}}]}");
  trials_ = std::make_unique<QuantizationTrials>(*session_, *quantizer_, config_, nullptr);
  TrialSetting setting;
  setting.weights = ObserverType::kMse;
  const QuantizedModel model = trials_->quantize(setting), before = trials_->quantize({});
  use("{method: weight_only, weights: {dtype: int4, observer: mse}}");
  const QuantizedModel expected = quantizer_->quantize(config_, nullptr);
  ASSERT_EQ(model.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) EXPECT_EQ(model.tensors.at(name).to_doubles(), tensor.to_doubles()) << name;
  EXPECT_NE(before.tensors.at("conv2.weight_scale").to_doubles(), expected.tensors.at("conv2.weight_scale").to_doubles());
}

TEST_F(SearchTest, ANewTrialIsMeasuredAndKept) {
  TrialHooks hooks;
  std::vector<Trial> kept;
  hooks.add = [&](const Trial& trial) { kept.push_back(trial); };
  const Trial quantized = known_or_made(*trials_, hooks, {}, {});
  TrialSetting setting;
  setting.float_layers = {"conv1", "conv2", "fc"};
  const Trial real = known_or_made(*trials_, hooks, setting, {});
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].sqnr_db, quantized.sqnr_db);
  EXPECT_EQ(kept[1].setting.key(), setting.key());
  EXPECT_EQ(real.sqnr_db, std::numeric_limits<double>::infinity()) << "no layer is quantized";
  EXPECT_GT(quantized.sqnr_db, 20) << "8 bits";
  EXPECT_LT(quantized.sqnr_db, 80) << "are not 32";
  EXPECT_LT(quantized.bytes, real.bytes);
  std::swap(setting.float_layers[0], setting.float_layers[2]);
  EXPECT_EQ(kept[1].setting.key(), setting.key()) << "the order of layers does not matter";
}

/// The search of a model whose activations are quantized tries observers before it leaves layers in float.
TEST_F(SearchTest, TheObserverThatLosesLeastIsKept) {
  trials_.reset();
  use("{method: static}");
  Calibrator calibrator(*session_);
  session_->initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  calibrator.run(calibration);
  trials_ = std::make_unique<QuantizationTrials>(*session_, *quantizer_, config_, &calibration);
  hooks_.find = [this](const TrialSetting& setting, const TrialQuestions&) -> std::optional<Trial> {
    Trial trial = made_up(setting);
    double better = 0;
    if (setting.activations == ObserverType::kEntropy) better += 2;
    if (setting.activations == ObserverType::kHistogram) better += 1;
    if (setting.weights == ObserverType::kMse) better += 0.5;
    trial.metrics[0].second += better;
    return trial;
  };
  const SearchResult result = search(goal_of(1.3));  // all layers lose 3.75, with the best observers 1.25
  const SearchTrial& best = result.trials.at(result.best);
  EXPECT_TRUE(best.met);
  EXPECT_NEAR(best.drop, 1.25, 1e-9);
  EXPECT_EQ(best.trial.setting.activations, ObserverType::kEntropy);
  EXPECT_EQ(best.trial.setting.weights, ObserverType::kMse);
  EXPECT_TRUE(best.trial.setting.float_layers.empty());
  // Layers in float keep these observers.
  const SearchResult stricter = search(goal_of(1));
  const SearchTrial& kept = stricter.trials.at(stricter.best);
  EXPECT_TRUE(kept.met);
  EXPECT_EQ(kept.trial.setting.activations, ObserverType::kEntropy);
  EXPECT_EQ(kept.trial.setting.weights, ObserverType::kMse);
  EXPECT_EQ(kept.trial.setting.float_layers, std::vector<std::string>{"conv1"});
}

TEST_F(SearchTest, WithoutATrialThatMeetsTheGoalTheSmallestDropIsBest) {
  GoalSection goal = goal_of(1);
  goal.min = float_top1_ + 1;
  const SearchResult result = search(goal);
  EXPECT_FALSE(result.trials.at(result.best).met);
  EXPECT_EQ(result.trials.at(result.best).drop, 0) << "all layers in float";
  EXPECT_EQ(result.trials.size(), reported_);
}

TEST_F(SearchTest, StopsAfterTheTrialThatRuns) {
  hooks_.stop = [] { return true; };
  const SearchResult result = search(goal_of(1));
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.trials.size(), 1u);
  EXPECT_EQ(result.best, 0u);
}

TEST_F(SearchTest, ALayerWithoutANumberIsTheMostSensitive) {
  hooks_.find = [this](const TrialSetting& setting, const TrialQuestions&) -> std::optional<Trial> {
    Trial trial = made_up(setting);
    const bool only_conv2 = setting.float_layers == std::vector<std::string>{"conv1", "fc"};
    if (only_conv2) trial.sqnr_db = std::nan("");
    return trial;
  };
  const std::vector<LayerSensitivity> layers = measure_sensitivity(*trials_, "", hooks_, [](int64_t, int64_t) {});
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0].layer, "conv2");
  EXPECT_EQ(layers[1].layer, "conv1");
}

TEST_F(SearchTest, TheMostSensitiveLayerComesFirst) {
  hooks_.find = [this](const TrialSetting& setting, const TrialQuestions&) -> std::optional<Trial> {
    Trial trial = made_up(setting);
    trial.metrics.emplace_back("loss", 2 + float_top1_ - trial.metrics[0].second);  // smaller is better
    return trial;
  };
  for (const std::string metric : {"", "top1", "loss"}) {
    std::vector<int64_t> progress;
    const std::vector<LayerSensitivity> layers = measure_sensitivity(*trials_, metric, hooks_, [&](int64_t done, int64_t of) {
      EXPECT_EQ(of, 6);
      progress.push_back(done);
    });
    ASSERT_EQ(layers.size(), 3u);
    EXPECT_EQ(layers[0].layer, "conv1") << metric;
    EXPECT_EQ(layers[1].layer, "fc") << metric;
    EXPECT_EQ(layers[2].layer, "conv2") << metric;
    EXPECT_EQ(layers[0].only.setting.float_layers, (std::vector<std::string>{"conv2", "fc"}));
    EXPECT_EQ(layers[0].without.setting.float_layers, (std::vector<std::string>{"conv1"}));
    EXPECT_EQ(progress, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  }
}

}  // namespace
}  // namespace galley
