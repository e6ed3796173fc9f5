// Law: initial values are a pure function of (seed, name) and have the distributions of torchvision's.
#include "libcore/nn/parameter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "libcore/base/parallel.h"
#include "tests/nn/golden_model.h"

namespace galley {
namespace {

ParameterSpec spec_of(std::string name, Shape shape, Init init) {
  return {.name = std::move(name), .type = {.shape = shape}, .init = init};
}

struct Moments {
  double mean = 0, stddev = 0, largest = 0, fourth = 0;
};
Moments moments(const Tensor& tensor) {
  Moments m;
  const std::vector<double> v = tensor.to_doubles();
  const double n = static_cast<double>(v.size());
  for (const double x : v) m.mean += x / n;
  for (const double x : v) {
    m.stddev += (x - m.mean) * (x - m.mean) / n;
    m.fourth += std::pow(x - m.mean, 4) / n;
    m.largest = std::max(m.largest, std::fabs(x));
  }
  m.fourth /= m.stddev * m.stddev;
  m.stddev = std::sqrt(m.stddev);
  return m;
}

TEST(Initialize, HasTheMomentsOfItsDistribution) {
  // 99 999 elements: the standard error of the mean is sigma / 316, that of the deviation about 0.3 % (normal), that of the kurtosis
  // 0.016; the tolerance is six of each. The count is odd, since elements are generated four at a time.
  const Shape shape{3, 33333};
  const struct {
    Init init;
    double stddev, kurtosis, largest;
  } cases[] = {
      {Init::normal(0.5), 0.5, 3, 10},
      {Init::uniform(0.25), 0.25 / std::sqrt(3.0), 1.8, 0.25},
      {Init::kaiming_normal(Init::Fan::kIn), std::sqrt(2.0 / 33333), 3, 10},
      {Init::kaiming_normal(Init::Fan::kOut), std::sqrt(2.0 / 3), 3, 10},
      {Init::kaiming_uniform(std::sqrt(5.0)), std::sqrt(1.0 / 3 / 33333), 1.8, std::sqrt(1.0 / 33333)},
      // Truncated at one deviation: variance 1 - 2 phi(1) / (2 Phi(1) - 1) = 0.2912, kurtosis by numeric integration 1.9409.
      {Init::truncated_normal(2, 2), 2 * std::sqrt(0.29112509), 1.9409, 2},
  };
  for (const auto& c : cases) {
    const Moments m = moments(initialize(spec_of("weight", shape, c.init), 7));
    EXPECT_LE(std::fabs(m.mean), 6 * c.stddev / 316) << c.init.str();
    EXPECT_LE(std::fabs(m.stddev / c.stddev - 1), 0.015) << c.init.str();
    EXPECT_LE(std::fabs(m.fourth - c.kurtosis), 0.1) << c.init.str();
    EXPECT_LE(m.largest, c.largest * (1 + 1e-6)) << c.init.str();
  }
  EXPECT_EQ(initialize(spec_of("w", {5}, Init::ones()), 1).to_doubles(), std::vector<double>(5, 1.0));
  EXPECT_EQ(initialize(spec_of("w", {5}, Init::zeros()), 1).to_doubles(), std::vector<double>(5, 0.0));
}

TEST(Initialize, DependsOnSeedAndNameAlone) {
  const ParameterSpec spec = spec_of("layer1.weight", {50001}, Init::normal(1));
  set_compute_threads(1);
  const Tensor one = initialize(spec, 3);
  set_compute_threads(3);
  const Tensor three = initialize(spec, 3);
  set_compute_threads(available_cores());
  EXPECT_TRUE(bit_equal(one, three));
  EXPECT_FALSE(bit_equal(one, initialize(spec, 4)));
  EXPECT_FALSE(bit_equal(one, initialize(spec_of("layer2.weight", {50001}, Init::normal(1)), 3)));
}

TEST(Initialize, SpreadsAsTorchvision) {
  // tests/golden/models/init.txt: "model NAME", then "PARAMETER MEAN STD MAX" of one draw in PyTorch.
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/models/init.txt");
  ASSERT_TRUE(file);
  std::map<std::string, ParameterSpec> specs;
  std::string word, model;
  int compared = 0;
  while (file >> word) {
    if (word == "model") {
      file >> model;
      Graph graph;
      Builder b(graph);
      // At its real size, or at the reduced size of golden_models().
      const auto reduced = std::find_if(golden_models().begin(), golden_models().end(),
                                        [&](const GoldenModel& m) { return m.file == model && m.file != m.type; });
      const Component component = reduced == golden_models().end() ? default_model(model) : with_ten_classes(*reduced);
      TensorType type{.shape = {2}};
      for (const int64_t size : model_info(component).input_shape) type.shape.push_back(size);
      if (reduced != golden_models().end()) type.shape = reduced->input;
      build_model(b, component, b.input("input", type));
      specs.clear();
      for (const ParameterSpec& spec : b.parameters()) specs.emplace(spec.name, spec);
      continue;
    }
    double mean = 0, stddev = 0, largest = 0;
    file >> mean >> stddev >> largest;
    ASSERT_TRUE(specs.contains(word)) << model << " " << word;
    const ParameterSpec& spec = specs.at(word);
    if (spec.type.elements() > 700'000) continue;  // covered by smaller parameters of the same kind, and slow to draw
    const Moments ours = moments(initialize(spec, 0));
    // Two independent draws of n elements: their deviations differ by sigma * sqrt((kurtosis - 1) / 4 * 2 / n) <= sigma / sqrt(n), their
    // means by sigma * sqrt(2 / n). The tolerance is six times that plus the rounding to six stored digits; even biases with few elements
    // distinguish a constant from a draw.
    const double n = static_cast<double>(spec.type.elements());
    EXPECT_LE(std::fabs(ours.stddev - stddev), 6 * stddev / std::sqrt(n) + 1e-12) << model << " " << word << " " << spec.init.str();
    EXPECT_LE(std::fabs(ours.mean - mean), 6 * stddev * std::sqrt(2 / n) + 1e-5 * std::fabs(mean) + 1e-12) << model << " " << word;
    // A uniform draw ends at its bound, 1.73 deviations; a normal one of 1000 elements exceeds 2.5.
    if (n >= 1000 && stddev > 0) {
      EXPECT_EQ(largest > 2.2 * stddev, ours.largest > 2.2 * ours.stddev) << model << " " << word;
    }
    ++compared;
  }
  EXPECT_GT(compared, 1200);
}

}  // namespace
}  // namespace galley
