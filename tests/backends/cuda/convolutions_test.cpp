// Convolutions by the stand-in of cuDNN; and by the real library, without a GPU, which engines it has for an H100.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "libcore/backends/cuda/backend.h"
#include "libcore/backends/cuda/library_convolutions.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/quantized.h"
#include "libcore/vendor/cuda/dnn.h"
#include "tests/backends/cuda/stand_in.h"

namespace galley::test {
namespace {

/// A convolution of images in channels_last.
ConvolutionForm form_of(ConvolutionResult result, DType dtype, int64_t batch, int64_t channels, int64_t side, int64_t outputs,
                        int64_t kernel, int64_t stride, int64_t groups = 1) {
  ConvolutionForm form{.result = result, .dtype = dtype};
  const int64_t padding = kernel / 2, to = (side + 2 * padding - kernel) / stride + 1;
  const auto set = [](int64_t* sizes, int64_t* steps, int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t given[] = {n, c, h, w}, last[] = {c * h * w, 1, c * w, c};
    std::copy(given, given + 4, sizes);
    std::copy(last, last + 4, steps);
  };
  set(form.x_size, form.x_steps, batch, channels, side, side);
  set(form.weight_size, form.weight_steps, outputs, channels / groups, kernel, kernel);
  set(form.y_size, form.y_steps, batch, outputs, to, to);
  for (int d = 0; d < 2; ++d) {
    form.stride[d] = stride;
    form.padding[d] = padding;
  }
  return form;
}

TEST(CudaConvolutions, APlanIsBuiltOnceForAForm) {
  CudaDevice& device = stand_in_device();
  std::string reason;
  const ConvolutionForm form = form_of(ConvolutionResult::kY, DType::kF32, 2, 8, 5, 8, 3, 1);
  const auto first = library_convolution(device, form, reason), second = library_convolution(device, form, reason);
  ASSERT_NE(first, nullptr) << reason;
  EXPECT_EQ(first, second);
  EXPECT_NE(library_convolution(device, form_of(ConvolutionResult::kY, DType::kF32, 2, 8, 5, 8, 3, 2), reason), first);
}

TEST(CudaConvolutions, WhatTheLibraryDoesNotComputeHasAReason) {
  CudaDevice& device = stand_in_device();
  std::string reason;
  EXPECT_EQ(library_convolution(device, form_of(ConvolutionResult::kY, DType::kF64, 2, 8, 5, 8, 3, 1), reason), nullptr);
  EXPECT_EQ(reason, "dtype f64");
  EXPECT_EQ(library_convolution(device, form_of(ConvolutionResult::kY, DType::kF32, 0, 8, 5, 8, 3, 1), reason), nullptr);
  EXPECT_EQ(reason, "a size of 0, or of 2^31 or more");
}

// The first engine of the stand-in rounds f32 to TF32, so it is passed over unless that is allowed.
TEST(CudaConvolutions, RoundToTf32OnlyWhereAllowed) {
  if (on_gpu()) GTEST_SKIP() << "the engines are those of the stand-in";
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> stream = device.make_stream();
  std::vector<float> results;
  for (const bool tf32 : {false, true}) {
    ConvolutionForm form = form_of(ConvolutionResult::kY, DType::kF32, 1, 1, 1, 1, 1, 1);
    form.tf32 = tf32;
    std::string reason;
    const auto plan = library_convolution(device, form, reason);
    ASSERT_NE(plan, nullptr) << reason;
    const float x = 1.0001f, weight = 3;
    void* block = device.memory().allocate(1024, 256);
    auto* places = static_cast<std::byte*>(block);
    stream->copy(places, &x, 4);
    stream->copy(places + 256, &weight, 4);
    plan->run(*stream, {.x = places, .weight = places + 256, .y = places + 512}, places + 768);
    float y = 0;
    stream->copy(&y, places + 512, 4);
    stream->synchronize();
    results.push_back(y);
    device.memory().free(block, 1024, 256);
  }
  EXPECT_FLOAT_EQ(results[0], 3 * 1.0001f);
  EXPECT_EQ(results[1], 3.0f);  // 1.0001 has no other neighbor in TF32
}

/// The algorithm of a convolution of integers or f8, and why those before it decline.
std::string choice(int64_t groups, bool f8 = false) {
  const std::unique_ptr<Backend> backend = open_cuda({.threads = 2});
  Graph graph;
  const auto input = [&](const char* name, DType dtype, const Shape& shape) {
    TensorType type;
    type.dtype = dtype;
    type.shape = shape;
    return graph.add_input(name, type, ValueRole::kInput);
  };
  const Value x = input("x", f8 ? DType::kF32 : DType::kU8, {1, 6, 5, 5}), scale = input("s", DType::kF32, {6}),
              weight = input("w", f8 ? DType::kF8E4M3 : DType::kI8, {6, 6 / groups, 3, 3});
  if (f8) {
    F8Conv2dAttrs attrs;
    attrs.groups = groups;
    f8_conv2d(x, weight, scale, {}, attrs);
  } else {
    QuantizedConv2dAttrs attrs;
    attrs.groups = groups;
    quantized_conv2d(x, weight, scale, {}, attrs);
  }
  const KernelChoice chosen = backend->choose(backend->query(graph, graph.nodes().back()));
  return cat(chosen.kernel == nullptr ? "none" : chosen.kernel->algorithm, "; ", chosen.reasons());
}
TEST(CudaConvolutions, OfIntegersAndF8RunByTheLibraryUnlessThereAreGroups) {
  stand_in_device();
  EXPECT_EQ(choice(1), "cublaslt_i8; ");
  EXPECT_EQ(choice(2), "direct; cublaslt_i8: groups");
  EXPECT_EQ(choice(1, true), "cublaslt_f8; ");
  EXPECT_EQ(choice(2, true), "none; cublaslt_f8: groups") << "its definition runs: a convolution in f32";
}

struct Layer {
  const char* name;
  int64_t channels, side, outputs, kernel, stride, groups;
};
// Of ResNet-50, batch 256, and a depthwise one of MobileNet.
constexpr Layer kLayers[] = {{"stem", 3, 224, 64, 7, 2, 1},
                             {"padded stem", 8, 224, 64, 7, 2, 1},
                             {"1x1 64-64", 64, 56, 64, 1, 1, 1},
                             {"3x3 64-64", 64, 56, 64, 3, 1, 1},
                             {"1x1 64-256", 64, 56, 256, 1, 1, 1},
                             {"3x3/2 128-128", 128, 56, 128, 3, 2, 1},
                             {"1x1/2 256-512", 256, 56, 512, 1, 2, 1},
                             {"3x3 512-512", 512, 7, 512, 3, 1, 1},
                             {"depthwise 3x3 96", 96, 56, 96, 3, 1, 96}};

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A line for each layer, result and dtype: the engines of the heuristics, those that may be used, and the workspace of the first.
std::string support_table(const std::string& card) {
  std::ostringstream table;
  table << "cuDNN " << cuda::dnn::dnn().state.version << ", H100, batch 256, channels_last: listed, usable, workspace of the first\n";
  for (const Layer& layer : kLayers) {
    for (const ConvolutionResult result : {ConvolutionResult::kY, ConvolutionResult::kX, ConvolutionResult::kWeight}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const ConvolutionForm form =
            form_of(result, dtype, 256, layer.channels, layer.side, layer.outputs, layer.kernel, layer.stride, layer.groups);
        const ConvolutionSupport support = convolution_support(form, card);
        table << layer.name << ", "
              << (result == ConvolutionResult::kY   ? "forward"
                  : result == ConvolutionResult::kX ? "data"
                                                    : "weights")
              << ", " << dtype << ": " << support.listed << ", " << support.usable << ", " << support.workspace << "\n";
      }
    }
  }
  // What follows a convolution in the same engine.
  for (const Layer& layer : kLayers) {
    if (layer.channels % 8 != 0) continue;
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const bool residual : {false, true}) {
        ConvolutionForm form =
            form_of(ConvolutionResult::kY, dtype, 256, layer.channels, layer.side, layer.outputs, layer.kernel, layer.stride, layer.groups);
        form.bias = form.relu = true;
        form.residual = residual;
        const ConvolutionSupport support = convolution_support(form, card);
        table << layer.name << ", forward with " << (residual ? "residual, " : "") << "bias and relu, " << dtype << ": " << support.listed
              << ", " << support.usable << ", " << support.workspace << "\n";
      }
      ConvolutionForm form =
          form_of(ConvolutionResult::kY, dtype, 256, layer.channels, layer.side, layer.outputs, layer.kernel, layer.stride, layer.groups);
      form.statistics = true;
      const ConvolutionSupport support = convolution_support(form, card);
      table << layer.name << ", forward with statistics, " << dtype << ": " << support.listed << ", " << support.usable << ", "
            << support.workspace << "\n";
    }
  }
  return table.str();
}

/// The rows with a usable engine, without counts: what all versions of the library share.
std::string usable_rows(const std::string& table) {
  std::istringstream lines(table.substr(table.find('\n') + 1));
  std::string rows;
  for (std::string line; std::getline(lines, line);) {
    const size_t counts = line.find(": "), usable = line.find(", ", counts);
    if (std::stoi(line.substr(usable + 2)) > 0) rows += line.substr(0, counts) + "\n";
  }
  return rows;
}

// By the cuDNN of open_real_cudnn(); the stand-in cannot answer. GALLEY_UPDATE_GOLDEN=1 writes the table.
TEST(CudnnTable, EnginesForAnH100AreThoseOfTheStoredTable) {
  if (const std::string problem = open_real_cudnn(); !problem.empty()) GTEST_SKIP() << problem;
  const std::string cards = GALLEY_SOURCE_DIR "/tests/backends/cuda/cards/", path = cards + "h100_convolutions.txt";
  const std::string stored = read(path), found = support_table(read(cards + "h100.json"));
  if (std::getenv("GALLEY_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << found;
    return;
  }
  const bool same_version = found.substr(0, found.find(',')) == stored.substr(0, stored.find(','));
  EXPECT_EQ(same_version ? found : usable_rows(found), same_version ? stored : usable_rows(stored));
}

}  // namespace
}  // namespace galley::test
