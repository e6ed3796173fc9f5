// Vendor libraries that are missing, old, incomplete or damaged: what the messages say. Products by the stand-in of cuBLASLt.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "libcore/backends/cuda/aligned_products.h"
#include "libcore/backends/cuda/library_products.h"
#include "libcore/base/log.h"
#include "libcore/vendor/cuda/blas_lt.h"
#include "libcore/vendor/cuda/dnn.h"
#include "libcore/vendor/cuda/nccl.h"
#include "libcore/vendor/cuda/nvrtc.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/support/temporary_folder.h"

namespace galley::test {
namespace {

const std::string kStandIn = std::string(GALLEY_STAND_IN_DRIVER).substr(0, std::string(GALLEY_STAND_IN_DRIVER).rfind('/'));

TEST(CudaLibraries, AMissingOneSaysWhereItWasLookedFor) {
  const TemporaryFolder folder;
  const cuda::lt::BlasLt opened = cuda::lt::open_blas_lt({folder.path(), "/nowhere"});
  EXPECT_EQ(opened.state.problem, "cuBLASLt was not found (libcublasLt.so.13, searched " + folder.path() +
                                      ", /nowhere); install version 13 (pip install nvidia-cublas), or name its folder by "
                                      "GALLEY_CUDA_LIBRARIES");
}

TEST(CudaLibraries, AnOldOneSaysItsVersion) {
  const cuda::lt::BlasLt opened = cuda::lt::open_blas_lt({kStandIn + "/old"});
  EXPECT_EQ(opened.state.version, "12.8.3");
  EXPECT_EQ(opened.state.problem, "cuBLASLt is of version 12.8.3, but 13 is needed (" + kStandIn +
                                      "/old/libcublasLt.so.13); install version 13 (pip install nvidia-cublas), or name its folder by "
                                      "GALLEY_CUDA_LIBRARIES");
}

TEST(CudaLibraries, AProblemIsWarnedOfOnce) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, const std::string& message) {
    if (level == LogLevel::kWarning) warnings.push_back(message);
  });
  const cuda::LibraryState old = cuda::lt::open_blas_lt({kStandIn + "/old"}).state, good = cuda::lt::open_blas_lt({kStandIn}).state;
  EXPECT_EQ(cuda::warn_of_problem(old), old.problem);
  EXPECT_EQ(cuda::warn_of_problem(old), old.problem);
  EXPECT_EQ(cuda::warn_of_problem(good), "");
  set_log_sink([](LogLevel, const std::string&) {});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], old.problem + ". Until then Galley's own kernels run instead of those of cuBLASLt, and are slower");
}

TEST(CudaLibraries, AnIncompleteOneNamesWhatItLacks) {
  const cuda::lt::BlasLt opened = cuda::lt::open_blas_lt({kStandIn + "/partial"});
  EXPECT_EQ(opened.state.problem.rfind("cuBLASLt has no cublasLtDestroy, cublasLtMatmulDescCreate, ", 0), 0u) << opened.state.problem;
  EXPECT_NE(opened.state.problem.find("(" + kStandIn + "/partial/libcublasLt.so.13)"), std::string::npos) << opened.state.problem;
}

TEST(CudaLibraries, ADamagedOneIsPassedOver) {
  const TemporaryFolder folder;
  std::ofstream(folder / "libcublasLt.so.13") << "no library";
  const cuda::lt::BlasLt damaged = cuda::lt::open_blas_lt({folder.path()});
  EXPECT_EQ(damaged.state.problem.rfind("cuBLASLt cannot be opened: " + folder.path() + "/libcublasLt.so.13: ", 0), 0u)
      << damaged.state.problem;
  const cuda::lt::BlasLt next = cuda::lt::open_blas_lt({folder.path(), kStandIn});
  EXPECT_EQ(next.state.problem, "");
  EXPECT_EQ(next.state.file, kStandIn + "/libcublasLt.so.13");
}

// A library of several files takes all of them from one folder.
TEST(CudaLibraries, PartsOfOtherFoldersAreNotMixed) {
  static constexpr const char* kFiles[] = {"libcublasLt.so.13", "libpart.so.13"};
  const cuda::LibraryRow row{"Parts", kFiles, "install it"};
  const TemporaryFolder whole;
  const cuda::Library mixed = cuda::open_library(row, {kStandIn + "/old"});
  EXPECT_EQ(mixed.handle, nullptr);
  EXPECT_EQ(mixed.state.problem.rfind("Parts cannot be opened: " + kStandIn + "/old/libpart.so.13: ", 0), 0u) << mixed.state.problem;
  std::filesystem::copy_file(kStandIn + "/partial/libcublasLt.so.13", whole / "libcublasLt.so.13");
  std::filesystem::copy_file(kStandIn + "/old/libcublasLt.so.13", whole / "libpart.so.13");
  const cuda::Library found = cuda::open_library(row, {kStandIn + "/old", whole.path()});
  EXPECT_EQ(found.state.problem, "");
  EXPECT_EQ(found.state.file, whole / "libcublasLt.so.13");
}

/// Puts all files of cuDNN, which are one fake, into the folder.
void add_dnn(const TemporaryFolder& folder, const std::string& fake) {
  for (const char* part : {"", "_cnn", "_heuristic", "_engines_runtime_compiled", "_engines_precompiled", "_ops", "_graph"})
    std::filesystem::create_symlink(kStandIn + "/" + fake + "/libcudnn.so.9", folder / cat("libcudnn", part, ".so.9"));
}
TEST(CudaLibraries, AnOldOrMixedCudnnSaysSo) {
  const TemporaryFolder old, mixed;
  add_dnn(old, "old");
  add_dnn(mixed, "mixed");
  EXPECT_EQ(cuda::dnn::open_dnn({old.path()}).state.problem,
            "cuDNN is of version 9.1.0, but 9.8.0 is needed (" + old.path() +
                "/libcudnn.so.9); install version 9.8 or later (pip install nvidia-cudnn-cu13), or name its folder by "
                "GALLEY_CUDA_LIBRARIES");
  EXPECT_EQ(cuda::dnn::open_dnn({mixed.path()}).state.problem, "the part libcudnn_cnn of cuDNN is of another version than " + mixed.path() +
                                                                   "/libcudnn.so.9 (9.14.0); remove other versions from the loader's path");
}
TEST(CudaLibraries, AnOldNvrtcSaysItsVersion) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(kStandIn + "/old/libcublasLt.so.13", folder / "libnvrtc.so.13");
  EXPECT_EQ(cuda::nvrtc::open_nvrtc({folder.path()}).state.problem,
            "NVRTC is of version 12.9, but 13 is needed (" + folder.path() +
                "/libnvrtc.so.13); install version 13 (pip install nvidia-cuda-nvrtc), or name its folder by GALLEY_CUDA_LIBRARIES");
}

// Names in the lists of functions, against the libraries of a toolkit. CudnnTable does the same for cuDNN.
TEST(CudaLibraries, ThoseOfAToolkitHaveAllFunctions) {
  std::string looked_at;
  for (const std::string& folder : {std::string("/usr/local/cuda/lib64"), std::string("/usr/local/cuda/lib")}) {
    if (void* stub = dlopen((folder + "/stubs/libcuda.so").c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      looked_at += " driver";
      // The driver gives these functions by name and version; a stub has them with the version in the name.
      const auto has = [stub](const std::string& name) {
        for (const char* suffix : {"", "_v2", "_v3", "_v4"})
          if (dlsym(stub, (name + suffix).c_str()) != nullptr) return true;
        return false;
      };
#define GALLEY_NAMED(name, arguments) EXPECT_TRUE(has(#name)) << #name;
      GALLEY_CUDA_DRIVER_FUNCTIONS(GALLEY_NAMED)
#undef GALLEY_NAMED
    }
    for (const cuda::LibraryState& state :
         {cuda::lt::open_blas_lt({folder}).state, cuda::nccl::open_nccl({folder}).state, cuda::nvrtc::open_nvrtc({folder}).state}) {
      EXPECT_EQ(state.problem.find(" has no "), std::string::npos) << state.problem;
      if (state.problem.empty()) looked_at += " " + state.name;
    }
  }
  if (looked_at.empty()) GTEST_SKIP() << "no toolkit is installed";
  RecordProperty("looked_at", looked_at);
}

TEST(CudaLibraries, FoldersOfTheEnvironmentReplaceTheUsualOnes) {
  const char* before = std::getenv("GALLEY_CUDA_LIBRARIES");
  const std::string restored = before != nullptr ? before : "";
  setenv("GALLEY_CUDA_LIBRARIES", "/a:/b c:", 1);
  EXPECT_EQ(cuda::library_folders(), (std::vector<std::string>{"/a", "/b c"}));
  unsetenv("GALLEY_CUDA_LIBRARIES");
  EXPECT_EQ(cuda::library_folders().front(), "");
  if (before != nullptr) setenv("GALLEY_CUDA_LIBRARIES", restored.c_str(), 1);
}

/// One product of numbers that TF32 rounds.
std::vector<float> product_of(bool tf32) {
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> stream = device.make_stream();
  const ProductForm form{.m = 2, .n = 3, .k = 4, .tf32 = tf32};
  EXPECT_EQ(library_declines(form), "");
  const LibraryProduct product(form);
  std::vector<float> a(8), b(12), y(6);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 1 + 0.001f * static_cast<float>(i);
  for (size_t i = 0; i < b.size(); ++i) b[i] = 2 - 0.003f * static_cast<float>(i);
  const auto on_device = [&](const void* from, size_t count) {
    void* block = device.memory().allocate(static_cast<int64_t>(4 * count), 256);
    if (from != nullptr) stream->copy(block, from, static_cast<int64_t>(4 * count));
    return block;
  };
  void *da = on_device(a.data(), a.size()), *db = on_device(b.data(), b.size()), *dy = on_device(nullptr, y.size());
  void* workspace = on_device(nullptr, static_cast<size_t>(product.workspace_bytes() / 4));
  EXPECT_TRUE(product.run(*stream, da, db, nullptr, dy, workspace));
  stream->copy(y.data(), dy, 24);
  stream->synchronize();
  double largest = 0;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t column = 0; column < 3; ++column) {
      double sum = 0;
      for (size_t i = 0; i < 4; ++i) sum += static_cast<double>(a[row * 4 + i]) * static_cast<double>(b[i * 3 + column]);
      largest = std::max(largest, std::abs(y[row * 3 + column] - sum) / std::abs(sum));
    }
  }
  EXPECT_LE(largest, tf32 ? 1e-3 : 1e-6);
  for (void* block : {da, db, dy, workspace}) device.memory().free(block, 0, 256);
  return y;
}

TEST(CudaLibraries, ProductsRoundToTf32OnlyWhereAllowed) {
  const std::vector<float> exact = product_of(false), rounded = product_of(true);
  EXPECT_TRUE(on_gpu() || exact != rounded);  // on a GPU, small products may be exact
}

// The operator has a kernel of its own for a GPU on which the library has no such product; its cases cannot tell which one ran.
TEST(CudaLibraries, ProductsOfF8RunThere) {
  CudaDevice& device = stand_in_device();
  if (device.facts().capability < 89) GTEST_SKIP() << "f8 needs compute capability 8.9";
  const ProductForm form{.dtype = DType::kF8E4M3, .b_transposed = true, .m = 20, .n = 32, .k = 48};
  ASSERT_EQ(library_declines(form), "");
  const LibraryProduct product(form);
  const std::unique_ptr<Stream> stream = device.make_stream();
  const auto value = [](int64_t i, int64_t step) { return static_cast<float>(i * step % 13 - 6); };  // exact in f8, and so are the sums
  std::vector<uint8_t> a(static_cast<size_t>(form.m * form.k)), b(static_cast<size_t>(form.n * form.k));
  for (size_t i = 0; i < a.size(); ++i) a[i] = f8_from_float(value(static_cast<int64_t>(i), 5));
  for (size_t i = 0; i < b.size(); ++i) b[i] = f8_from_float(value(static_cast<int64_t>(i), 7));
  std::vector<float> y(static_cast<size_t>(form.m * form.n));
  const std::array<int64_t, 4> sizes{std::ssize(a), std::ssize(b), 4 * std::ssize(y), product.workspace_bytes()};
  std::array<void*, 4> blocks{};
  for (size_t i = 0; i < sizes.size(); ++i) blocks[i] = device.memory().allocate(sizes[i], 256);
  stream->copy(blocks[0], a.data(), sizes[0]);
  stream->copy(blocks[1], b.data(), sizes[1]);
  ASSERT_TRUE(product.run(*stream, blocks[0], blocks[1], nullptr, blocks[2], blocks[3]));
  stream->copy(y.data(), blocks[2], sizes[2]);
  stream->synchronize();
  for (size_t i = 0; i < sizes.size(); ++i) device.memory().free(blocks[i], sizes[i], 256);
  for (int64_t row = 0; row < form.m; ++row) {
    for (int64_t column = 0; column < form.n; ++column) {
      float sum = 0;
      for (int64_t i = 0; i < form.k; ++i) sum += value(row * form.k + i, 5) * value(column * form.k + i, 7);
      EXPECT_EQ(y[static_cast<size_t>(row * form.n + column)], sum) << "row " << row << ", column " << column;
    }
  }
}

/// Numbers in bf16, on the GPU and in double.
struct ShortNumbers {
  ShortNumbers(Stream& stream, int64_t count, int64_t step) : bits(static_cast<size_t>(count)), values(bits.size()) {
    for (size_t i = 0; i < bits.size(); ++i) {
      const float value = static_cast<float>(static_cast<int64_t>(i) * step % 23 - 11) / 16;  // exact in bf16
      bits[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      values[i] = static_cast<double>(value);
    }
    memory = stand_in_device().memory().allocate(2 * count, 256);
    stream.copy(memory, bits.data(), 2 * count);
  }
  ~ShortNumbers() { stand_in_device().memory().free(memory, 2 * std::ssize(bits), 256); }
  std::vector<uint16_t> bits;
  std::vector<double> values;
  void* memory = nullptr;
};

// In parts that pass through aligned memory: the result, the first operand, and the first operand transposed have odd lines.
TEST(CudaLibraries, ProductsOfOddLinesAreDivided) {
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> stream = device.make_stream();
  const DType dtype = DType::kBF16;
  for (const ProductForm& form : {ProductForm{.dtype = dtype, .b_transposed = true, .m = 300, .n = 13, .k = 8},
                                  ProductForm{.dtype = dtype, .b_transposed = true, .m = 128, .n = 9, .k = 16, .relu = true},
                                  ProductForm{.dtype = dtype, .m = 300, .n = 8, .k = 13, .bias = true},
                                  ProductForm{.dtype = dtype, .a_transposed = true, .m = 301, .n = 16, .k = 5}}) {
    const std::unique_ptr<AlignedProduct> product = AlignedProduct::of(form, {.least_operations = 0, .most_bytes = 3000});
    ASSERT_NE(product, nullptr);
    EXPECT_EQ(AlignedProduct::of(form), nullptr);  // too small to gain
    const ShortNumbers a(*stream, form.m * form.k, 7), b(*stream, form.n * form.k, 5), bias(*stream, form.n, 3),
        y(*stream, form.m * form.n, 0);
    void* scratch = device.memory().allocate(product->scratch_bytes(), 256);
    ASSERT_TRUE(product->run(*stream, a.memory, b.memory, form.bias ? bias.memory : nullptr, y.memory, scratch));
    std::vector<uint16_t> results(y.bits.size());
    stream->copy(results.data(), y.memory, 2 * std::ssize(results));
    stream->synchronize();
    device.memory().free(scratch, product->scratch_bytes(), 256);
    const auto at = [](const ShortNumbers& of, int64_t row, int64_t column, int64_t columns) {
      return of.values[static_cast<size_t>(row * columns + column)];
    };
    for (int64_t i = 0; i < form.m; ++i) {
      for (int64_t j = 0; j < form.n; ++j) {
        double sum = form.bias ? at(bias, 0, j, form.n) : 0;
        for (int64_t k = 0; k < form.k; ++k) {
          sum += (form.a_transposed ? at(a, k, i, form.m) : at(a, i, k, form.k)) *
                 (form.b_transposed ? at(b, j, k, form.k) : at(b, k, j, form.n));
        }
        if (form.relu) sum = std::max(sum, 0.0);
        EXPECT_NEAR(float_from_bf16(results[static_cast<size_t>(i * form.n + j)]), sum, 0x1p-7 * std::max(1.0, std::abs(sum)))
            << "row " << i << ", column " << j;
      }
    }
  }
}

TEST(CudaLibraries, AnErrorOfAProductNamesIt) {
  if (on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in";
  fail_stand_in("cublasLtMatmul", 1, 13);
  EXPECT_EQ(message_of([] { product_of(false); }), "cuBLASLt: starting a product 2x3x4: execution failed (13)");
}

}  // namespace
}  // namespace galley::test
