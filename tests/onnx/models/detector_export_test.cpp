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

TEST(ExportedDetectors, KeyPointsAreFoundInALoop) {
  const OnnxDocument document = exported("keypointrcnn_resnet50_fpn");
  std::set<std::string> outside;
  const OnnxNode* loop = nullptr;
  for (const OnnxValue& input : document.inputs) outside.insert(input.name);
  for (const OnnxSource& source : document.initializers) outside.insert(source.name);
  for (const OnnxNode& node : document.nodes) {
    if (node.op_type == "Loop") loop = &node;
    if (loop == nullptr) outside.insert(node.outputs.begin(), node.outputs.end());
  }
  ASSERT_NE(loop, nullptr);
  const OnnxGraph& body = *loop->find("body")->graph;
  // Nodes of the body read what was made before: outside, the number of the round, or in the body.
  std::set<std::string> known = outside;
  for (const OnnxValue& input : body.inputs) known.insert(input.name);
  int64_t cubic = 0;
  for (const OnnxNode& node : body.nodes) {
    for (const std::string& input : node.inputs) EXPECT_TRUE(input.empty() || known.contains(input)) << node.str() << " reads " << input;
    for (const std::string& output : node.outputs) EXPECT_TRUE(known.insert(output).second) << output;
    cubic += node.op_type == "Resize" && node.find("mode")->s == "cubic";
  }
  EXPECT_EQ(cubic, 1);
  for (const OnnxValue& output : body.outputs) EXPECT_TRUE(known.contains(output.name)) << output.name;
  for (const OnnxNode& node : document.nodes)  // what the body makes cannot be read outside
    for (const std::string& input : node.inputs) EXPECT_TRUE(input.empty() || outside.contains(input) || !known.contains(input)) << input;
}

}  // namespace
}  // namespace galley
