// Laws: the training loss is the mean of the samples' losses, with hand-computed values; targets have the type that the loss requires.
#include "libcore/nn/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

struct Losses {
  double mean = 0;
  std::vector<double> samples;
};
Losses evaluate(const Component& loss, const RefArray& output, const RefArray& target) {
  Graph graph;
  Builder b(graph);
  const Value x = b.input("output", {.shape = output.shape});
  TensorType type = loss_target(loss, x.type());
  EXPECT_EQ(type.shape, target.shape);
  const Value y = b.input("target", type);
  const Value mean = build_loss(b, loss, x, y), samples = build_sample_losses(b, loss, x, y);
  EXPECT_EQ(mean.shape().rank(), 0);
  EXPECT_EQ(samples.shape(), Shape({output.shape[0]}));
  const auto values = interpret(graph, {{"output", output}, {"target", target}});
  return {values.at(mean.id()).v[0], values.at(samples.id()).v};
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  // Double arithmetic on a handful of numbers.
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(std::fabs(got[i] - want[i]) <= 1e-12) << i << ": " << got[i] << " " << want[i];
}

TEST(Loss, CrossEntropy) {
  // Logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8.
  const RefArray logits{{2, 3}, {0, std::log(2), std::log(5), std::log(5), std::log(2), 0}};
  const RefArray labels{{2}, {2, 1}};
  const Losses plain = evaluate(make_loss("cross_entropy"), logits, labels);
  expect_near(plain.samples, {-std::log(5.0 / 8), -std::log(2.0 / 8)});
  expect_near({plain.mean}, {(plain.samples[0] + plain.samples[1]) / 2});

  auto weighted = std::make_unique<CrossEntropyParams>();
  weighted->weight = {1, 1, 3};
  Component loss = make_loss("cross_entropy");
  loss.params = std::move(weighted);
  // PyTorch's weighted mean divides by the sum of the labels' weights.
  expect_near({evaluate(loss, logits, labels).mean}, {(3 * plain.samples[0] + plain.samples[1]) / 4});
}

TEST(Loss, SquaredDifferencesAndBinary) {
  const RefArray output{{2, 2}, {1, 2, 3, 4}};
  const Losses mse = evaluate(make_loss("mse"), output, {{2, 2}, {0, 0, 3, 2}});
  expect_near(mse.samples, {2.5, 2});
  expect_near({mse.mean}, {2.25});
  const auto bce = [](double x, double y) { return std::log1p(std::exp(x)) - x * y; };
  const Losses binary = evaluate(make_loss("bce_with_logits"), output, {{2, 2}, {1, 0, 0.5, 1}});
  expect_near(binary.samples, {(bce(1, 1) + bce(2, 0)) / 2, (bce(3, 0.5) + bce(4, 1)) / 2});
  expect_near({binary.mean}, {(binary.samples[0] + binary.samples[1]) / 2});
}

TEST(Loss, TargetsAndMistakes) {
  const TensorType image{.shape = {2, 21, 5, 4}};
  const Component loss = make_loss("cross_entropy");
  EXPECT_EQ(loss_target(loss, image).shape, Shape({2, 5, 4}));
  EXPECT_EQ(loss_target(loss, image).dtype, DType::kI64);
  EXPECT_EQ(loss_target(loss, image, true).shape, image.shape);
  EXPECT_EQ(loss_target(make_loss("mse"), image).shape, image.shape);
  EXPECT_THROW(loss_target(loss, {.shape = {3}}), Error);
  try {
    make_loss("cross_entropi");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.suggestion().find("cross_entropy"), std::string::npos);
  }
  Graph graph;
  Builder b(graph);
  auto params = std::make_unique<CrossEntropyParams>();
  params->weight = {1, 2};
  Component wrong = make_loss("cross_entropy");
  wrong.params = std::move(params);
  EXPECT_THROW(build_loss(b, wrong, b.input("x", {.shape = {4, 3}}), b.input("y", {.dtype = DType::kI64, .shape = {4}})), Error);
}

}  // namespace
}  // namespace galley
