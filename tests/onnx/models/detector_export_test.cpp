// Detectors are exported with ONNX's own operators, for any number of samples. What they compute, scripts/check-onnx compares with ONNX
// Runtime.

#include <gtest/gtest.h>

#include "libcore/onnx/export/export.h"
#include "tests/onnx/models/onnx_models.h"

namespace galley {
namespace {

/// A detector for images of 64 x 96 pixels with few candidates, captured for predictions.
Captured capture_detector(const std::string& type, int64_t batch) {
  Component model = default_model(type);
  for (const auto& [name, value] : {std::pair{"rpn_pre_nms_top_n_test", 30}, {"rpn_post_nms_top_n_test", 20}, {"topk_candidates", 30}}) {
    Setter setter(name, {static_cast<double>(value)});
    model.params->options(setter);
  }
  Captured made;
  Builder b(made.graph, {.mode = Mode::kEvaluation});
  const Value image = b.input("input", {.shape = {batch, 3, 64, 96}});
  for (const auto& [name, value] : build_model(b, model, NamedValues{{"input", image}})) made.graph.add_output(name, value);
  made.graph.remove_dead_nodes();
  made.parameters = b.take_parameters();
  return made;
}

OnnxDocument exported(const std::string& type) {
  const Captured two = capture_detector(type, 2), three = capture_detector(type, 3);
  OnnxExport what;
  what.graph = &two.graph;
  what.other = &three.graph;
  what.values = [](const std::string&) { return Tensor(); };
  return onnx_document(what);
}

TEST(ExportedDetectors, HaveOnnxsOperators) {
  struct Row {
    const char* type;
    int64_t suppressions, levels, transposed;
  };
  for (const Row& row : {Row{"ssdlite320_mobilenet_v3_large", 1, 0, 0},
                         {"fcos_resnet50_fpn", 1, 0, 0},
                         {"fasterrcnn_mobilenet_v3_large_320_fpn", 2, 1, 0},  // its two levels have one scale: all regions read the first
                         {"maskrcnn_resnet50_fpn", 2, 8, 1}}) {               // four levels for boxes, and four for masks
    SCOPED_TRACE(row.type);
    std::map<std::string, int64_t> count;
    for (const OnnxNode& node : exported(row.type).nodes) ++count[node.op_type];
    EXPECT_EQ(count["NonMaxSuppression"], row.suppressions);
    EXPECT_EQ(count["RoiAlign"], row.levels);
    EXPECT_EQ(count["ConvTranspose"], row.transposed);
    EXPECT_EQ(count["ScatterND"], row.suppressions + row.levels);
    EXPECT_EQ(count["NonZero"], row.levels);
  }
}

TEST(ExportedDetectors, KeyPointsAreRefused) {
  try {
    exported("keypointrcnn_resnet50_fpn");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find("locate_keypoints"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace galley
