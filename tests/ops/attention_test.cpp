// The kernels of attention against plain loops in double, on sequences of many lengths around those of tiles; equal bits for every number
// of threads; what dropout drops; large scores.

#include "libcore/ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "libcore/base/parallel.h"
#include "libcore/device/device.h"
#include "libcore/ops/random_mask.h"
#include "tests/ops/harness.h"
#include "tests/ops/mistakes.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

using AttentionNumbers = std::vector<float>;

struct AttentionSetting {
  int64_t batch, queries, keys, heads, kv_heads, width;
  AttentionAttrs attrs = {};
  std::vector<int64_t> lengths = {}, position = {};
  bool packed = false, bias = false;
  double size = 1;  // of queries and keys
};

std::ostream& operator<<(std::ostream& out, const AttentionSetting& s) {
  out << "[" << s.batch << "," << s.queries << "/" << s.keys << "," << s.heads << "/" << s.kv_heads << "," << s.width << "]";
  if (s.attrs.causal) out << " causal";
  if (s.attrs.window > 0) out << " window " << s.attrs.window;
  if (s.attrs.pad_queries) out << " pad_queries";
  if (s.attrs.softcap > 0) out << " softcap";
  if (s.attrs.dropout > 0) out << " dropout";
  for (const int64_t length : s.lengths) out << " length " << length;
  if (s.packed) out << " packed";
  if (s.bias) out << " bias";
  return out;
}

constexpr int64_t kSeed = 11, kStep = 5, kFirstSample = 40;

/// Rows [B,T,heads,width].
struct Array {
  AttentionNumbers values;
  int64_t rows, heads, width;
  float at(int64_t b, int64_t t, int64_t h, int64_t c) const {
    return values[static_cast<size_t>(((b * rows + t) * heads + h) * width + c)];
  }
};

Array random_array(const AttentionSetting& s, int64_t rows, int64_t heads, std::string_view name, double size) {
  Array array{AttentionNumbers(static_cast<size_t>(s.batch * rows * heads * s.width)), rows, heads, s.width};
  RandomStream random(31, name);
  for (float& value : array.values) value = static_cast<float>(random.uniform(-size, size));
  return array;
}

/// Inputs, and what plain loops make of them.
struct Oracle {
  explicit Oracle(const AttentionSetting& setting)
      : s(setting),
        q(random_array(s, s.queries, s.heads, "q", s.size)),
        k(random_array(s, s.keys, s.kv_heads, "k", s.size)),
        v(random_array(s, s.keys, s.kv_heads, "v", 1)),
        grad(random_array(s, s.queries, s.heads, "grad", 1)) {
    if (s.bias) {
      bias.resize(static_cast<size_t>(s.heads * s.queries * s.keys));
      RandomStream random(32, "bias");
      for (float& value : bias) value = static_cast<float>(random.uniform(-1, 1));
    }
    for (auto* array : {&o, &dq}) array->resize(q.values.size());
    for (auto* array : {&dk, &dv}) array->resize(k.values.size());
    lse.resize(static_cast<size_t>(s.batch * s.heads * s.queries));
    dbias.resize(bias.size());
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) row(b, h, i);
      }
    }
  }

  bool reads(int64_t b, int64_t i, int64_t j) const {
    const auto at = static_cast<size_t>(b);
    const int64_t position = i + (s.position.empty() ? 0 : s.position[at]);
    if (!s.lengths.empty() && (j >= s.lengths[at] || (s.attrs.pad_queries && position >= s.lengths[at]))) return false;
    if (s.attrs.causal && j > position) return false;
    return s.attrs.window == 0 || (j > position - s.attrs.window && j < position + s.attrs.window);
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (s.attrs.dropout == 0) return 1;
    const uint32_t bits = mask_bits(kSeed, s.attrs.stream, kStep, kFirstSample + b, (h * s.queries + i) * s.keys + j);
    return mask_keeps(bits, s.attrs.dropout) ? mask_scale(s.attrs.dropout) : 0;
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const int64_t g = h / (s.heads / s.kv_heads);
    const double scale = s.attrs.scale != 0 ? s.attrs.scale : 1 / std::sqrt(static_cast<double>(s.width));
    std::vector<double> score(static_cast<size_t>(s.keys)), slope(score.size(), 1.0);
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t j = 0; j < s.keys; ++j) {
      double& x = score[static_cast<size_t>(j)];
      if (!reads(b, i, j)) {
        x = -std::numeric_limits<double>::infinity();
        continue;
      }
      for (int64_t c = 0; c < s.width; ++c) x += static_cast<double>(q.at(b, i, h, c)) * static_cast<double>(k.at(b, j, g, c));
      x *= scale;
      if (s.attrs.softcap > 0) {
        const double bent = std::tanh(x / s.attrs.softcap);
        x = s.attrs.softcap * bent;
        slope[static_cast<size_t>(j)] = 1 - bent * bent;
      }
      if (s.bias) x += static_cast<double>(bias[static_cast<size_t>((h * s.queries + i) * s.keys + j)]);
      largest = std::max(largest, x);
    }
    const auto at = [&](const Array& array, int64_t t, int64_t head, int64_t c) {
      return static_cast<size_t>(((b * array.rows + t) * array.heads + head) * s.width + c);
    };
    double& log_sum = lse[static_cast<size_t>((b * s.heads + h) * s.queries + i)];
    log_sum = largest;
    if (largest == -std::numeric_limits<double>::infinity()) return;
    for (double& x : score) total += std::exp(x - largest);
    log_sum += std::log(total);
    double along = 0;
    std::vector<double> dp(score.size());
    for (int64_t j = 0; j < s.keys; ++j) {
      const double p = std::exp(score[static_cast<size_t>(j)] - log_sum), kept = factor(b, h, i, j);
      if (p == 0) continue;
      for (int64_t c = 0; c < s.width; ++c) {
        const auto value = static_cast<double>(v.at(b, j, g, c)), slope_of_o = static_cast<double>(grad.at(b, i, h, c));
        o[at(q, i, h, c)] += p * kept * value;
        dv[at(v, j, g, c)] += p * kept * slope_of_o;
        dp[static_cast<size_t>(j)] += kept * slope_of_o * value;
      }
      along += p * dp[static_cast<size_t>(j)];
    }
    for (int64_t j = 0; j < s.keys; ++j) {
      const double ds = std::exp(score[static_cast<size_t>(j)] - log_sum) * (dp[static_cast<size_t>(j)] - along);
      if (ds == 0) continue;
      if (s.bias) dbias[static_cast<size_t>((h * s.queries + i) * s.keys + j)] += ds;
      const double raw = ds * slope[static_cast<size_t>(j)] * scale;
      for (int64_t c = 0; c < s.width; ++c) {
        dq[at(q, i, h, c)] += raw * static_cast<double>(k.at(b, j, g, c));
        dk[at(k, j, g, c)] += raw * static_cast<double>(q.at(b, i, h, c));
      }
    }
  }

  const AttentionSetting& s;
  Array q, k, v, grad;
  AttentionNumbers bias;
  std::vector<double> o, lse, dq, dk, dv, dbias;
};

/// The results of both kernels.
struct Results {
  AttentionNumbers o, lse, dq, dk, dv, dbias;
  friend bool operator==(const Results& a, const Results& b) {
    const auto same = [](const AttentionNumbers& x, const AttentionNumbers& y) {
      return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
    };
    return same(a.o, b.o) && same(a.lse, b.lse) && same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv) && same(a.dbias, b.dbias);
  }
};

/// Parts [B,T,heads,width] joined along the heads, and apart.
AttentionNumbers joined(const std::vector<const Array*>& parts, int64_t batch) {
  AttentionNumbers all;
  for (int64_t row = 0; row < batch * parts[0]->rows; ++row) {
    for (const Array* part : parts) {
      const auto size = static_cast<std::ptrdiff_t>(part->heads * part->width);
      all.insert(all.end(), part->values.begin() + row * size, part->values.begin() + (row + 1) * size);
    }
  }
  return all;
}
AttentionNumbers apart(const AttentionNumbers& all, int64_t heads, int64_t first, int64_t count, int64_t width) {
  AttentionNumbers part;
  for (auto at = all.begin(); at != all.end(); at += heads * width)
    part.insert(part.end(), at + first * width, at + (first + count) * width);
  return part;
}

std::vector<AttentionNumbers> run_node(const Graph& graph, const Node& node, const std::vector<const void*>& inputs, int threads) {
  KernelQuery query = cpu().query(graph, node);
  query.threads = threads;
  const KernelChoice choice = cpu().choose(query);
  GALLEY_ASSERT(!choice.kernel->reference, choice.reasons());
  const std::unique_ptr<PreparedKernel> kernel = choice.kernel->prepare(query);
  std::vector<AttentionNumbers> results;
  std::vector<void*> outputs;
  for (ValueId id : node.outputs) results.emplace_back(static_cast<size_t>(graph.type(id).elements()), std::nanf(""));
  for (AttentionNumbers& result : results) outputs.push_back(result.data());
  std::vector<std::byte> scratch(static_cast<size_t>(kernel->scratch_bytes()) + 64, std::byte{0xFF});
  auto* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  const ThreadShare share(threads);
  kernel->run(host_stream(), {inputs, outputs, aligned});
  return results;
}

Results run_kernels(const Oracle& oracle, int threads) {
  const AttentionSetting& s = oracle.s;
  Graph graph;
  int count = 0;
  const auto input = [&](const Shape& shape, DType dtype = DType::kF32) {
    TensorType type;
    type.dtype = dtype;
    type.shape = shape;
    return graph.add_input(cat("in", count++), type, ValueRole::kInput);
  };
  AttentionAttrs attrs = s.attrs;
  AttentionInputs in;
  AttentionNumbers packed;
  const std::vector<int64_t> rng{kSeed, kStep, kFirstSample};
  const int64_t heads = s.heads + 2 * s.kv_heads;
  std::vector<const void*> data(7);
  if (s.packed) {
    packed = joined({&oracle.q, &oracle.k, &oracle.v}, s.batch);
    attrs.kv_heads = s.kv_heads;
    in.q = input({s.batch, s.queries, heads, s.width});
    data[0] = packed.data();
  } else {
    in.q = input({s.batch, s.queries, s.heads, s.width});
    in.k = input({s.batch, s.keys, s.kv_heads, s.width});
    in.v = input({s.batch, s.keys, s.kv_heads, s.width});
    data[0] = oracle.q.values.data(), data[1] = oracle.k.values.data(), data[2] = oracle.v.values.data();
  }
  if (s.bias) in.bias = input({1, s.heads, s.queries, s.keys}), data[3] = oracle.bias.data();
  if (!s.lengths.empty()) in.lengths = input({s.batch}, DType::kI64), data[4] = s.lengths.data();
  if (!s.position.empty()) in.position = input({s.batch}, DType::kI64), data[5] = s.position.data();
  if (s.attrs.dropout > 0) in.rng = input({3}, DType::kI64), data[6] = rng.data();
  const Value grad = input({s.batch, s.queries, s.heads, s.width});
  const Attention a = attention(in, attrs);
  const Node forward = graph.nodes().back();
  std::vector<AttentionNumbers> made = run_node(graph, forward, data, threads);
  Results r;
  r.o = made[0];
  r.lse = made[1];
  attrs.bias_gradient = s.bias;
  attention_backward(in, grad, a.o, a.lse, {}, attrs);
  data.insert(data.end(), {oracle.grad.values.data(), r.o.data(), r.lse.data(), nullptr});
  made = run_node(graph, Node(graph.nodes().back()), data, threads);
  if (s.packed) {
    r.dq = apart(made[0], heads, 0, s.heads, s.width);
    r.dk = apart(made[0], heads, s.heads, s.kv_heads, s.width);
    r.dv = apart(made[0], heads, s.heads + s.kv_heads, s.kv_heads, s.width);
  } else {
    r.dq = made[0], r.dk = made[1], r.dv = made[2];
  }
  if (s.bias) r.dbias = made.back();
  return r;
}

void expect_near(const AttentionNumbers& got, const std::vector<double>& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0.5;  // a term of a sum is about 1; sums of which the true value is 0 carry its rounding
  for (const double value : want) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0.0);
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    const bool same = std::isfinite(want[i]) ? std::abs(value - want[i]) <= tolerance * largest : value == want[i];
    ASSERT_TRUE(same) << what << "[" << i << "] is " << value << ", in double " << want[i];
  }
}

void check_attention(const AttentionSetting& s, double tolerance = 1e-5) {
  SCOPED_TRACE(testing::Message() << s);
  const Oracle oracle(s);
  const Results one = run_kernels(oracle, 1);
  expect_near(one.o, oracle.o, tolerance, "o");
  expect_near(one.lse, oracle.lse, tolerance, "lse");
  expect_near(one.dq, oracle.dq, tolerance, "dq");
  expect_near(one.dk, oracle.dk, tolerance, "dk");
  expect_near(one.dv, oracle.dv, tolerance, "dv");
  expect_near(one.dbias, oracle.dbias, tolerance, "dbias");
  for (const int threads : {2, 3}) EXPECT_TRUE(run_kernels(oracle, threads) == one) << threads << " threads give other bits";
}

/// Are there vectors for which the kernel is made?
bool has_attention_kernel() { return !cpu().reference() && (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0; }

AttentionAttrs masks(bool causal, int64_t window = 0) {
  AttentionAttrs attrs;
  attrs.causal = causal;
  attrs.window = window;
  return attrs;
}

TEST(AttentionKernels, EveryLength) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    const std::vector<int64_t> lengths{1, 15, 16, 17, 63, 64, 65, 100, 300}, widths{8, 64, 80, 256};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t t = lengths[i], other = lengths[(i * 4 + 2) % lengths.size()], width = widths[i % 4];
      check_attention({1, t, t, 2, 2, width, masks(true), {}, {}, true});
      check_attention({1, t, other, 2, 1, widths[(i + 1) % 3], masks(false)});
    }
  });
}

TEST(AttentionKernels, EveryMask) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    for (const bool causal : {false, true}) {
      for (const int64_t window : {0, 1, 7, 60}) {
        for (const int padding : {0, 1, 2}) {
          AttentionSetting s{3, 70, 70, 2, 1, 12, masks(causal, window), {}, {}, padding == 1};
          if (padding > 0) s.lengths = {70, 51, 0};
          s.attrs.pad_queries = padding == 2;
          check_attention(s);
        }
      }
    }
    check_attention({2, 5, 130, 2, 2, 16, masks(true), {130, 100}, {125, 60}});
    check_attention({2, 9, 130, 4, 2, 16, masks(true, 50), {}, {121, 3}});
  });
}

// Fewer queries than a tile has rows.
TEST(AttentionKernels, FewQueries) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    for (const int64_t keys : {1, 31, 32, 33, 64, 65, 300, 2500}) {
      check_attention({1, 1, keys, 2, 2, 64, masks(true), {}, {keys - 1}});
      check_attention({2, 3, keys, 4, 2, 16, masks(true), {}, {keys / 2, keys}});
      check_attention({3, 4, keys, 2, 1, 80, masks(keys % 2 == 0, 40), {keys, keys / 3, 0}, {keys / 4, 0, 5}});
      check_attention({1, 2, keys, 2, 2, 48, masks(false)});
    }
    AttentionSetting s{1, 2, 100, 2, 2, 16, masks(true), {}, {97}};
    s.size = 30;  // scores of thousands: one key has all the weight
    check_attention(s, 1e-3);
  });
  AttentionSetting s{1, 4, 200, 1, 1, 16, masks(true), {}, {150}};
  Oracle oracle(s);
  oracle.q.values[2 * 16] = std::nanf("");
  const Results r = run_kernels(oracle, 2);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(r.o[static_cast<size_t>(i * 16)]), i == 2) << "row " << i;
}

TEST(AttentionKernels, BiasSoftcapAndDropout) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    for (const int what : {1, 2, 4, 7}) {
      AttentionSetting s{2, 67, 67, 4, 2, 24, masks(what == 7)};
      s.bias = (what & 1) != 0;
      if ((what & 2) != 0) s.attrs.softcap = 0.5;
      if ((what & 4) != 0) s.attrs.dropout = 0.25, s.attrs.stream = 77;
      s.packed = what == 7;
      check_attention(s);
    }
  });
}

/// Scores are whole numbers up to 12,288 in size, which float holds exactly; so does the result, of a maximum that is mostly alone.
TEST(AttentionKernels, LargeScores) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  with_each_width([] {
    AttentionSetting s{1, 50, 80, 2, 2, 12, {}};
    s.attrs.scale = 1;
    Oracle oracle(s);
    RandomStream random(8, "large");
    for (Array* array : {&oracle.q, &oracle.k}) {
      for (float& value : array->values) value = static_cast<float>(static_cast<int64_t>(random.below(65)) - 32);
    }
    for (auto* array : {&oracle.o, &oracle.lse, &oracle.dq, &oracle.dk, &oracle.dv}) std::fill(array->begin(), array->end(), 0.0);
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) oracle.row(0, h, i);
    }
    const Results r = run_kernels(oracle, 2);
    expect_near(r.o, oracle.o, 1e-5, "o");
    expect_near(r.lse, oracle.lse, 1e-6, "lse");
    // lse is stored in float: 2^-11 at 8,192, which probabilities are wrong by.
    expect_near(r.dq, oracle.dq, 2e-3, "dq");
    expect_near(r.dk, oracle.dk, 2e-3, "dk");
    expect_near(r.dv, oracle.dv, 2e-3, "dv");
  });
}

TEST(AttentionKernels, DropoutKeepsTheMean) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  // Equal scores and values of 1: o is the share of kept keys, divided by 1 - p.
  AttentionSetting s{4, 64, 128, 4, 4, 8, {}};
  s.attrs.dropout = 0.3;
  Oracle oracle(s);
  std::fill(oracle.q.values.begin(), oracle.q.values.end(), 0.0f);
  std::fill(oracle.v.values.begin(), oracle.v.values.end(), 1.0f);
  const Results r = run_kernels(oracle, 2);
  double mean = 0;
  for (const float value : r.o) mean += static_cast<double>(value) / static_cast<double>(r.o.size());
  // 131,072 draws of deviation 0.65: 0.0018 of the mean.
  EXPECT_NEAR(mean, 1, 4 * 0.0018);
}

TEST(AttentionKernels, NotANumberStays) {
  if (!has_attention_kernel()) GTEST_SKIP() << "no kernel for this machine's vectors";
  AttentionSetting s{1, 20, 20, 1, 1, 8, masks(true)};
  Oracle oracle(s);
  oracle.q.values[5 * 8] = std::nanf("");
  const Results r = run_kernels(oracle, 1);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(r.o[static_cast<size_t>(i * 8)]), i == 5) << "row " << i;
}

class AttentionMistakes : public MistakeTest {};

TEST_F(AttentionMistakes, AreShown) {
  const auto heads = [&](int64_t rows, int64_t count, int64_t width = 4) { return input({2, rows, count, width}); };
  AttentionAttrs attrs;
  expect_error([&] { attention({.q = input({2, 5, 12})}); }, {"[attention]", "[batch,queries,heads,width]", "[2,5,12]"});
  expect_error([&] { attention({.q = heads(5, 4)}); }, {"4 heads", "three parts", "kv_heads"});
  expect_error([&] { attention({.q = heads(5, 4), .k = heads(5, 3), .v = heads(5, 3)}); }, {"3 key heads do not divide 4 query heads"});
  expect_error([&] { attention({.q = heads(5, 4), .k = heads(5, 3)}); }, {"keys and values", "3 heads", "odd"});
  expect_error([&] { attention({.q = heads(5, 4), .k = heads(5, 4, 8), .v = heads(5, 4)}); }, {"k must be [2,keys,heads,4]", "[2,5,4,8]"});
  expect_error([&] { attention({.q = heads(5, 4), .k = heads(5, 4), .v = heads(6, 4)}); }, {"v must be [2,5,4,width]", "[2,6,4,4]"});
  expect_error([&] { attention({.q = heads(5, 6), .bias = input({2, 2, 5, 4})}); },
               {"bias must be [2 or a divisor,2 or 1,5 or 1,5]", "[2,2,5,4]"});
  expect_error([&] { attention({.q = heads(5, 6), .lengths = input({3}, DType::kI64)}); }, {"lengths must be i64 [2]", "[3]"});
  attrs.dropout = 0.5;
  expect_error([&] { attention({.q = heads(5, 6)}, attrs); }, {"dropout=0.5", "rng"});
  attrs.dropout = 0;
  attrs.pad_queries = true;
  expect_error([&] { attention({.q = heads(5, 6)}, attrs); }, {"pad_queries", "lengths"});
}

}  // namespace
}  // namespace galley::test
