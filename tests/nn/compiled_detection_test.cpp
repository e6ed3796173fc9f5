// Law: compiled in f32, detectors find what torchvision finds and have its losses, alone and in batches.
#include <gtest/gtest.h>

#include <cmath>

#include "libcore/passes/differentiate.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/nn/golden_detector.h"
#include "tests/nn/golden_file.h"

namespace galley {
namespace {

using Results = std::map<std::string, Tensor>;

/// Compiles and runs a captured detector; the results and the values in `more` by name.
Results run(CapturedDetector& model, bool training = false, const std::map<std::string, Value>& more = {}) {
  model.results.insert(more.begin(), more.end());
  for (const auto& [name, value] : model.results) model.graph.add_output("result." + name, value);
  if (!training) {
    fold_batch_norm(model.graph);
    fuse_inference(model.graph);
  }
  model.graph.remove_dead_nodes();
  const auto program = compile(std::move(model.graph));
  ParameterStore store;
  store.declare(*program);
  const auto tensor = [&](const std::string& name, DType dtype) {
    const RefArray& array = model.feeds.at(name);
    Tensor values(dtype, array.shape);
    values.from_doubles(array.v);
    return values;
  };
  for (const ParameterSpec& spec : model.specs) store.set(spec.name, tensor(spec.name, spec.type.dtype));
  Execution execution(program, store);
  for (const auto& [name, dtype] : {std::pair{"input", DType::kF32},
                                    {"boxes", DType::kF32},
                                    {"labels", DType::kI64},
                                    {"offsets", DType::kI64},
                                    {"masks", DType::kU8},
                                    {"keypoints", DType::kF32},
                                    {"sizes", DType::kF32},
                                    {"extents", DType::kI64}}) {
    if (execution.takes(name)) execution.feed(name, tensor(name, dtype));
  }
  execution.run();
  Results results;
  for (const auto& [name, value] : model.results) results.emplace(name, execution.output("result." + name));
  return results;
}

std::vector<double> rows_of(const Tensor& tensor, int64_t sample, int64_t count) {
  const std::vector<double> all = tensor.to_doubles();
  const int64_t most = tensor.shape()[1], width = tensor.shape().elements() / (tensor.shape()[0] * most);
  return {all.begin() + sample * most * width, all.begin() + (sample * most + count) * width};
}

int64_t count_of(const Results& results, int64_t sample) { return results.at("count").data_as<int64_t>()[sample]; }

/// Boxes to a hundredth of a pixel, scores to 1e-4: rounding of f32 through fifty layers.
void expect_detections(const GoldenFile& want, const Results& results, int64_t samples) {
  for (int64_t n = 0; n < samples; ++n) {
    const int64_t count = count_of(results, n);
    expect_golden(cat("labels", n), want.at(cat("labels", n)), rows_of(results.at("labels"), n, count), 0);
    expect_golden(cat("boxes", n), want.at(cat("boxes", n)), rows_of(results.at("boxes"), n, count), 0, 0.01);
    expect_golden(cat("scores", n), want.at(cat("scores", n)), rows_of(results.at("scores"), n, count), 0, 1e-4);
  }
}

GoldenDetector golden(const std::string& file) {
  for (const GoldenDetector& detector : golden_detectors())
    if (detector.file == file) return detector;
  ADD_FAILURE() << file;
  return {};
}

TEST(CompiledDetectors, Ssd300) {
  const GoldenFile want = read_golden("ssd300");
  GoldenDetector ssd{"ssd300",
                     "ssd300_vgg16",
                     {1, 3, 300, 300},
                     {{"num_classes", 5}, {"detections_per_img", 30}, {"topk_candidates", 10}},
                     {{{9, 20, 123, 208, 2}, {150, 36, 273, 240, 4}, {90, 80, 180, 176, 1}}}};
  CapturedDetector model(ssd.component(), Mode::kEvaluation, ssd.input, ssd.objects);
  const Results results = run(model);
  EXPECT_EQ(count_of(results, 0), 28);
  expect_detections(want, results, 1);
  for (const std::string part : {"bbox_regression", "classification"}) {
    const double sum = results.at(part + ".sum").to_doubles()[0], count = results.at(part + ".count").to_doubles()[0];
    const double loss = want.at("loss:" + part).values[0];
    EXPECT_TRUE(std::fabs(sum / count - loss) <= 1e-4 * loss) << part << " " << sum / count << ", golden " << loss;
  }
}

TEST(CompiledDetectors, FasterRcnn) {
  const GoldenDetector rcnn = golden("fasterrcnn");
  CapturedDetector model(rcnn.component(), Mode::kEvaluation, rcnn.input, rcnn.objects);
  scale_predictors(model.feeds, rcnn.predictors);
  expect_detections(read_golden(rcnn.file), run(model), rcnn.input[0]);
}

class CompiledInstances : public testing::TestWithParam<std::string> {};

TEST_P(CompiledInstances, Detect) {
  const GoldenDetector golden = golden_instances(GetParam());
  const GoldenFile want = read_golden(golden.file);
  // With objects among the inputs, the heads also read the regions of the losses. Masks: also without.
  for (const bool objects : {true, false}) {
    SCOPED_TRACE(objects);
    if (!objects && golden.file != "maskrcnn") continue;
    CapturedDetector model(golden.component(), Mode::kEvaluation, golden.input, golden.objects, false, objects);
    scale_predictors(model.feeds, golden.predictors);
    const Results results = run(model);
    const std::string loss = golden.file == "maskrcnn" ? "loss_mask" : "loss_keypoint";
    EXPECT_EQ(results.contains(loss + ".sum"), objects);
    expect_detections(want, results, 2);
    for (int64_t n = 0; n < 2; ++n) {
      const int64_t count = count_of(results, n);
      EXPECT_EQ(count, 10);
      const std::string masks = cat("masks", n), keypoints = cat("keypoints", n);
      if (want.contains(masks)) expect_golden(masks, want.at(masks), rows_of(results.at("masks"), n, count), 0, 1e-4);
      // A key point is the center of a pixel: it is equal, or a pixel away.
      if (want.contains(keypoints)) expect_golden(keypoints, want.at(keypoints), rows_of(results.at("keypoints"), n, count), 0, 0.01);
    }
  }
}

TEST_P(CompiledInstances, Train) {
  const GoldenDetector golden = golden_instances(GetParam());
  const GoldenFile want = read_golden(golden.file);
  CapturedDetector model(golden.component(), Mode::kTraining, golden.input, golden.objects);
  scale_predictors(model.feeds, golden.predictors);
  std::map<std::string, Value> parts;
  Value loss;
  double largest = 0;
  for (const auto& [key, entry] : want) {
    if (key.starts_with("grad:")) largest = std::max(largest, entry.rms());
    if (!key.starts_with("loss:")) continue;
    const Value part = model.loss(key.substr(5));
    parts.emplace(key, part);
    loss = loss ? add(loss, part) : part;
  }
  EXPECT_EQ(parts.size() * 2, model.results.size());
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs)
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, loss.id(), wanted);
  for (const ValueId parameter : wanted)
    parts.emplace("grad:" + model.graph.value(parameter).name, model.graph.at(gradients.at(parameter)));
  const Results results = run(model, true, parts);
  for (const auto& [key, part] : parts)
    expect_golden(key, want.at(key), results.at(key).to_doubles(), 2e-4, key.starts_with("grad:") ? 1e-6 * largest : 0);
  for (const auto& [key, entry] : want) EXPECT_TRUE(parts.contains(key) || !key.starts_with("grad:")) << key;
}

INSTANTIATE_TEST_SUITE_P(Zoo, CompiledInstances, testing::Values("maskrcnn", "keypointrcnn"), [](const auto& info) { return info.param; });

/// The detections of images `order` of the golden batch.
Results detect(const GoldenDetector& golden, const std::vector<int64_t>& order) {
  const Shape& all = golden.input;
  CapturedDetector model(golden.component(), Mode::kEvaluation, {std::ssize(order), all[1], all[2], all[3]}, ObjectRows(order.size()));
  const std::vector<double> images = golden_input("input", all);
  const int64_t floats = all[1] * all[2] * all[3];
  std::vector<double> chosen;
  for (const int64_t n : order) chosen.insert(chosen.end(), images.begin() + n * floats, images.begin() + (n + 1) * floats);
  model.feeds["input"].v = chosen;
  scale_predictors(model.feeds, golden.predictors);
  return run(model);
}

TEST(CompiledDetectors, APermutedBatchGivesPermutedDetectionsAndAnImageAloneTheSame) {
  for (const std::string file : {"ssdlite", "retinanet_v2", "fcos", "fasterrcnn", "fasterrcnn_mobilenet"}) {
    SCOPED_TRACE(file);
    const GoldenDetector detector = golden(file);
    const Results forward = detect(detector, {0, 1}), backward = detect(detector, {1, 0}), alone = detect(detector, {1});
    const int64_t count = count_of(forward, 1);
    EXPECT_GT(count, 3);
    ASSERT_EQ(count, count_of(backward, 0));
    ASSERT_EQ(count, count_of(alone, 0));
    for (const std::string name : {"boxes", "scores", "labels"}) {
      const std::vector<double> want = rows_of(forward.at(name), 1, count);
      EXPECT_EQ(want, rows_of(backward.at(name), 0, count)) << name;
      const std::vector<double> single = rows_of(alone.at(name), 0, count);  // kernels may differ for batches of one
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(single[i], want[i], name == "boxes" ? 0.01 : 1e-4) << name << " " << i;
    }
  }
}

/// Images of different size in one array.
struct PaddedBatch {
  std::vector<Shape> sizes;  // rows and columns of each
  ObjectRows objects;
};

/// The image of sample n of the largest size, and its part at the top left that is kept; the rest is 0.
void set_image(RefArray& images, int64_t n, const Shape& size, int64_t number) {
  const Shape& s = images.shape;
  const std::vector<double> whole = golden_input(cat("image", number), {1, s[1], 96, 160});
  for (int64_t i = 0; i < s[1] * s[2] * s[3]; ++i) {
    const int64_t c = i / (s[2] * s[3]), h = i / s[3] % s[2], w = i % s[3];
    const bool inside = h < size[0] && w < size[1];
    images[n * s[1] * s[2] * s[3] + i] = inside ? whole[static_cast<size_t>((c * 96 + h) * 160 + w)] : 0;
  }
}

int64_t rounded_up(int64_t side) { return (side + 31) / 32 * 32; }

/// Runs a detector on these images, numbered in the order `which`, in an array of height x width.
Results run_padded(const GoldenDetector& golden, const PaddedBatch& batch, const std::vector<size_t>& which, int64_t height, int64_t width,
                   Mode mode = Mode::kEvaluation) {
  const auto samples = std::ssize(which);
  ObjectRows objects;
  for (const size_t i : which) objects.push_back(batch.objects[i]);
  CapturedDetector model(golden.component(), mode, {samples, 3, height, width}, objects, true, true, true);
  scale_predictors(model.feeds, golden.predictors);
  RefArray sizes{{samples, 2}, {}}, extents{{samples, 2}, {}};
  for (int64_t n = 0; n < samples; ++n) {
    const size_t i = which[static_cast<size_t>(n)];
    set_image(model.feeds.at("input"), n, batch.sizes[i], static_cast<int64_t>(i));
    for (const int axis : {0, 1}) {
      sizes.v.push_back(static_cast<double>(batch.sizes[i][axis]));
      extents.v.push_back(static_cast<double>(rounded_up(batch.sizes[i][axis])));
    }
  }
  model.feeds["sizes"] = sizes;
  model.feeds["extents"] = extents;
  if (mode == Mode::kEvaluation) return run(model);
  std::map<std::string, Value> parts;
  Value loss;
  for (const auto& [name, value] : model.results) {
    if (!name.ends_with(".sum")) continue;
    const Value part = model.loss(name.substr(0, name.size() - 4));
    parts.emplace("loss:" + name, part);
    loss = loss ? add(loss, part) : part;
  }
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.specs)
    if (spec.trainable) wanted.push_back(model.graph.find_input(spec.name));
  const std::map<ValueId, ValueId> gradients = differentiate(model.graph, loss.id(), wanted);
  for (const ValueId parameter : wanted)
    parts.emplace("grad:" + model.graph.value(parameter).name, model.graph.at(gradients.at(parameter)));
  return run(model, true, parts);
}

/// The results of sample n are those of sample m of others.
void expect_same(const Results& results, int64_t n, const Results& others, int64_t m) {
  const int64_t count = count_of(results, n);
  EXPECT_GT(count, 0);
  ASSERT_EQ(count, count_of(others, m));
  const auto compare = [&](const std::string& name, double tolerance) {
    if (!results.contains(name)) return;
    const std::vector<double> a = rows_of(results.at(name), n, count), b = rows_of(others.at(name), m, count);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << name << "[" << i << "]";
  };
  compare("labels", 0);
  compare("boxes", 0.01);
  compare("scores", 1e-4);
  compare("masks", 1e-4);
  compare("keypoints", 0.01);
  for (const auto& [name, tensor] : results) {
    if (!name.ends_with(".sum") && !name.ends_with(".count")) continue;
    const double a = tensor.to_doubles()[static_cast<size_t>(n)], b = others.at(name).to_doubles()[static_cast<size_t>(m)];
    EXPECT_NEAR(a, b, 2e-4 * std::max(1.0, std::fabs(b))) << name;
  }
}

class PaddedDetectors : public testing::TestWithParam<std::string> {};

TEST_P(PaddedDetectors, AnImageIsAsIfItWereAlone) {
  const bool instances = GetParam() == "maskrcnn" || GetParam() == "keypointrcnn";
  const GoldenDetector detector = instances ? golden_instances(GetParam()) : golden(GetParam());
  const PaddedBatch batch{{{32, 64}, {61, 90}, {64, 35}},
                          {{{2, 3, 33, 29, 2}, {20, 5, 61, 31, 4}}, {{8.5, 1.25, 40, 60, 3}, {30, 2, 88, 18, 1}}, {{1, 8, 30, 62, 2}}}};
  const Results together = run_padded(detector, batch, {2, 0, 1}, 64, 96);
  for (const size_t i : {0, 2}) {
    SCOPED_TRACE(i);
    const Results alone = run_padded(detector, batch, {i}, rounded_up(batch.sizes[i][0]), rounded_up(batch.sizes[i][1]));
    expect_same(together, static_cast<int64_t>((i + 1) % 3), alone, 0);
  }
}

TEST(PaddedDetector, TrainingIsThatOfTheImage) {
  for (const std::string file : {"fcos", "fasterrcnn"}) {
    SCOPED_TRACE(file);
    GoldenDetector detector = golden(file);
    detector.options.emplace_back("frozen_norm", 1);
    const PaddedBatch batch{{{30, 61}}, {{{2, 3, 33, 29, 2}, {20, 5, 60, 30, 4}}}};
    const Results alone = run_padded(detector, batch, {0}, 32, 64, Mode::kTraining),
                  padded = run_padded(detector, batch, {0}, 64, 96, Mode::kTraining);
    double largest = 0;
    const auto norm = [](const Tensor& tensor) {
      double sum = 0;
      for (const double v : tensor.to_doubles()) sum += v * v;
      return std::sqrt(sum);
    };
    for (const auto& [name, tensor] : alone)
      if (name.starts_with("grad:")) largest = std::max(largest, norm(tensor));
    EXPECT_GT(largest, 0);
    for (const auto& [name, tensor] : alone) {
      const std::vector<double> a = tensor.to_doubles(), b = padded.at(name).to_doubles();
      double difference = 0;
      for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
      const bool gradient = name.starts_with("grad:");
      // Group norms over few values amplify rounding.
      EXPECT_LE(std::sqrt(difference), 1e-2 * std::max(norm(tensor), gradient ? 1e-3 * largest : 1.0)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, PaddedDetectors,
                         testing::Values("retinanet", "retinanet_v2", "fcos", "fasterrcnn", "fasterrcnn_v2", "fasterrcnn_mobilenet",
                                         "maskrcnn", "keypointrcnn"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace galley
