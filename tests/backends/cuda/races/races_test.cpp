// ThreadSanitizer over the emulation of kernels, to which each thread of a block is a thread of its own (stand_in/emulate.h): it names the
// line of a missing barrier and of a sum that is not atomic, and finds nothing in the kernels whose threads work together. Built by the
// preset `tsan` alone: this program has the kernels' host code, and nothing of the back end.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "tests/backends/cuda/stand_in/emulate.h"
// The kernels, after the emulation.
#include "libcore/backends/cuda/kernels/attention_tiles.h"
#include "libcore/backends/cuda/kernels/batch_norm.h"
#include "libcore/backends/cuda/kernels/embedding.h"
#include "libcore/backends/cuda/kernels/layer_norm.h"
#include "libcore/backends/cuda/kernels/loss.h"
#include "libcore/backends/cuda/kernels/reduce.h"
#include "libcore/backends/cuda/kernels/scatter.h"

namespace galley::test {
namespace {

using namespace device;

/// The seed of the order of threads and blocks of all launches.
constexpr uint64_t kSeed = 7;

template <class... Call>
void launch(void (*kernel)(Call...), unsigned blocks, std::type_identity_t<Call>... calls) {
  emulate::launch("kernel", {blocks}, {kThreads}, 0, kSeed, [&] { kernel(calls...); });
}

std::vector<float> numbers(size_t count, int first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) * 1.7f + static_cast<float>(first));
  return values;
}
void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

// Planted errors, each in a process of its own, which ends with ThreadSanitizer's exit code.

constexpr int kMissingBarrier = __LINE__ + 2;
void add_half(float* sums, unsigned half) {
  if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
}
/// The sum of x by one block of 64 threads; `missing`: the barrier.
float sum_of_block(const std::vector<float>& x, bool missing) {
  float result = 0;
  emulate::launch("sum_of_block", {1}, {64}, 0, kSeed, [&] {
    GALLEY_SHARED(float, sums, 64);
    sums[threadIdx.x] = x[threadIdx.x];
    for (unsigned half = 32; half > 0; half /= 2) {
      if (!missing) __syncthreads();
      add_half(sums, half);
    }
    if (threadIdx.x == 0) result = sums[0];
  });
  return result;
}
constexpr int kEarlyWrite = __LINE__ + 1;
void write_next(float& shared, unsigned turn) { shared = static_cast<float>(turn); }
/// What the threads of one block read of a number that thread 0 writes in two turns; `missing`: the barrier before it is overwritten.
float sum_of_turns(bool missing) {
  std::vector<float> sums(64);
  emulate::launch("sum_of_turns", {1}, {64}, 0, kSeed, [&] {
    GALLEY_SHARED(float, shared, 1);
    for (unsigned turn = 1; turn <= 2; ++turn) {
      if (!missing) __syncthreads();
      if (threadIdx.x == 0) write_next(shared[0], turn);
      __syncthreads();
      sums[threadIdx.x] += shared[0];
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0f);
}
constexpr int kPlainSum = __LINE__ + 1;
void add_plainly(unsigned& sum, unsigned value) { sum += value; }
/// The sum of x by blocks of one thread.
unsigned sum_of_blocks(const std::vector<unsigned>& x, bool atomic) {
  unsigned sum = 0;
  emulate::launch("sum_of_blocks", {static_cast<unsigned>(x.size())}, {1}, 0, kSeed, [&] {
    if (atomic) {
      atomicAdd(&sum, x[blockIdx.x]);
    } else {
      add_plainly(sum, x[blockIdx.x]);
    }
  });
  return sum;
}

/// What ThreadSanitizer writes about a race at a line of this file.
std::string race_at(int line) { return "data race.*races_test.cpp:" + std::to_string(line); }

TEST(Races, AMissingBarrierIsNamed) {
  const std::vector<float> x(64, 2);
  EXPECT_EQ(sum_of_block(x, false), 128);
  EXPECT_EXIT((sum_of_block(x, true), std::exit(0)), testing::ExitedWithCode(66), race_at(kMissingBarrier));
}

TEST(Races, AWriteBeforeOthersHaveReadIsNamed) {
  EXPECT_EQ(sum_of_turns(false), 192);
  EXPECT_EXIT((sum_of_turns(true), std::exit(0)), testing::ExitedWithCode(66), race_at(kEarlyWrite));
}

TEST(Races, ASumOfBlocksThatIsNotAtomicIsNamed) {
  const std::vector<unsigned> x(40, 3);
  EXPECT_EQ(sum_of_blocks(x, true), 120u);
  EXPECT_EXIT((sum_of_blocks(x, false), std::exit(0)), testing::ExitedWithCode(66), race_at(kPlainSum));
}

// Kernels: a race in one of them makes this program end with ThreadSanitizer's exit code.

TEST(Races, NoneInReductions) {
  constexpr int kLines = 3, kSize = 301;
  const std::vector<float> x = numbers(kLines * kSize, 0);
  std::vector<float> y(kLines);
  const ReduceCall call{.from = x.data(),
                        .to = y.data(),
                        .type = kF32,
                        .kind = kSum,
                        .outputs = kLines,
                        .reduced = kSize,
                        .kept_dimensions = 1,
                        .reduced_dimensions = 1,
                        .kept_sizes = {kLines},
                        .kept_steps = {kSize},
                        .to_steps = {1},
                        .reduced_sizes = {kSize},
                        .reduced_steps = {1}};
  launch(reduce_blocks, 2, call);
  std::vector<double> want(kLines);
  for (size_t i = 0; i < x.size(); ++i) want[i / kSize] += x[i];
  expect_near(y, want, 1e-4);
}

/// Rows of channels, which blocks with `lanes` threads for a row share in parts.
ChannelWalk walk_of(int channels, int rows, int lanes, int parts) {
  const int of_part = (rows + parts - 1) / parts;
  return {.packs = 0,
          .lanes = lanes,
          .planes = 0,
          .channels = channels,
          .units = rows,
          .parts = parts,
          .part_units = of_part,
          .outer_step = channels,
          .unit = 0,
          .channel_step = 1,
          .inner = {1, 0, 0}};
}

TEST(Races, NoneInStatisticsOfChannels) {
  constexpr int kChannels = 5, kRows = 203, kLanes = 8, kParts = 3;
  const std::vector<float> x = numbers(kChannels * kRows, 1);
  std::vector<float> mean(kChannels), var(kChannels), table(kNormRows * kChannels), partial(2 * kChannels * kParts), sums(kChannels);
  BatchNormCall call{};
  call.x = x.data();
  call.mean = mean.data();
  call.var = var.data();
  call.table = table.data();
  call.partial = partial.data();
  call.count = kRows;
  call.walk = walk_of(kChannels, kRows, kLanes, kParts);
  launch(batch_norm_parts, kParts, call);
  launch(batch_norm_statistics, 1, call);
  ReduceChannelsCall reduce{.from = x.data(),
                            .to = sums.data(),
                            .partial = partial.data(),
                            .type = kF32,
                            .kind = kSum,
                            .walk = call.walk,
                            .batches = 1,
                            .blocks = kParts,
                            .batch_step = 0,
                            .to_batch = 0,
                            .to_channel = 1};
  launch(reduce_channels, kParts, reduce);
  launch(reduce_channel_parts, 1, reduce);
  std::vector<double> want(kChannels), means(kChannels), squares(kChannels);
  for (size_t i = 0; i < x.size(); ++i) want[i % kChannels] += x[i];
  for (size_t c = 0; c < kChannels; ++c) means[c] = want[c] / kRows;
  for (size_t i = 0; i < x.size(); ++i) squares[i % kChannels] += std::pow(x[i] - means[i % kChannels], 2) / kRows;
  expect_near(sums, want, 1e-4);
  expect_near(mean, means, 1e-5);
  expect_near(var, squares, 1e-5);
}

TEST(Races, NoneInSoftmaxAndCrossEntropy) {
  constexpr int kPositions = 3, kClasses = 270;
  const std::vector<float> x = numbers(kPositions * kClasses, 2);
  const std::vector<int64_t> target{7, 269, 100};
  std::vector<float> y(x.size()), loss(1), dx(x.size()), sums(2 * kPositions);
  launch(softmax_lines, kPositions,
         {.from = x.data(),
          .grad = nullptr,
          .to = y.data(),
          .type = kF32,
          .kind = kSoftmax,
          .outer = kPositions,
          .size = kClasses,
          .inner = 1});
  CrossEntropyCall call{};
  call.logits = x.data();
  call.target = target.data();
  call.to = loss.data();
  call.sums = sums.data();
  call.target_type = kI64;
  call.mean = 1;
  call.positions = kPositions;
  call.classes = kClasses;
  call.inner = 1;
  call.ignored = -1;
  launch(cross_entropy_rows, kPositions, call);
  launch(cross_entropy_total, 1, call);
  const float one = 1;
  call.grad = &one;
  call.to = dx.data();
  launch(cross_entropy_weights, 1, call);
  launch(cross_entropy_backward_rows, 2, call);
  std::vector<double> softmax(x.size()), gradient(x.size());
  double losses = 0;
  for (size_t p = 0; p < kPositions; ++p) {
    double sum = 0;
    for (size_t c = 0; c < kClasses; ++c) sum += std::exp(double{x[p * kClasses + c]});
    for (size_t c = 0; c < kClasses; ++c) {
      const size_t i = p * kClasses + c;
      const bool is_target = static_cast<size_t>(target[p]) == c;
      softmax[i] = std::exp(double{x[i]}) / sum;
      gradient[i] = (softmax[i] - (is_target ? 1 : 0)) / kPositions;
      if (is_target) losses -= std::log(softmax[i]) / kPositions;
    }
  }
  expect_near(y, softmax, 1e-6);
  expect_near(loss, {losses}, 1e-5);
  expect_near(dx, gradient, 1e-6);
}

/// Rows of `size` elements, forward and backward; `warps`: of a row, 0: a block for each row.
void check_layer_norm(int rows, int size, int warps) {
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(size), wide = static_cast<size_t>(size);
  const std::vector<float> x = numbers(count, 3), grad = numbers(count, 4);
  constexpr int kParts = 2;
  std::vector<float> y(count), mean(static_cast<size_t>(rows)), rstd(mean), dx(count), dgamma(wide), dbeta(wide),
      partial(2 * kParts * wide);
  LayerNormCall call{};
  call.x = x.data();
  call.y = y.data();
  call.mean = mean.data();
  call.rstd = rstd.data();
  call.warps = warps;
  call.rows = rows;
  call.size = size;
  call.parts = kParts;
  launch(warps > 0 ? layer_norm_packs : layer_norm_rows, static_cast<unsigned>(rows), call);
  call.y = dx.data();
  call.grad = grad.data();
  call.dgamma = dgamma.data();
  call.dbeta = dbeta.data();
  call.partial = partial.data();
  launch(warps > 0 ? layer_norm_backward_pack : layer_norm_partial_sums, kParts, call);
  launch(layer_norm_sums, 2, call);
  if (warps == 0) launch(layer_norm_backward_rows, 2, call);
  std::vector<double> normal(count), dx_want(count), dgamma_want(wide), dbeta_want(wide);
  for (size_t begin = 0; begin < count; begin += wide) {
    double sum = 0, square = 0, gradient = 0, product = 0;
    for (size_t i = begin; i < begin + wide; ++i) sum += x[i];
    for (size_t i = begin; i < begin + wide; ++i) square += std::pow(x[i] - sum / size, 2);
    const double scale = 1 / std::sqrt(square / size);
    for (size_t i = begin; i < begin + wide; ++i) {
      normal[i] = (x[i] - sum / size) * scale;
      gradient += grad[i];
      product += grad[i] * normal[i];
      dgamma_want[i - begin] += grad[i] * normal[i];
      dbeta_want[i - begin] += grad[i];
    }
    for (size_t i = begin; i < begin + wide; ++i) dx_want[i] = scale * (grad[i] - gradient / size - normal[i] * product / size);
  }
  expect_near(y, normal, 1e-4);
  expect_near(dx, dx_want, 1e-4);
  expect_near(dgamma, dgamma_want, 1e-4);
  expect_near(dbeta, dbeta_want, 1e-4);
}
TEST(Races, NoneInLayerNorm) {
  check_layer_norm(3, 270, 0);
  check_layer_norm(5, 264, 2);
}

TEST(Races, NoneInScatteredSums) {
  constexpr int kNumbers = 500, kPlaces = 7;
  const std::vector<float> x = numbers(kNumbers, 5);
  std::vector<int64_t> index(kNumbers);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * i % kPlaces);
  std::vector<float> y(kPlaces), parts(2), largest(2);
  std::vector<unsigned long long> sums(kPlaces);
  GatherCall call{};
  call.from = x.data();
  call.index = index.data();
  call.to = y.data();
  call.index_type = kI64;
  call.outer = 1;
  call.picked = kNumbers;
  call.whole = kPlaces;
  call.inner = 1;
  FixedSumCall fixed{};
  fixed.sums = sums.data();
  fixed.parts = parts.data();
  fixed.largest = largest.data();
  fixed.part_count = 2;
  fixed.numbers = kNumbers;
  fixed.elements = kPlaces;
  launch(scatter_largest_parts, 2, call, fixed);
  launch(largest_of_parts, 1, fixed);
  launch(scatter_add_fixed, 2, call, fixed);
  launch(scatter_sums, 1, call, fixed);
  std::vector<double> want(kPlaces);
  for (size_t i = 0; i < x.size(); ++i) want[static_cast<size_t>(index[i])] += x[i];
  expect_near(y, want, 1e-5);
}

TEST(Races, NoneInTheGradientOfAnEmbedding) {
  constexpr int kTokens = 300, kTableRows = 6, kWidth = 8;
  const std::vector<float> grad = numbers(kTokens * kWidth, 6);
  std::vector<int64_t> index(kTokens);
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int64_t>(i * i % 5);
  std::vector<float> table(kTableRows * kWidth);
  std::vector<unsigned> counts(kTableRows), ranks(kTokens), cursor(1), begins(kTableRows), order(kTokens);
  const EmbeddingCall call{.grad = grad.data(),
                           .index = index.data(),
                           .to = table.data(),
                           .counts = counts.data(),
                           .ranks = ranks.data(),
                           .cursor = cursor.data(),
                           .begins = begins.data(),
                           .order = order.data(),
                           .type = kF32,
                           .to_type = kF32,
                           .index_type = kI64,
                           .tokens = kTokens,
                           .rows = kTableRows,
                           .width = kWidth};
  launch(embedding_ranks, 3, call);
  launch(embedding_begins, 1, call);
  launch(embedding_order, 2, call);
  launch(embedding_packs, 3, call);
  std::vector<double> want(table.size());
  for (size_t t = 0; t < index.size(); ++t)
    for (size_t c = 0; c < kWidth; ++c) want[static_cast<size_t>(index[t]) * kWidth + c] += grad[t * kWidth + c];
  expect_near(table, want, 1e-4);
}

// One head of two tiles of positions, causal: the gradient of sum(o grad).
TEST(Races, NoneInTilesOfAttention) {
  constexpr size_t kPositions = 70, kWidth = 20;
  const std::vector<float> q = numbers(kPositions * kWidth, 7), k = numbers(q.size(), 8), v = numbers(q.size(), 9),
                           grad = numbers(q.size(), 10);
  std::vector<float> o(q.size()), lse(kPositions), along(kPositions), dq(q.size()), dk(q.size()), dv(q.size());
  AttentionCall call{};
  call.q = q.data();
  call.k = k.data();
  call.v = v.data();
  call.to = o.data();
  call.lse_to = lse.data();
  call.batch = call.heads = call.kv_heads = call.q_heads = call.k_heads = call.v_heads = 1;
  call.queries = call.keys = kPositions;
  call.width = call.value_width = kWidth;
  call.scale = 0.3f;
  call.kept = 1;
  call.causal = 1;
  launch(attention_64, 2, call);
  call.grad = grad.data();
  call.o = o.data();
  call.lse = lse.data();
  call.along = along.data();
  call.dq = dq.data();
  call.dk = dk.data();
  call.dv = dv.data();
  launch(attention_along, 9, call);
  launch(attention_queries_64, 2, call);
  launch(attention_keys_64, 2, call);
  std::vector<double> result(q.size()), dq_want(q.size()), dk_want(q.size()), dv_want(q.size());
  const auto product = [&](const std::vector<float>& a, size_t row, const std::vector<float>& b, size_t other) {
    double sum = 0;
    for (size_t c = 0; c < kWidth; ++c) sum += double{a[row * kWidth + c]} * b[other * kWidth + c];
    return sum;
  };
  for (size_t i = 0; i < kPositions; ++i) {
    std::vector<double> weight(i + 1);
    double sum = 0, mean = 0;
    for (size_t j = 0; j <= i; ++j) sum += weight[j] = std::exp(0.3f * product(q, i, k, j));
    for (size_t j = 0; j <= i; ++j) {
      weight[j] /= sum;
      mean += weight[j] * product(grad, i, v, j);
    }
    for (size_t j = 0; j <= i; ++j) {
      const double slope = 0.3f * weight[j] * (product(grad, i, v, j) - mean);
      for (size_t c = 0; c < kWidth; ++c) {
        result[i * kWidth + c] += weight[j] * v[j * kWidth + c];
        dv_want[j * kWidth + c] += weight[j] * grad[i * kWidth + c];
        dq_want[i * kWidth + c] += slope * k[j * kWidth + c];
        dk_want[j * kWidth + c] += slope * q[i * kWidth + c];
      }
    }
  }
  expect_near(o, result, 1e-5);
  expect_near(dq, dq_want, 1e-4);
  expect_near(dk, dk_want, 1e-4);
  expect_near(dv, dv_want, 1e-4);
}

}  // namespace
}  // namespace galley::test
