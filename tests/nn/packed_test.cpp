// Law of packed blocks: with position_ids, the logits of every document of a block are those of the document alone, for each model that
// takes them, and so are gradients of a loss over the block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/loss.h"
#include "libcore/passes/differentiate.h"
#include "tests/nn/decoder_golden.h"
#include "tests/support/graphs.h"

namespace galley {
namespace {

struct Result {
  std::vector<double> logits;
  std::vector<std::vector<double>> gradients;  // of the sum of the losses of all tokens
};

/// Logits and gradients of tokens [N,T] in double.
Result run(const Component& model, const Shape& shape, const std::vector<double>& tokens, const std::vector<double>& targets,
           const std::vector<double>& positions) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation, .dtype = DType::kF64});
  NamedValues inputs{{"input", b.input("tokens", {.dtype = DType::kI64, .shape = shape})}};
  std::map<std::string, RefArray> feeds{{"tokens", {shape, tokens}}, {"targets", {shape, targets}}};
  if (!positions.empty()) {
    inputs.emplace_back(kPositionIds, b.input(kPositionIds, {.dtype = DType::kI64, .shape = shape}));
    feeds[kPositionIds] = {shape, positions};
  }
  const Value logits = build_model(b, model, inputs).front().second;
  const Component cross_entropy = over_last_dimension(make_loss("cross_entropy"));
  const Value loss = build_loss(b, cross_entropy, logits, b.input("targets", loss_target(cross_entropy, logits.type())));
  std::vector<ValueId> parameters;
  for (const ParameterSpec& spec : b.parameters()) {
    parameters.push_back(graph.find_input(spec.name));
    feeds[spec.name] = {spec.type.shape, golden_state(spec.name, spec.type.shape)};
  }
  const std::map<ValueId, ValueId> gradients = differentiate(graph, loss.id(), parameters);
  const std::map<ValueId, RefArray> values = interpret(graph, feeds);
  const auto count = static_cast<double>(std::count_if(targets.begin(), targets.end(), [](double target) { return target >= 0; }));
  Result result{.logits = values.at(logits.id()).v, .gradients = {}};
  for (const ValueId id : parameters) {
    std::vector<double>& gradient = result.gradients.emplace_back(values.at(gradients.at(id)).v);
    for (double& value : gradient) value *= count;  // of a mean
  }
  return result;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

class PackedDecoders : public testing::TestWithParam<DecoderCase> {};

TEST_P(PackedDecoders, DocumentsOfABlockAreIndependent) {
  const DecoderCase& c = GetParam();
  const Component model = c.component();
  const ModelInfo info = model_info(model);
  ASSERT_TRUE(info.cache);
  if (info.cache_switch > 0) GTEST_SKIP() << "rotary frequencies depend on the length, which is that of the block";
  const int64_t length = c.tokens, vocabulary = kDecoderVocabulary;
  const std::vector<std::vector<int64_t>> documents{{4, 1, length - 5}, {length - 2, 2}};
  const auto [tokens, targets] = decoder_tokens(c.name, length);
  std::vector<double> positions;
  for (const std::vector<int64_t>& row : documents)
    for (const int64_t size : row)
      for (int64_t i = 0; i < size; ++i) positions.push_back(static_cast<double>(i));
  const Result block = run(model, {2, length}, tokens, targets, positions);
  std::vector<double> logits;
  std::vector<std::vector<double>> gradients;
  auto at = tokens.begin();
  auto target = targets.begin();
  for (const std::vector<int64_t>& row : documents) {
    for (const int64_t size : row) {
      const Result alone = run(model, {1, size}, {at, at + size}, {target, target + size}, {});
      logits.insert(logits.end(), alone.logits.begin(), alone.logits.end());
      gradients.resize(alone.gradients.size());
      for (size_t p = 0; p < gradients.size(); ++p) {
        gradients[p].resize(alone.gradients[p].size());
        for (size_t i = 0; i < gradients[p].size(); ++i) gradients[p][i] += alone.gradients[p][i];
      }
      at += size;
      target += size;
    }
  }
  ASSERT_EQ(block.logits.size(), static_cast<size_t>(2 * length * vocabulary));
  // Both compute in double; sums have another order.
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(block.logits[i], logits[i], 1e-12 * largest(logits)) << "logit " << i;
  for (size_t p = 0; p < gradients.size(); ++p)
    for (size_t i = 0; i < gradients[p].size(); ++i)
      ASSERT_NEAR(block.gradients[p][i], gradients[p][i], 1e-11 * (largest(gradients[p]) + 1e-3)) << "parameter " << p;
  const Result joined = run(model, {2, length}, tokens, targets, {});
  double difference = 0;
  for (size_t i = 0; i < logits.size(); ++i) difference = std::max(difference, std::abs(joined.logits[i] - logits[i]));
  EXPECT_GT(difference, 1e-3 * largest(logits)) << "without position_ids documents see each other";
}

std::vector<DecoderCase> cases() {
  std::vector<DecoderCase> all = decoder_cases();
  all.push_back({"gpt", "gpt", 9, {{"n_layer", {2}}, {"n_head", {2}}, {"n_embd", {8}}, {"block_size", {12}}, {"dropout", {0}}}});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, PackedDecoders, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(PackedDecoders, PositionsMustFitTheTokens) {
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  const NamedValues inputs{{"input", b.input("tokens", test::i64({2, 4}))}, {kPositionIds, b.input("p", test::i64({2, 5}))}};
  EXPECT_THROW(build_model(b, default_model("gpt"), inputs), Error);
}

}  // namespace
}  // namespace galley
