// Laws of attention with a cache. Sequences are read in pieces of any length, also with caches of fewer rows than tokens: the result of
// each token is that of plain attention in double over all tokens, up to the rounding of the stored rows, for which a bound is derived.
// Tokens are attended to as they are stored, so the pieces do not matter. Equal bits for every number of threads. What is not finite stays
// so.

#include "libcore/ops/cached_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "libcore/base/parallel.h"
#include "libcore/base/philox.h"
#include "libcore/device/device.h"
#include "tests/ops/mistakes.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

using Numbers = std::vector<float>;

struct Setting {
  int64_t tokens, heads, kv_heads, width, capacity;
  int64_t window = 0;
  DType stored = DType::kF32;
  int64_t group() const { return heads / kv_heads; }
  int64_t reach() const { return window > 0 ? window : tokens; }
};
std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "[" << s.tokens << "," << s.heads << "/" << s.kv_heads << "," << s.width << "] in " << s.capacity << " rows of " << s.stored
             << ", window " << s.window;
}

/// One sequence: queries, keys and values of each token, head after head.
struct Sequence {
  explicit Sequence(const Setting& setting) : s(setting) {
    RandomStream random(31, "sequence");
    for (auto [values, heads] : {std::pair(&q, s.heads), {&k, s.kv_heads}, {&v, s.kv_heads}}) {
      values->resize(static_cast<size_t>(s.tokens * heads * s.width));
      for (float& x : *values) x = static_cast<float>(random.uniform(-2, 2));
    }
  }
  double key(int64_t t, int64_t h, int64_t i) const { return k[static_cast<size_t>((t * s.kv_heads + h) * s.width + i)]; }
  double value(int64_t t, int64_t h, int64_t i) const { return v[static_cast<size_t>((t * s.kv_heads + h) * s.width + i)]; }
  const float* query(int64_t t, int64_t h) const { return &q[static_cast<size_t>((t * s.heads + h) * s.width)]; }

  /// The result of query head h of token t in double, and how far the rounding of stored rows may move it.
  std::pair<std::vector<double>, double> result(int64_t t, int64_t h) const {
    const int64_t g = h / s.group(), first = std::max<int64_t>(0, t - s.reach() + 1);
    const double scale = 1 / std::sqrt(static_cast<double>(s.width));
    std::vector<double> p, o(static_cast<size_t>(s.width));
    double score_error = 0, value_error = 0, largest_value = 0;
    for (int64_t j = first; j <= t; ++j) {
      double score = 0, sum = 0, products = 0, largest_key = 0, largest = 0;
      for (int64_t i = 0; i < s.width; ++i) {
        score += query(t, h)[i] * key(j, g, i);
        sum += std::abs(query(t, h)[i]);
        products += std::abs(query(t, h)[i] * key(j, g, i));
        largest_key = std::max(largest_key, std::abs(key(j, g, i)));
        largest = std::max(largest, std::abs(value(j, g, i)));
      }
      p.push_back(score * scale);
      largest_value = std::max(largest_value, largest);
      // int8: half a step of largest / 127. bf16: 2^-9 of each value.
      score_error = std::max(score_error, scale * (s.stored == DType::kI8 ? sum * largest_key / 254 : products / 512));
      value_error = std::max(value_error, s.stored == DType::kI8 ? largest / 254 : largest / 512);
    }
    const double top = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& x : p) total += x = std::exp(x - top);
    for (int64_t j = first; j <= t; ++j) {
      for (int64_t i = 0; i < s.width; ++i) o[static_cast<size_t>(i)] += p[static_cast<size_t>(j - first)] / total * value(j, g, i);
    }
    const double rounding = 2e-5;
    if (s.stored == DType::kF32) return {o, rounding};
    // Scores that are wrong by e change each probability by a factor between exp(-2e) and exp(2e).
    return {o, rounding + std::expm1(2 * score_error) * largest_value + value_error};
  }

  Setting s;
  Numbers q, k, v;
};

/// A cache, and the results so far.
class Reader {
 public:
  Reader(const Sequence& sequence, int threads)
      : sequence_(sequence),
        s_(sequence.s),
        threads_(threads),
        cache_(static_cast<size_t>(s_.capacity * 2 * s_.kv_heads * s_.width * dtype_size(s_.stored)), std::byte{0x55}),
        scales_(static_cast<size_t>(s_.capacity * 2 * s_.kv_heads), 1e9f) {}
  /// Reads `count` further tokens by a program of `length`.
  void read(int64_t count, int64_t length) {
    Graph graph;
    const auto input = [&](const char* name, const Shape& shape, DType dtype = DType::kF32) {
      return graph.add_input(name, {.dtype = dtype, .shape = shape}, ValueRole::kInput);
    };
    CachedAttentionInputs in{.q = input("q", {1, length, s_.heads, s_.width}),
                             .k = input("k", {1, length, s_.kv_heads, s_.width}),
                             .v = input("v", {1, length, s_.kv_heads, s_.width}),
                             .cache = input("cache", {1, s_.capacity, 2 * s_.kv_heads, s_.width}, s_.stored)};
    if (s_.stored == DType::kI8) in.scales = input("scales", {1, s_.capacity, 2 * s_.kv_heads});
    in.position = input("position", {1}, DType::kI64);
    in.last = input("last", {1}, DType::kI64);
    CachedAttentionAttrs attrs;
    attrs.window = s_.window;
    cached_attention(in, attrs);
    KernelQuery query = cpu().query(graph, graph.nodes().back());
    query.threads = threads_;
    const KernelChoice choice = cpu().choose(query);
    ASSERT_EQ(choice.kernel->algorithm, length == 1 && s_.width % 16 == 0 ? "decode" : "flash") << choice.reasons();
    run(*choice.kernel->prepare(query), count, length);
    done += count;
  }
  int64_t done = 0;
  Numbers o;

 private:
  Numbers next(const Numbers& all, int64_t heads, int64_t count, int64_t length) const {
    const int64_t row = heads * s_.width;
    Numbers part(all.begin() + done * row, all.begin() + (done + count) * row);
    part.resize(static_cast<size_t>(length * row), 3.0f);  // padding
    return part;
  }
  void run(const PreparedKernel& kernel, int64_t count, int64_t length) {
    const Numbers q = next(sequence_.q, s_.heads, count, length), k = next(sequence_.k, s_.kv_heads, count, length),
                  v = next(sequence_.v, s_.kv_heads, count, length);
    const int64_t position = count == 0 ? -1 : done, last = count - 1;
    Numbers out(q.size(), std::nanf(""));
    const void* scales = s_.stored == DType::kI8 ? scales_.data() : nullptr;
    const std::vector<const void*> inputs{q.data(), k.data(), v.data(), cache_.data(), scales, &position, &last};
    const std::vector<void*> outputs{out.data(), cache_.data(), scales_.data()};
    std::vector<std::byte> scratch(static_cast<size_t>(kernel.scratch_bytes()) + 64, std::byte{0xFF});
    auto* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    const ThreadShare share(threads_);
    kernel.run(host_stream(), {inputs, outputs, aligned});
    const int64_t row = s_.heads * s_.width;
    for (size_t i = static_cast<size_t>(count * row); i < out.size(); ++i) ASSERT_EQ(out[i], 0.0f) << "padding";
    o.insert(o.end(), out.begin(), out.begin() + count * row);
  }

  const Sequence& sequence_;
  const Setting& s_;
  int threads_;
  std::vector<std::byte> cache_;
  Numbers scales_;
};

/// Pieces as (tokens, length of the program), which repeat.
using Pieces = std::vector<std::pair<int64_t, int64_t>>;

Numbers read_in_pieces(const Sequence& sequence, const Pieces& pieces, int threads = 2) {
  Reader reader(sequence, threads);
  for (size_t i = 0; reader.done < sequence.s.tokens; ++i) {
    const auto& [count, length] = pieces[i % pieces.size()];
    reader.read(std::min(count, sequence.s.tokens - reader.done), length);
  }
  return reader.o;
}

void check_cached(const Setting& s) {
  SCOPED_TRACE(testing::Message() << s);
  const Sequence sequence(s);
  const std::vector<Pieces> all{{{1, 1}}, {{s.tokens, s.tokens + 3}}, {{5, 16}, {1, 1}, {0, 16}, {16, 16}, {0, 1}, {1, 1}, {32, 32}}};
  std::vector<Numbers> results;
  for (const Pieces& pieces : all) results.push_back(read_in_pieces(sequence, pieces));
  double total_error = 0;
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const auto [want, bound] = sequence.result(t, h);
      for (int64_t i = 0; i < s.width; ++i) {
        const auto at = static_cast<size_t>((t * s.heads + h) * s.width + i);
        for (size_t n = 0; n < all.size(); ++n) {
          ASSERT_NEAR(results[n][at], want[static_cast<size_t>(i)], bound) << "token " << t << " head " << h << " pieces " << n;
          ASSERT_NEAR(results[n][at], results[0][at], 1e-5) << "token " << t << " head " << h << " pieces " << n;
        }
        total_error += std::abs(static_cast<double>(results[0][at]) - want[static_cast<size_t>(i)]);
      }
    }
  }
  const double mean = total_error / static_cast<double>(sequence.q.size());
  // int8: values of up to 2 in steps of 2 / 127.
  EXPECT_LT(mean, s.stored == DType::kF32 ? 1e-6 : 4e-3);
  EXPECT_TRUE(s.stored == DType::kF32 || mean > 1e-4) << "nothing is rounded: " << mean;
  for (const int threads : {1, 3}) {
    const Numbers other = read_in_pieces(sequence, all.back(), threads);
    EXPECT_EQ(std::memcmp(other.data(), results.back().data(), other.size() * sizeof(float)), 0) << threads << " threads give other bits";
  }
}

bool has_kernel() { return !cpu().reference() && (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0; }

TEST(CachedAttention, GivesWhatAttentionToAllTokensGives) {
  if (!has_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kI8}) {
      check_cached({80, 4, 2, 64, 80, 0, stored});
      check_cached({70, 8, 1, 16, 300, 0, stored});
      check_cached({70, 2, 2, 80, 70, 33, stored});
      check_cached({40, 3, 3, 20, 40, 0, stored});
    }
  });
}

// Rows of tokens that left the window are used again; a piece may be longer than the ring.
TEST(CachedAttention, RingsHoldTheWindow) {
  if (!has_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kI8}) {
      for (const int64_t window : {1, 7, 64}) check_cached({110, 4, 2, 16, window, window, stored});
      check_cached({60, 2, 1, 12, 9, 9, stored});
    }
  });
}

TEST(CachedAttention, WhatIsNotFiniteStaysSo) {
  if (!has_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  for (const DType stored : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      Sequence sequence({20, 1, 1, 16, 20, 0, stored});
      sequence.v[9 * 16 + 3] = bad;
      for (const Pieces& pieces : {Pieces{{1, 1}}, Pieces{{20, 20}}}) {
        const Numbers o = read_in_pieces(sequence, pieces);
        for (int64_t t = 0; t < 20; ++t) {
          // In a tile, a masked token has the factor 0, which NaN outlives.
          const bool finite = std::isfinite(o[static_cast<size_t>(t * 16 + 3)]), alone = pieces.front().second == 1;
          EXPECT_TRUE(t >= 9 ? !finite : finite || !alone) << stored << " token " << t;
        }
      }
    }
  }
}

class CachedAttentionMistakes : public MistakeTest {};

TEST_F(CachedAttentionMistakes, AreShown) {
  const Value q = input({2, 3, 4, 8}), k = input({2, 3, 2, 8}), position = input({2}, DType::kI64);
  const auto made = [&](Value cache, Value scales = {}) { return CachedAttentionInputs{q, k, k, cache, scales, position, {}}; };
  expect_error([&] { cached_attention(made(input({2, 10, 2, 8}))); }, {"cache must be [2,capacity,4,8]", "[2,10,2,8]"});
  expect_error([&] { cached_attention(made(input({2, 10, 4, 8}, DType::kF64))); }, {"cache must be f32", "bf16 or i8"});
  expect_error([&] { cached_attention(made(input({2, 10, 4, 8}, DType::kI8))); }, {"an i8 cache needs scales"});
  expect_error([&] { cached_attention(made(input({2, 10, 4, 8}), input({2, 10, 4}))); }, {"others have none"});
  expect_error([&] { cached_attention(made(input({2, 10, 4, 8}, DType::kI8), input({2, 10, 2}))); }, {"scales must be f32 [2,10,4]"});
  expect_error([&] { cached_attention({.q = q, .cache = input({2, 10, 4, 8}), .position = position}); }, {"4 heads", "three parts"});
  expect_error([&] { cached_attention({q, k, input({2, 3, 4, 8}), input({2, 10, 4, 8}), {}, position, {}}); }, {"v has 4"});
  expect_error([&] { cached_attention({q, input({2, 3, 3, 8}), input({2, 3, 3, 8}), input({2, 10, 6, 8}), {}, position, {}}); },
               {"3 key heads do not divide 4 query heads"});
  expect_error([&] { cached_attention({q, k, k, input({2, 10, 4, 8}), {}, input({3}, DType::kI64), {}}); }, {"position must be i64 [2]"});
}

}  // namespace
}  // namespace galley::test
