// The weight gradient by AMX tiles: with emulated tiles, on any machine, against the reference; with a tile unit, bit for bit against the
// emulation.

#include "libcore/backends/cpu/conv_weights_amx.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/amx_tiles.h"
#include "libcore/backends/ref/memory.h"
#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "libcore/device/stream.h"
#include "libcore/ops/conv.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley {
namespace {

using test::cpu;

/// Memory that ends at a protected page, so that an access past its end stops the program. Filled with NaN.
class Bounded {
 public:
  explicit Bounded(int64_t bytes, int64_t alignment = 1) {
    const int64_t page = sysconf(_SC_PAGESIZE), used = (bytes + alignment - 1) / alignment * alignment, pages = (used + page - 1) / page;
    size_ = static_cast<size_t>((pages + 1) * page);
    void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(base);
    if (mprotect(base_ + pages * page, static_cast<size_t>(page), PROT_NONE) != 0) throw std::bad_alloc();
    start_ = base_ + pages * page - used;
    std::memset(base_, 0xFF, static_cast<size_t>(pages * page));
  }
  ~Bounded() { munmap(base_, size_); }
  Bounded(const Bounded&) = delete;
  Bounded& operator=(const Bounded&) = delete;
  void* data() { return start_; }

 private:
  char *base_ = nullptr, *start_ = nullptr;
  size_t size_ = 0;
};

struct Window {
  int64_t batch, inputs, height, width, outputs;
  std::vector<int64_t> kernel, stride{1}, padding{0};
};

void PrintTo(const Window& w, std::ostream* to) {
  *to << "batch " << w.batch << ", " << w.inputs << " inputs of " << w.height << "x" << w.width << ", " << w.outputs << " outputs";
  for (const auto& [name, values] : {std::pair{"kernel", &w.kernel}, {"stride", &w.stride}, {"padding", &w.padding}}) {
    *to << ", " << name;
    for (const int64_t v : *values) *to << " " << v;
  }
}

enum class Form { kEmulated, kHardware };

/// The gradient for fixed inputs, by the kernel and by the reference.
class Trial {
 public:
  Trial(const Window& w, DType dtype, MemoryFormat format = {}) {
    ensure_ops_registered();
    Conv2dBackwardWeightsAttrs attrs;
    attrs.kernel_size = w.kernel;
    attrs.stride = w.stride;
    attrs.padding = w.padding;
    const auto kernel = pair(w.kernel);
    const Shape x{w.batch, w.inputs, w.height, w.width}, grad = conv_shape(attrs, x, {w.outputs, w.inputs, kernel[0], kernel[1]});
    const Value dw =
        conv2d_backward_weights(graph_.add_input("x", {DType::kBF16, x, MemoryFormat::channels_last()}, ValueRole::kInput),
                                graph_.add_input("grad", {DType::kBF16, grad, MemoryFormat::channels_last()}, ValueRole::kInput), attrs);
    TensorType& type = graph_.value(dw.id()).type;
    type.dtype = dtype;
    type.format = format;
    // The number of roundings that a product passes: 16 sums over the pixels of a tile, one that joins the two halves, one per tile of
    // pixels (lines are longer by at most the kernel), and the sums over the parts.
    const int64_t pixels = w.batch * (grad[2] + kernel[0]) * (grad[3] + kernel[1]);
    roundings_ = static_cast<double>(16 + 1 + pixels / 16 + 4);
    fill(x, 0.3, arrays_[0]);
    fill(grad, 0.7, arrays_[1]);
  }
  KernelQuery query(int threads) const {
    const Node& node = graph_.nodes().back();
    return {node, context_of(graph_, node), threads};
  }
  RefArray& x() { return arrays_[0]; }
  RefArray& grad() { return arrays_[1]; }

  RefArray run(Form form, int threads) {
    const KernelQuery q = query(threads);
    const auto kernel = form == Form::kHardware ? algorithm::kConvWeightsAmx.prepare(q) : emulated_conv_weights_amx(q);
    Bounded x(q.in(0).bytes()), grad(q.in(1).bytes()), dw(q.out(0).bytes()), scratch(kernel->scratch_bytes(), 64);
    write_array(q.in(0), arrays_[0], x.data());
    write_array(q.in(1), arrays_[1], grad.data());
    const void* inputs[] = {x.data(), grad.data()};
    void* outputs[] = {dw.data()};
    kernel->run(host_stream(), {inputs, outputs, scratch.data()});
    return read_array(q.out(0), dw.data());
  }

  /// Sums of products, or of their absolute values.
  RefArray reference(bool absolute = false) const {
    const KernelQuery q = query(1);
    RefArray x = arrays_[0], grad = arrays_[1];
    for (double& v : x.v) v = absolute ? std::fabs(v) : v;
    for (double& v : grad.v) v = absolute ? std::fabs(v) : v;
    std::vector<RefArray> results{{q.out(0).shape, std::vector<double>(static_cast<size_t>(q.out(0).shape.elements()))}};
    RefCall call(q.node.attributes.get(), q.context, {&x, &grad}, results);
    find_reference(q.node.op->name)(call);
    return results[0];
  }

  /// "", or a description of the wrong element.
  std::string compare(const RefArray& got) const {
    const RefArray want = reference(), size = reference(true);
    const bool narrow = query(1).out(0).dtype == DType::kBF16;
    for (int64_t i = 0; i < want.shape.elements(); ++i) {
      const double sums = roundings_ * 0x1p-24 * size[i], allowed = sums * 1.01 + (narrow ? (std::fabs(want[i]) + sums) * 0x1p-8 : 0);
      if (!(std::fabs(got[i] - want[i]) <= allowed))
        return cat("element ", i, " of ", want.shape, " is ", got[i], ", the reference says ", want[i], " +- ", allowed);
    }
    return "";
  }

 private:
  static void fill(const Shape& shape, double seed, RefArray& array) {
    array = {shape, std::vector<double>(static_cast<size_t>(shape.elements()))};
    for (int64_t i = 0; i < shape.elements(); ++i) array[i] = std::sin(seed + 1.618033988749895 * static_cast<double>(i * i % 10007));
    round_array(DType::kBF16, array);
  }

  Graph graph_;
  RefArray arrays_[2];
  double roundings_ = 0;
};

const std::vector<Window>& windows() {
  static const std::vector<Window> list{
      // One pixel each.
      {2, 48, 7, 7, 64, {1}},
      {1, 17, 1, 1, 33, {1}},
      {3, 100, 13, 5, 17, {1}},
      {2, 33, 14, 14, 48, {1}, {2}},
      {2, 16, 13, 13, 16, {1}, {3}},
      {1, 20, 2, 3, 20, {1}, {1}, {1}},
      {2, 6, 1, 1, 5, {1}, {3}, {1}},  // reads only padding
      {1, 300, 6, 6, 280, {1}},        // several blocks of channels on both sides
      {1, 64, 56, 56, 33, {1}},        // several blocks of pixels
      // Several.
      {2, 32, 7, 7, 64, {3}, {1}, {1}},
      {2, 64, 14, 14, 32, {3}, {1}, {1}},
      {1, 33, 56, 13, 48, {3}, {1}, {1}},
      {1, 17, 1, 1, 17, {3}, {1}, {1}},
      {3, 48, 7, 13, 100, {3}, {2}, {1}},
      {2, 64, 14, 14, 17, {3}, {2}, {1}},
      {2, 17, 13, 14, 33, {3}, {3}, {0}},
      {2, 17, 13, 14, 33, {3}, {3}, {2}},
      {2, 33, 7, 14, 16, {3}, {1}, {0}},
      {1, 17, 13, 7, 48, {5}, {1}, {2}},
      {2, 33, 14, 13, 17, {5}, {2}, {3}},
      {1, 16, 7, 9, 20, {5}, {3}, {1}},
      {2, 17, 14, 15, 16, {7}, {2}, {3}},
      {1, 40, 9, 20, 17, {1, 7}, {1}, {0, 3}},
      {1, 40, 20, 9, 17, {7, 1}, {1}, {3, 0}},
      {2, 24, 9, 10, 31, {2, 3}, {2, 1}, {1, 0}},
      {2, 24, 8, 11, 31, {4, 2}, {1, 3}, {3, 1}},
      {1, 130, 6, 5, 20, {3}, {1}, {1}},
      {1, 18, 200, 9, 16, {3}, {1}, {1}},
      {1, 18, 3, 900, 16, {3}, {1}, {1}},  // lines longer than a block
      {1, 70, 5, 6, 272, {3}, {1}, {1}},
      // Few channels: the taps of a row become channels.
      {2, 3, 56, 56, 64, {7}, {2}, {3}},
      {1, 3, 33, 31, 17, {3}, {2}, {1}},
      {2, 1, 13, 14, 6, {5}, {1}, {2}},
      {1, 2, 7, 1, 16, {3}, {1}, {1}},
      {2, 5, 14, 13, 16, {3}, {3}, {3}},
      {4, 3, 13, 13, 16, {3}, {1}, {1}},
      // Few channels that are not merged with taps.
      {2, 8, 13, 7, 9, {3}, {1}, {1}},
      {40, 2, 1, 1, 3, {1}},
  };
  return list;
}

TEST(EmulatedTiles, SumInTheUnitsOrder) {
  uint16_t left[16][32] = {}, right[16][16][2] = {};
  float sums[16][16] = {};
  const auto half = [](float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); };
  for (auto& pair : right) std::fill_n(&pair[0][0], 32, half(1));
  // First and second values of pairs are summed separately: in a single sum, 2^30 would absorb the first 1.
  const float row[] = {0x1p30f, 1, -0x1p30f, 1};
  for (int i = 0; i < 4; ++i) left[0][i] = half(row[i]);
  left[1][0] = half(0x1p-130f);  // a subnormal number
  left[2][0] = half(0x1p-100f);
  left[3][5] = half(3), right[2][7][1] = half(5);
  sums[3][7] = 0.5f;
  amx::Emulated unit;
  unit.begin();
  unit.load<0>(sums, 64);
  unit.load<4>(left, 64);
  unit.load<6>(right, 64);
  unit.multiply_bf16<0, 4, 6>();
  unit.store<0>(sums, 64);
  EXPECT_EQ(sums[0][0], 2);
  EXPECT_EQ(sums[1][3], 0);
  EXPECT_EQ(sums[2][3], 0x1p-100f);
  EXPECT_EQ(sums[3][7], 15.5f);
  EXPECT_EQ(sums[3][6], 3);
}

TEST(AmxConvWeights, EveryWindowAgainstTheReference) {
  for (const Window& w : windows()) {
    for (const int threads : {1, 2, 3}) {
      set_compute_threads(threads);
      Trial trial(w, DType::kF32);
      EXPECT_EQ(trial.compare(trial.run(Form::kEmulated, threads)), "") << testing::PrintToString(w) << ", " << threads << " threads";
    }
  }
}

TEST(AmxConvWeights, RoundsToBf16) {
  for (const Window& w : windows()) {
    set_compute_threads(2);
    Trial trial(w, DType::kBF16);
    EXPECT_EQ(trial.compare(trial.run(Form::kEmulated, 2)), "") << testing::PrintToString(w);
  }
}

TEST(AmxConvWeights, WritesBlockedFormats) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Window& w : {Window{2, 33, 5, 6, 40, {3}, {1}, {1}}, Window{1, 3, 9, 9, 17, {3}, {2}, {1}}, Window{2, 20, 5, 5, 18, {1}}}) {
      Trial trial(w, dtype, MemoryFormat::blocked("ABcd8b16a"));
      EXPECT_EQ(trial.compare(trial.run(Form::kEmulated, 2)), "") << testing::PrintToString(w) << ", " << dtype;
    }
  }
}

TEST(AmxConvWeights, EveryInstructionSetPacksAlike) {
  set_compute_threads(2);
  for (const Window& w : {Window{2, 49, 7, 6, 40, {3}, {1}, {1}}, Window{2, 100, 9, 5, 33, {1}, {2}},
                          Window{1, 3, 20, 20, 17, {7}, {2}, {3}}, Window{1, 40, 6, 6, 24, {5}, {1}, {2}}}) {
    Trial trial(w, DType::kBF16);
    const RefArray widest = trial.run(Form::kEmulated, 2);
    for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
      const test::Targets only(left & -left);
      EXPECT_EQ(trial.run(Form::kEmulated, 2).v, widest.v) << testing::PrintToString(w) << ", " << hwy::TargetName(left & -left);
    }
  }
}

TEST(AmxConvWeights, BitsDependOnLogicalThreadsOnly) {
  for (const Window& w : {Window{4, 48, 14, 14, 64, {3}, {1}, {1}}, Window{2, 64, 7, 7, 96, {1}}}) {
    Trial trial(w, DType::kF32);
    for (const int logical : {1, 2, 3, 4}) {
      set_compute_threads(1);
      const RefArray one = trial.run(Form::kEmulated, logical);
      set_compute_threads(3);
      EXPECT_EQ(trial.run(Form::kEmulated, logical).v, one.v) << testing::PrintToString(w) << ", " << logical << " logical threads";
    }
  }
}

// Values that are not finite reach the same sums as in the reference, and no other pair of channels.
TEST(AmxConvWeights, WhatIsNotFiniteStaysWithItsChannels) {
  set_compute_threads(2);
  for (const Window& w : {Window{2, 20, 7, 7, 18, {3}, {1}, {1}}, Window{2, 33, 8, 6, 16, {1}}, Window{1, 3, 9, 9, 17, {3}, {2}, {1}},
                          Window{1, 17, 9, 9, 33, {3}, {2}, {1}}}) {
    Trial trial(w, DType::kF32);
    const auto set = [](RefArray& array, int64_t channel, double value) {
      array[channel * array.shape[2] * array.shape[3] + array.shape[3] + 2] = value;
    };
    set(trial.x(), 1, std::numeric_limits<double>::infinity());
    set(trial.x(), w.inputs - 1, std::nan(""));
    set(trial.grad(), 4, std::nan(""));
    const RefArray got = trial.run(Form::kEmulated, 2), want = trial.reference();
    const int64_t taps = want.shape[2] * want.shape[3];
    int64_t finite = 0;
    for (int64_t c = 0; c < want.shape.elements(); c += taps) {
      bool reached = false;
      for (int64_t i = c; i < c + taps; ++i) {
        reached |= !std::isfinite(want[i]);
        EXPECT_TRUE(std::isfinite(want[i]) || !std::isfinite(got[i]))
            << testing::PrintToString(w) << ", element " << i << ": " << got[i] << " for " << want[i];
      }
      for (int64_t i = c; !reached && i < c + taps; ++i)
        EXPECT_TRUE(std::isfinite(got[i])) << testing::PrintToString(w) << ", element " << i << ": " << got[i];
      finite += reached ? 0 : 1;
    }
    EXPECT_GT(finite, 0);
  }
}

TEST(AmxConvWeights, CountsWhatFillsTiles) {
  const auto share = [](const Window& w) { return useful_fraction_of_tiles(Trial(w, DType::kBF16).query(2)); };
  EXPECT_EQ(share({2, 32, 4, 4, 16, {1}}), 1);
  EXPECT_EQ(share({1, 16, 4, 4, 16, {1}}), 0.5);                   // 16 pixels of 32
  EXPECT_EQ(share({4, 8, 4, 4, 16, {1}}), 0.5);                    // 8 channels of 16
  EXPECT_EQ(share({2, 64, 7, 7, 64, {3}, {1}, {1}}), 98.0 / 128);  // lines and images with a line of zeros between them
  EXPECT_EQ(share({32, 3, 8, 8, 16, {7}, {2}, {3}}),
            21.0 / 32 * 4 / 6);  // taps of a row as channels; 4 rows of the gradient for 6 rows of x
}

TEST(AmxConvWeights, TheUnitsBitsAreTheEmulations) {
  if (!tile_unit().bf16) GTEST_SKIP() << "this machine has no tile unit that multiplies bf16";
  for (const Window& w : windows()) {
    for (const int threads : {1, 2}) {
      set_compute_threads(threads);
      Trial trial(w, DType::kF32);
      EXPECT_EQ(trial.run(Form::kHardware, threads).v, trial.run(Form::kEmulated, threads).v)
          << testing::PrintToString(w) << ", " << threads << " threads";
    }
  }
}

TEST(AmxConvWeights, IsChosenWhereThereIsATileUnit) {
  const auto chosen = [](const Window& w) {
    return cpu().choose(Trial(w, DType::kBF16).query(2)).kernel->algorithm == "implicit_gemm_amx";
  };
  for (const Window& w :
       {Window{2, 64, 14, 14, 64, {3}, {1}, {1}}, Window{2, 3, 56, 56, 64, {7}, {2}, {3}}, Window{4, 64, 7, 7, 256, {1}}}) {
    EXPECT_EQ(chosen(w), tile_unit().bf16) << testing::PrintToString(w);
  }
  EXPECT_FALSE(chosen({1, 64, 1, 1, 64, {1}}));  // one pixel of 32
}

}  // namespace
}  // namespace galley
