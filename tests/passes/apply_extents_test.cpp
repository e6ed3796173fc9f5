// Law: after apply_extents, images of different size in one array have the results, gradients and statistics that each has in an array of
// its own size. On the reference interpreter, in double.
#include "libcore/passes/apply_extents.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/philox.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/replicate.h"

namespace galley {
namespace {

enum class Norm { kNone, kGroup, kBatch };

RefArray extents_array(const Shape& shape, const std::string& name) {
  RandomStream random(7, name);
  RefArray array{shape, {}};
  for (int64_t i = 0; i < shape.elements(); ++i) array.v.push_back(random.uniform(-1, 1));
  return array;
}

/// A network with each kind of layer, captured for a batch; `objective` [N] is a weighted sum over the cells of each image of the finest
/// and the coarsest features, at most as many as the image has.
struct Network {
  Network(const Shape& input, Norm norm, bool training) {
    ensure_ops_registered();
    const auto weight = [&](const std::string& name, const Shape& shape) {
      feeds[name] = extents_array(shape, name);
      return graph.add_input(name, {.dtype = DType::kF64, .shape = shape}, ValueRole::kParameter);
    };
    const auto conv = [&](const std::string& name, Value x, int64_t channels, int64_t kernel, int64_t stride = 1, int64_t dilation = 1) {
      Conv2dAttrs attrs;
      attrs.stride = {stride};
      attrs.padding = {kernel / 2 * dilation};
      attrs.dilation = {dilation};
      return conv2d(x, weight(name, {channels, x.channels(), kernel, kernel}), weight(name + ".bias", {channels}), attrs);
    };
    const auto normed = [&](const std::string& name, Value x) {
      if (norm == Norm::kNone) return x;
      const Value gamma = weight(name + ".gamma", {x.channels()}), beta = weight(name + ".beta", {x.channels()});
      if (norm == Norm::kGroup) {
        GroupNormAttrs attrs;
        attrs.groups = 2;
        return group_norm(x, gamma, beta, attrs).y;
      }
      const BatchNorm made = batch_norm(x, gamma, beta);
      BatchNormUpdateAttrs attrs;
      attrs.count = x.shape().elements() / x.channels();
      const auto state = [&](const std::string& key) {
        feeds[key] = extents_array({x.channels()}, key);
        return graph.add_input(key, {.dtype = DType::kF64, .shape = {x.channels()}}, ValueRole::kBuffer);
      };
      const auto updated = batch_norm_update(state(name + ".mean"), state(name + ".var"), made.mean, made.var, {}, attrs);
      statistics.insert(statistics.end(), updated.begin(), updated.end());
      return made.y;
    };
    image = graph.add_input("image", {.dtype = DType::kF64, .shape = input}, ValueRole::kInput);
    Value x = relu(normed("stem", conv("conv1", image, 4, 5, 2)));
    MaxPool2dAttrs pool;
    pool.kernel_size = {3};
    pool.stride = {2};
    pool.padding = {1};
    // Without the relu: padding by zeros would win over negative values.
    const Value fine = max_pool2d(affine(x, 1, -3), pool).y;
    Value y = conv("conv2", fine, 6, 3);
    y = mul(y, sigmoid(conv("fc", adaptive_avg_pool2d(y), 6, 1)));  // squeeze-and-excitation
    y = add(normed("block", conv("conv3", y, 4, 3, 1, 2)), fine);
    const Value coarse = relu(conv("conv4", y, 4, 3, 2));
    ResizeAttrs twice;
    twice.size = {y.shape()[2], y.shape()[3]};
    twice.mode = ResizeMode::kNearest;
    const Value merged = conv("conv5", add(y, resize(coarse, twice)), 2, 3);
    const Value last = conv("conv6", relu(conv("conv7", coarse, 3, 3, 2)), 2, 3, 2);
    outputs = {merged, last};
    apply_extents(graph, image, graph.add_input("extents", {.dtype = DType::kI64, .shape = {input[0], 2}}, ValueRole::kInput), training);
  }

  Graph graph;
  std::map<std::string, RefArray> feeds;
  Value image;
  std::vector<Value> outputs, statistics;
};

/// Rows and columns of output `o` for an image.
std::array<int64_t, 2> cells(size_t o, const std::array<int64_t, 2>& size) {
  const int64_t stride = o == 0 ? 4 : 32;
  return {(size[0] + stride - 1) / stride, (size[1] + stride - 1) / stride};
}

/// The sum of output o over the cells of each image, each times a number that depends on its place.
Value objective(Network& network, size_t o, const std::vector<std::array<int64_t, 2>>& sizes) {
  const Shape& s = network.outputs[o].shape();
  RefArray weights{s, std::vector<double>(static_cast<size_t>(s.elements()))};
  for (int64_t i = 0; i < s.elements(); ++i) {
    const int64_t n = i / (s[1] * s[2] * s[3]), c = i / (s[2] * s[3]) % s[1], h = i / s[3] % s[2], w = i % s[3];
    const auto [rows, columns] = cells(o, sizes[static_cast<size_t>(n)]);
    if (h < rows && w < columns) weights[i] = std::sin(static_cast<double>(1 + n) + static_cast<double>(c * 7 + h * 3 + w));
  }
  const std::string name = cat("weights", o);
  network.feeds[name] = weights;
  return sum(mul(network.outputs[o], network.graph.add_input(name, {.dtype = DType::kF64, .shape = s}, ValueRole::kInput)),
             std::vector<int64_t>{});
}

struct Computed {
  std::vector<std::vector<double>> cells;  // of each output and image: [channel, row, column]
  std::vector<double> statistics;
  std::map<std::string, std::vector<double>> gradients;
};

Computed compute(const std::vector<std::array<int64_t, 2>>& sizes, int64_t height, int64_t width, Norm norm, int64_t first = 0,
                 bool training = true) {
  const auto samples = std::ssize(sizes);
  Network network({samples, 3, height, width}, norm, training);
  RefArray images{{samples, 3, height, width}, std::vector<double>(static_cast<size_t>(samples * 3 * height * width))};
  RefArray extents{{samples, 2}, {}};
  for (int64_t n = 0; n < samples; ++n) {
    const auto [rows, columns] = sizes[static_cast<size_t>(n)];
    const RefArray own = extents_array({3, rows, columns}, cat("image", first + n));
    for (int64_t i = 0; i < own.shape.elements(); ++i)
      images[((n * 3 + i / (rows * columns)) * height + i / columns % rows) * width + i % columns] = own[i];
    extents.v.insert(extents.v.end(), {static_cast<double>(rows), static_cast<double>(columns)});
  }
  network.feeds["image"] = images;
  network.feeds["extents"] = extents;
  const Value loss = add(objective(network, 0, sizes), objective(network, 1, sizes));
  std::vector<ValueId> wanted{network.image.id()};
  for (const ValueId id : network.graph.inputs())
    if (network.graph.value(id).role == ValueRole::kParameter) wanted.push_back(id);
  const std::vector<Value> outputs = network.outputs;
  const std::map<ValueId, ValueId> gradients = differentiate(network.graph, loss.id(), wanted);
  const auto values = interpret(network.graph, network.feeds);
  Computed computed;
  for (size_t o = 0; o < 2; ++o) {
    const RefArray& all = values.at(outputs[o].id());
    for (int64_t n = 0; n < samples; ++n) {
      const auto [rows, columns] = cells(o, sizes[static_cast<size_t>(n)]);
      std::vector<double>& own = computed.cells.emplace_back();
      for (int64_t c = 0; c < all.shape[1]; ++c) {
        for (int64_t h = 0; h < rows; ++h) {
          for (int64_t w = 0; w < columns; ++w) own.push_back(all[((n * all.shape[1] + c) * all.shape[2] + h) * all.shape[3] + w]);
        }
      }
    }
  }
  for (const Value v : network.statistics) {
    const RefArray& array = values.at(v.id());
    computed.statistics.insert(computed.statistics.end(), array.v.begin(), array.v.end());
  }
  for (const auto& [of, gradient] : gradients) computed.gradients[network.graph.value(of).name] = values.at(gradient).v;
  return computed;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 1e-12;
  for (const double v : b) largest = std::max(largest, std::fabs(v));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-9 * largest) << what << "[" << i << "]";
}

const std::vector<std::array<int64_t, 2>> kSizes{{32, 64}, {64, 32}, {64, 64}};

TEST(ApplyExtents, ImagesAreAsIfAlone) {
  for (const Norm norm : {Norm::kNone, Norm::kGroup}) {
    SCOPED_TRACE(static_cast<int>(norm));
    const Computed together = compute(kSizes, 96, 64, norm, 0, false);
    std::map<std::string, std::vector<double>> sums;
    for (size_t n = 0; n < kSizes.size(); ++n) {
      // The weights of the objective depend on the place in the batch, so gradients are compared for the first image only.
      const Computed alone = compute({kSizes[n]}, kSizes[n][0], kSizes[n][1], norm, static_cast<int64_t>(n));
      for (size_t o = 0; o < 2; ++o) expect_near(together.cells[o * kSizes.size() + n], alone.cells[o], cat("output ", o, " of image ", n));
    }
  }
}

TEST(ApplyExtents, GradientsAndStatisticsAreThoseOfTheImage) {
  for (const Norm norm : {Norm::kNone, Norm::kGroup, Norm::kBatch}) {
    SCOPED_TRACE(static_cast<int>(norm));
    const Computed padded = compute({{32, 64}}, 96, 96, norm), alone = compute({{32, 64}}, 32, 64, norm);
    for (size_t o = 0; o < 2; ++o) expect_near(padded.cells[o], alone.cells[o], cat("output ", o));
    EXPECT_EQ(alone.statistics.empty(), norm != Norm::kBatch);
    expect_near(padded.statistics, alone.statistics, "statistics");
    for (const auto& [name, gradient] : alone.gradients) {
      if (name == "image") continue;
      expect_near(padded.gradients.at(name), gradient, name);
    }
    const std::vector<double>&image = padded.gradients.at("image"), &own = alone.gradients.at("image");
    std::vector<double> inside;
    for (int64_t i = 0; i < 3 * 32 * 64; ++i)
      inside.push_back(image[static_cast<size_t>((i / (32 * 64) * 96 + i / 64 % 32) * 96 + i % 64)]);
    expect_near(inside, own, "gradient of the image");
  }
}

TEST(ApplyExtents, AnOperatorThatMixesPixelsIsRefused) {
  ensure_ops_registered();
  Graph graph;
  const Value x = graph.add_input("image", {.shape = {1, 3, 8, 8}}, ValueRole::kInput);
  AvgPool2dAttrs attrs;
  attrs.kernel_size = {2};
  avg_pool2d(x, attrs);
  const Value extents = graph.add_input("extents", {.dtype = DType::kI64, .shape = {1, 2}}, ValueRole::kInput);
  try {
    apply_extents(graph, x, extents);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("avg_pool2d"), std::string::npos) << error.message();
    EXPECT_EQ(error.key(), "data.padding");
  }
}

TEST(ApplyExtents, StatisticsOfSeveralGraphsAreRefused) {
  const auto place = [](Network network) -> std::string {
    try {
      sync_batch_norms(network.graph, 2);
    } catch (const Error& error) {
      EXPECT_NE(error.suggestion().find("train.sync_batch_norm: false"), std::string::npos) << error.text();
      return error.key();
    }
    return "";
  };
  EXPECT_EQ(place(Network({1, 3, 64, 64}, Norm::kGroup, true)), "");
  EXPECT_EQ(place(Network({1, 3, 64, 64}, Norm::kBatch, true)), "data.padding");
}

}  // namespace
}  // namespace galley
