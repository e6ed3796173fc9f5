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
                                    {"keypoints", DType::kF32}}) {
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

}  // namespace
}  // namespace galley
