// Back ends by name, their tables of kernels, and what they report to passes.

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "libcore/backends/table.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/unary.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

TEST(Backends, AreOpenedByName) {
  EXPECT_EQ(open_backend()->name(), "cpu");
  EXPECT_EQ(open_backend("ref")->name(), "ref");
  EXPECT_FALSE(cpu().reference());
  EXPECT_TRUE(ref().reference());
  EXPECT_EQ(open_backend("cpu", {.threads = 3})->limits().threads, 3);
  EXPECT_GE(cpu().limits().threads, 1);
}

TEST(Backends, SayWhatIsNotThere) {
  for (const auto& [device, remedy] :
       {std::pair{"cpu:1", "device=cpu"}, {"rex", "device=ref"}, {"", "device=cpu"}, {"cpu:", "device=cpu"}}) {
    try {
      open_backend(device);
      ADD_FAILURE() << device << " was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResource);
      EXPECT_NE(error.message().find(cat("device ", device, " is not available")), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("this build of Galley has cpu, "), std::string::npos) << error.message();
      EXPECT_NE(error.suggestion().find(remedy), std::string::npos) << device << ": " << error.suggestion();
      EXPECT_EQ(error.key(), "device");
    }
  }
}

TEST(Backends, ListTheReferenceLast) {
  int several = 0;
  for (const OpDef* op : all_ops()) {
    const auto kernels = cpu().kernels(*op);
    ASSERT_FALSE(kernels.empty()) << op->name;
    several += kernels.size() > 1;
    for (size_t i = 0; i < kernels.size(); ++i) {
      EXPECT_EQ(kernels[i]->op, op->name);
      EXPECT_EQ(kernels[i]->reference, i + 1 == kernels.size()) << op->name << ", " << kernels[i]->algorithm;
    }
    if (op->made_by_rewrite) continue;  // operators of another back end
    ASSERT_EQ(ref().kernels(*op).size(), 1u) << op->name;
    EXPECT_TRUE(ref().kernels(*op)[0]->reference);
  }
  EXPECT_GT(several, 50);
}

TEST(Backends, TablesKeepTheOrderOfTheirLists) {
  const Kernel first[] = {{.op = "relu", .algorithm = "a"}, {.op = "conv2d", .algorithm = "b"}},
               second[] = {{.op = "relu", .algorithm = "c"}};
  const KernelTable table{first, second};
  ASSERT_EQ(table.of(find_op("relu")).size(), 2u);
  EXPECT_EQ(table.of(find_op("relu"))[0]->algorithm, "a");
  EXPECT_EQ(table.of(find_op("relu"))[1]->algorithm, "c");
  EXPECT_EQ(table.of(conv2d_op()).size(), 1u);
  EXPECT_TRUE(table.of(conv2d_backward_data_op()).empty());
}

/// The CPU supports this operator only for channels_last images.
TEST(Backends, TakeImagesAsLayoutWillGiveThem) {
  Graph graph;
  BatchNormDepthwiseAttrs attrs;
  attrs.padding = {1};
  batch_norm_depthwise(graph.add_input("x", f32({4, 32, 14, 14}), ValueRole::kInput),
                       graph.add_input("w", f32({32, 1, 3, 3}), ValueRole::kParameter), {}, {}, attrs);
  const Node& node = graph.nodes().back();
  const auto has = [&](LayoutMode mode, Stage stage) {
    return open_backend("cpu", {.memory_format = mode})->has_kernel(graph, node, stage);
  };
  EXPECT_TRUE(has(LayoutMode::kAuto, Stage::kForward));
  EXPECT_TRUE(has(LayoutMode::kChannelsLast, Stage::kBeforeLayout));
  EXPECT_FALSE(has(LayoutMode::kContiguous, Stage::kForward));
  EXPECT_FALSE(has(LayoutMode::kAuto, Stage::kAfterLayout)) << "as the graph says: contiguous";
  EXPECT_FALSE(ref().has_kernel(graph, node, Stage::kForward)) << "its kernels are references";
}

}  // namespace
}  // namespace galley::test
