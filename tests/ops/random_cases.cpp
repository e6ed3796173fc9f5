// Cases of dropout and stochastic depth. The masks' laws (share of drops, same draws for split batches) are in random_test.cpp.

#include <limits>

#include "libcore/ops/random.h"
#include "libcore/ops/random_mask.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

// Seed, step and the number of the first sample.
constexpr int64_t kRandomSeed = 7, kStep = 3, kFirstSample = 100;
constexpr int64_t kDropoutStream = 123456789, kDepthStream = -5;

Value rng(CaseInputs& in) { return in.values({3}, {kRandomSeed, kStep, kFirstSample}, DType::kI64); }

DropoutAttrs dropout_attrs(double p) {
  DropoutAttrs attrs;
  attrs.p = p;
  attrs.stream = kDropoutStream;
  return attrs;
}

StochasticDepthAttrs depth_attrs(double p, StochasticDepthMode mode) {
  StochasticDepthAttrs attrs;
  attrs.p = p;
  attrs.mode = mode;
  attrs.stream = kDepthStream;
  return attrs;
}

void add_small_random(std::vector<OpCase>& cases) {
  cases.push_back({.name = "dropout_none",
                   .build = [=](CaseInputs& in) { dropout(in.values({2, 2}, {1, 2, 3, 4}), rng(in), dropout_attrs(0)); },
                   .expected = {1, 2, 3, 4}});
  cases.push_back({.name = "dropout_all",
                   .build = [=](CaseInputs& in) { dropout(in.values({2, 2}, {1, 2, 3, 4}), rng(in), dropout_attrs(1)); },
                   .expected = {0, 0, 0, 0}});
  cases.push_back({.name = "dropout_packs",
                   .build = [=](CaseInputs& in) { dropout(in.real({6, 3, 24}), rng(in), dropout_attrs(0.3)); },
                   .low_precision = true});
  cases.push_back({.name = "dropout_features", .build = [=](CaseInputs& in) { dropout(in.real({6, 13}), rng(in), dropout_attrs(0.3)); }});
  cases.push_back({.name = "dropout_image", .build = [=](CaseInputs& in) { dropout(in.real({2, 5, 3, 7}), rng(in), dropout_attrs(0.5)); }});
  // Dropped elements are 0, also if they were NaN or infinite.
  cases.push_back({.name = "dropout_not_a_number",
                   .build =
                       [=](CaseInputs& in) {
                         dropout(in.values({2, 8}, std::vector<double>(16, std::numeric_limits<double>::quiet_NaN())), rng(in),
                                 dropout_attrs(0.5));
                       },
                   .forward_only = true});
  cases.push_back(
      {.name = "stochastic_depth_none",
       .build =
           [=](CaseInputs& in) { stochastic_depth(in.values({2, 2}, {1, 2, 3, 4}), rng(in), depth_attrs(0, StochasticDepthMode::kRow)); },
       .expected = {1, 2, 3, 4}});
  cases.push_back({.name = "stochastic_depth_row", .build = [=](CaseInputs& in) {
                     stochastic_depth(in.real({7, 5, 3, 2}), rng(in), depth_attrs(0.4, StochasticDepthMode::kRow));
                   }});
  cases.push_back({.name = "stochastic_depth_batch", .build = [=](CaseInputs& in) {
                     stochastic_depth(in.real({3, 5}), rng(in), depth_attrs(0.4, StochasticDepthMode::kBatch));
                   }});
}

void add_shapes(std::vector<OpCase>& cases) {
  // Enough elements for several threads; samples whose random words start anywhere in a block of four; more and fewer channels than a tile.
  for (const Shape& shape : {Shape{9, 1283}, Shape{3, 67, 13, 9}, Shape{2, 131, 5, 5}, Shape{2, 3, 31, 47}, Shape{2, 6, 3, 5, 7}, Shape{17},
                             Shape{2, 5, 1, 1}, Shape{2, 1, 9, 5}, Shape{0, 3, 4, 4}}) {
    for (const double p : {0.0, 0.1, 0.75, 1.0}) {
      std::string name;
      for (const int64_t size : shape) name += cat("_", size);
      cases.push_back({.name = cat("dropout", name, "_", static_cast<int>(100 * p)),
                       .build = [=](CaseInputs& in) { dropout(in.real(shape), rng(in), dropout_attrs(p)); },
                       .forward_only = true});
      for (const auto mode : {StochasticDepthMode::kRow, StochasticDepthMode::kBatch}) {
        cases.push_back(
            {.name = cat("stochastic_depth", name, "_", static_cast<int>(100 * p), mode == StochasticDepthMode::kRow ? "_row" : "_batch"),
             .build = [=](CaseInputs& in) { stochastic_depth(in.real(shape), rng(in), depth_attrs(p, mode)); },
             .forward_only = true});
      }
    }
  }
}

void add_bounds(std::vector<OpCase>& cases) {
  // p equals the number drawn for element 5 of sample 100, which is kept; and p between the draws of sample 100 and of the whole batch.
  const auto drawn = [](int64_t stream, uint64_t sample, int64_t element) {
    return static_cast<double>(uniform_from_bits(mask_bits(kRandomSeed, stream, kStep, static_cast<int64_t>(sample), element)));
  };
  const double fifth = drawn(kDropoutStream, kFirstSample, 5),
               between = (drawn(kDepthStream, kFirstSample, 0) + drawn(kDepthStream, kWholeBatch, 0)) / 2;
  cases.push_back({.name = "dropout_bound",
                   .build = [=](CaseInputs& in) { dropout(in.real({2, 9}), rng(in), dropout_attrs(fifth)); },
                   .forward_only = true});
  cases.push_back(
      {.name = "stochastic_depth_batch_draw",
       .build = [=](CaseInputs& in) { stochastic_depth(in.real({2, 9}), rng(in), depth_attrs(between, StochasticDepthMode::kBatch)); },
       .forward_only = true});
}

/// The random words of the masks above.
void add_random_bits(std::vector<OpCase>& cases) {
  const auto bits = [=](CaseInputs& in, std::vector<int64_t> shape, bool whole_batch) {
    RandomBitsAttrs attrs;
    attrs.shape = std::move(shape);
    attrs.stream = kDropoutStream;
    attrs.whole_batch = whole_batch;
    random_bits(rng(in), attrs);
  };
  const auto word = [](uint64_t sample, int64_t element) {
    return static_cast<double>(mask_bits(kRandomSeed, kDropoutStream, kStep, static_cast<int64_t>(sample), element));
  };
  cases.push_back({.name = "random_bits_samples",
                   .build = [=](CaseInputs& in) { bits(in, {2, 3}, false); },
                   .expected = {word(100, 0), word(100, 1), word(100, 2), word(101, 0), word(101, 1), word(101, 2)}});
  cases.push_back({.name = "random_bits_batch",
                   .build = [=](CaseInputs& in) { bits(in, {1, 2}, true); },
                   .expected = {word(kWholeBatch, 0), word(kWholeBatch, 1)}});
  cases.push_back({.name = "random_bits_many", .build = [=](CaseInputs& in) { bits(in, {5, 37, 11}, false); }});
  cases.push_back({.name = "random_bits_none", .build = [=](CaseInputs& in) { bits(in, {0, 4}, false); }});
}

}  // namespace

std::vector<OpCase> random_cases() {
  std::vector<OpCase> cases;
  add_small_random(cases);
  add_shapes(cases);
  add_bounds(cases);
  add_random_bits(cases);
  return cases;
}

}  // namespace galley::test
