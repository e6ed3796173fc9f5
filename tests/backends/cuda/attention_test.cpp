// Which attention cuDNN computes, and why not; and by the real library, without a GPU, which engines it has for an H100.

#include "libcore/ops/attention.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "libcore/backends/cuda/backend.h"
#include "libcore/backends/cuda/library_attention.h"
#include "libcore/vendor/cuda/dnn.h"
#include "tests/backends/cuda/stand_in.h"

namespace galley::test {
namespace {

/// The algorithm of attention of 2 heads of these widths, and why those before it decline.
std::string attention_choice(DType dtype, int64_t width, const AttentionAttrs& attrs, bool bias = false) {
  stand_in_device();
  const std::unique_ptr<Backend> backend = open_cuda({.threads = 2});
  Graph graph;
  int count = 0;
  const auto input = [&](DType type, const Shape& shape) {
    TensorType made;
    made.dtype = type;
    made.shape = shape;
    return graph.add_input(cat("in", count++), made, ValueRole::kInput);
  };
  AttentionInputs inputs{.q = input(dtype, {2, 5, 6, width})};
  if (bias) inputs.bias = input(DType::kF32, {1, 1, 5, 5});
  attention(inputs, attrs);
  const KernelQuery query = backend->query(graph, graph.nodes().back());
  const KernelChoice chosen = backend->choose(query);
  return cat(chosen.kernel == nullptr ? "none" : chosen.kernel->algorithm, "; ", chosen.reasons());
}

TEST(CudaAttention, TheLibraryComputesWhatItsEnginesCan) {
  if (on_gpu()) GTEST_SKIP() << "the engines are those of the stand-in";
  AttentionAttrs causal, window;
  causal.causal = window.causal = true;
  window.window = 3;
  EXPECT_EQ(attention_choice(DType::kBF16, 8, causal), "cudnn; ");
  EXPECT_EQ(attention_choice(DType::kF16, 64, {}), "cudnn; ");
  EXPECT_EQ(attention_choice(DType::kF32, 8, causal), "tiles; cudnn: dtype f32");
  EXPECT_EQ(attention_choice(DType::kBF16, 12, causal), "tiles; cudnn: a width of heads that is not a multiple of 8");
  EXPECT_EQ(attention_choice(DType::kBF16, 8, window), "tiles; cudnn: cuDNN is not asked for a window");
  EXPECT_EQ(attention_choice(DType::kBF16, 8, {}, true), "tiles; cudnn: cuDNN is not asked for a bias");
  EXPECT_EQ(attention_choice(DType::kF32, 300, {}), "none; cudnn: heads of more than 256 elements; tiles: heads of more than 256 elements");
}

TEST(CudaAttention, APlanIsBuiltOnceForAForm) {
  if (on_gpu()) GTEST_SKIP() << "the engines are those of the stand-in";
  CudaDevice& device = stand_in_device();
  AttentionForm form{.batch = 1, .heads = 2, .kv_heads = 2, .queries = 4, .keys = 4, .width = 8, .value_width = 8};
  std::string reason;
  const auto first = library_attention(device, form, reason), second = library_attention(device, form, reason);
  ASSERT_NE(first, nullptr) << reason;
  EXPECT_EQ(first, second);
  form.causal = true;
  EXPECT_NE(library_attention(device, form, reason), first);
}

struct Model {
  const char* name;
  int64_t batch, heads, kv_heads, length, width;
  bool causal;
};
constexpr Model kModels[] = {{"GPT-2 124M", 16, 12, 12, 1024, 64, true},
                             {"GPT-2 1.5B", 4, 25, 25, 1024, 64, true},
                             {"Llama 8B", 1, 32, 8, 4096, 128, true},
                             {"BERT-base", 32, 12, 12, 512, 64, false},
                             {"ViT-B/16", 64, 12, 12, 197, 64, false}};

std::string read_table(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string attention_table(const std::string& card) {
  std::ostringstream table;
  table << "cuDNN " << cuda::dnn::dnn().state.version << ", H100, attention of packed q, k, v: listed, allowed, workspace of the first\n";
  for (const Model& m : kModels) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int kind : {0, 1, 2}) {
        AttentionForm form{.backward = kind > 0, .dtype = dtype, .batch = m.batch, .heads = m.heads, .kv_heads = m.kv_heads};
        form.queries = form.keys = m.length;
        form.width = form.value_width = m.width;
        form.causal = m.causal;
        form.deterministic = kind < 2;
        const int64_t heads = m.heads + 2 * m.kv_heads;
        for (int64_t* steps : {form.q_steps, form.k_steps, form.v_steps}) {
          steps[0] = m.length * heads * m.width;
          steps[1] = m.width;
          steps[2] = heads * m.width;
        }
        const AttentionSupport support = attention_support(form, card);
        table << m.name << ", " << dtype << ", "
              << (kind == 0   ? "forward"
                  : kind == 1 ? "gradients"
                              : "gradients in any order")
              << ": " << support.listed << ", " << support.allowed << ", " << support.workspace << (support.compiled ? "" : " (no plan)")
              << "\n";
      }
    }
  }
  return table.str();
}

// As CudnnTable in convolutions_test.cpp. cuDNN lists engines that it compiles at run time only if it finds libcuda.so.1; the stub of the
// toolkit in LD_LIBRARY_PATH is enough (tests/CMakeLists.txt).
TEST(CudnnTable, AttentionForAnH100IsThatOfTheStoredTable) {
  if (const std::string problem = open_real_cudnn(); !problem.empty()) GTEST_SKIP() << problem;
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr)
    GTEST_SKIP() << "no libcuda.so.1, not even a stub: engines compiled at run time are not listed";
  const std::string cards = GALLEY_SOURCE_DIR "/tests/backends/cuda/cards/", path = cards + "h100_attention.txt";
  if (std::getenv("GALLEY_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << attention_table(read_table(cards + "h100.json"));
    return;
  }
  const std::string stored = read_table(path), version = stored.substr(0, stored.find(','));
  if (version != cat("cuDNN ", cuda::dnn::dnn().state.version))
    GTEST_SKIP() << "the table is of " << version << ", the library " << cuda::dnn::dnn().state.version;
  EXPECT_EQ(attention_table(read_table(cards + "h100.json")), stored);
}

}  // namespace
}  // namespace galley::test
