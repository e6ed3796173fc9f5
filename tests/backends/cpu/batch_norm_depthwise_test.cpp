// batch_norm_depthwise_backward processes as many channels at a time as fit in a cache: the gradients of a channel do not depend on the
// number of channels, bit for bit.

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"

namespace galley {
namespace {

using test::cpu;

constexpr int64_t kImages = 2, kSize = 41, kPixels = kImages * kSize * kSize, kChannels = 655, kTaps = 9;

struct Gradients {
  std::vector<float> dx, dweight, dgamma, dbeta;
};

float value_of(int64_t array, int64_t channel, int64_t i) {
  const int64_t k = channel * 131 + i;
  return static_cast<float>(1.5 + std::sin(0.7 * static_cast<double>(array + 1) + 1.618 * static_cast<double>(k * k % 10007)));
}

/// The gradients of only the channels [first, end), in a network with just these channels.
Gradients gradients_of(int64_t first, int64_t end) {
  const int64_t channels = end - first;
  Graph g;
  int64_t inputs = 0;
  const auto input = [&](const Shape& shape, const MemoryFormat& format) {
    return g.add_input(cat("in", inputs++), {DType::kF32, shape, format, {}}, ValueRole::kInput);
  };
  const Shape image{kImages, channels, kSize, kSize};
  const auto last = MemoryFormat::channels_last();
  BatchNormDepthwiseAttrs a;
  a.activation = Activation::kHardswish;
  a.padding = {1};
  const Value grad = input(image, last), weight = input({channels, 1, 3, 3}, {}), x = input(image, last);
  std::vector<Value> vectors;
  for (int i = 0; i < 4; ++i) vectors.push_back(input({channels}, {}));
  batch_norm_depthwise_backward(grad, weight, x, vectors[0], vectors[1], vectors[2], vectors[3], a);
  const Node& node = g.nodes().back();
  g.value(node.outputs[0]).type.format = last;

  const KernelQuery query{node, context_of(g, node), compute_threads()};
  const KernelChoice choice = cpu().choose(query);
  EXPECT_EQ(choice.kernel->algorithm, "line_buffer");
  std::vector<std::vector<float>> arrays;
  for (size_t n = 0; n < node.inputs.size(); ++n) {
    const TensorType& type = g.type(node.inputs[n]);
    std::vector<float> values(static_cast<size_t>(type.elements()));
    const int64_t each = type.elements() / channels;
    const bool pixels_first = type.format == last;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < each; ++i)
        values[static_cast<size_t>(pixels_first ? i * channels + c : c * each + i)] = value_of(static_cast<int64_t>(n), first + c, i);
    }
    arrays.push_back(std::move(values));
  }
  Gradients result;
  const std::vector<std::vector<float>*> outs{&result.dx, &result.dweight, &result.dgamma, &result.dbeta};
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const auto& values : arrays) in.push_back(values.data());
  for (size_t n = 0; n < outs.size(); ++n) {
    outs[n]->assign(static_cast<size_t>(g.type(node.outputs[n]).elements()), NAN);
    out.push_back(outs[n]->data());
  }
  const auto kernel = choice.kernel->prepare(query);
  const auto scratch = Storage::allocate(std::max<int64_t>(64, kernel->scratch_bytes()));
  kernel->run(host_stream(), {in, out, scratch->data()});
  return result;
}

TEST(BatchNormDepthwise, GradientsOfAChannelDoNotDependOnTheOthers) {
  ensure_ops_registered();
  set_compute_threads(2);
  const Gradients all = gradients_of(0, kChannels);
  for (const int64_t first : {int64_t{0}, int64_t{304}, int64_t{336}, kChannels - 31}) {
    const int64_t end = std::min(first + 32, kChannels), channels = end - first;
    const Gradients few = gradients_of(first, end);
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = static_cast<size_t>(c), from = static_cast<size_t>(first + c);
      EXPECT_EQ(few.dgamma[at], all.dgamma[from]) << "channel " << from;
      EXPECT_EQ(few.dbeta[at], all.dbeta[from]) << "channel " << from;
      for (size_t tap = 0; tap < kTaps; ++tap)
        EXPECT_EQ(few.dweight[at * kTaps + tap], all.dweight[from * kTaps + tap]) << "channel " << from << " tap " << tap;
      int64_t different = 0;
      for (int64_t i = 0; i < kPixels; ++i)
        different += few.dx[static_cast<size_t>(i * channels + c)] == all.dx[static_cast<size_t>(i * kChannels + first + c)] ? 0 : 1;
      EXPECT_EQ(different, 0) << "channel " << from;
    }
  }
}

}  // namespace
}  // namespace galley
