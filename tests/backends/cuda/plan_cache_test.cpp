// Plans on the disk: a second run of a form asks no heuristics and computes the same; damaged and foreign files are not used.

#include "libcore/backends/cuda/plan_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "libcore/backends/cuda/dnn_graph.h"
#include "libcore/base/file.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/support/temporary_folder.h"

namespace galley::test {
namespace {

/// Plans are in a folder of the test.
class PlanCache : public testing::Test {
 protected:
  void SetUp() override {
    stand_in_device();
    setenv("GALLEY_CUDA_PLANS", (folder_ / "plans").c_str(), 1);
  }
  void TearDown() override { setenv("GALLEY_CUDA_PLANS", "none", 1); }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    if (!is_folder(folder_ / "plans")) return paths;
    for (const FolderEntry& entry : list_folder(folder_ / "plans")) paths.push_back(folder_ / ("plans/" + entry.name));
    return paths;
  }
  TemporaryFolder folder_;
};

TEST_F(PlanCache, KeepsPlansByTheirKeys) {
  EXPECT_EQ(stored_plan("a"), std::nullopt);
  store_plan("a", "the first\nplan");
  store_plan("b", "");
  EXPECT_EQ(stored_plan("a"), "the first\nplan");
  EXPECT_EQ(stored_plan("b"), "");
  store_plan("a", "another");
  EXPECT_EQ(stored_plan("a"), "another");
  EXPECT_EQ(files().size(), 2u);
  setenv("GALLEY_CUDA_PLANS", "none", 1);
  store_plan("a", "x");
  EXPECT_EQ(stored_plan("a"), std::nullopt);
}

TEST_F(PlanCache, AKeyNamesWhatAPlanDependsOn) {
  const CudaDevice& device = stand_in_device();
  const std::string key = plan_key(device, {.name = "cuDNN", .version = "9.19.0", .file = "", .problem = ""}, "form");
  for (const std::string& part : {std::string("cuDNN 9.19.0"), device.facts().name, cat(device.facts().processors, " processors"),
                                  "driver " + cuda::driver_state().version, std::string("form")})
    EXPECT_NE(key.find(part), std::string::npos) << part;
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_F(PlanCache, DoesNotUseDamagedFiles) {
  store_plan("key", "a plan of some length");
  ASSERT_EQ(files().size(), 1u);
  const std::string path = files()[0], whole = read_file(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    put(path, changed);
    EXPECT_EQ(stored_plan("key"), std::nullopt) << "byte " << i;
  }
  for (size_t size = 0; size < whole.size(); size += 7) {
    put(path, whole.substr(0, size));
    EXPECT_EQ(stored_plan("key"), std::nullopt) << size << " bytes";
  }
  put(path, whole);
  EXPECT_EQ(stored_plan("key"), "a plan of some length");
}

/// y [1,1,2,2] = a b by a plan of the cache or of the heuristics.
std::vector<float> product(std::string& reason) {
  const auto describe = [](cuda::dnn::Handle handle) {
    const auto graph = std::make_shared<DnnGraph>();
    const DnnGraph::Sizes sizes{1, 1, 2, 2}, steps{4, 4, 2, 1};
    const auto a = graph->operand(1, cuda::dnn::kDataF32, sizes, steps), b = graph->operand(2, cuda::dnn::kDataF32, sizes, steps);
    graph->matmul(graph->operand(3, cuda::dnn::kDataF32, sizes, steps), a, b);
    const cuda::dnn::Status status = graph->finish(handle);
    return DescribedGraph{graph, &graph->graph(), status};
  };
  CudaDevice& device = stand_in_device();
  const auto chosen = choose_dnn_plan(device, "a product", {}, describe, reason);
  if (chosen == nullptr) return {};
  const std::unique_ptr<Stream> stream = device.make_stream();
  const std::vector<float> a{1, 2, 3, 4}, b{5, 6, 7, 8};
  std::vector<float> y(4);
  auto* memory = static_cast<std::byte*>(device.memory().allocate(4096, 256));
  stream->copy(memory, a.data(), 16);
  stream->copy(memory + 256, b.data(), 16);
  run_dnn_plan(*stream, chosen->plan.descriptor, {1, 2, 3}, {memory, memory + 256, memory + 512}, memory + 1024, "a product");
  stream->copy(y.data(), memory + 512, 16);
  stream->synchronize();
  device.memory().free(memory, 4096, 256);
  return y;
}

TEST_F(PlanCache, TheSecondRunAsksNoHeuristics) {
  if (on_gpu()) GTEST_SKIP() << "calls are counted by the stand-in";
  const std::vector<float> want{19, 22, 43, 50};
  std::string reason;
  const int64_t before = stand_in_calls("cudnnHeuristic");
  EXPECT_EQ(product(reason), want) << reason;
  const int64_t first = stand_in_calls("cudnnHeuristic");
  EXPECT_GT(first, before);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(product(reason), want) << reason;
  EXPECT_EQ(stand_in_calls("cudnnHeuristic"), first);
  // A plan that the library does not take is made again.
  const std::string path = files()[0], good = read_file(path);
  store_plan(plan_key(stand_in_device(), cuda::dnn::dnn().state, "a product"), "of another library");
  EXPECT_EQ(product(reason), want) << reason;
  EXPECT_GT(stand_in_calls("cudnnHeuristic"), first);
  EXPECT_EQ(read_file(path), good);
}

}  // namespace
}  // namespace galley::test
