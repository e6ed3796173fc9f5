// Laws: adapter_config.json is read as PEFT means it, and what is written is read back; options that would change results are refused; a
// merge is W + alpha / rank * B A, in either orientation of W and rounded once.
#include "libcore/weights/adapter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string adapter_error(const std::string& text) {
  try {
    parse_adapter_config(text, "adapter_config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.message();
  }
  return "";
}

TEST(AdapterConfig, IsReadAsPeftMeansIt) {
  const AdapterConfig plain = parse_adapter_config(R"({"peft_type": "LORA"})", "c");
  EXPECT_EQ(plain.rank, 8);  // PEFT's defaults
  EXPECT_EQ(plain.alpha, 8);
  EXPECT_EQ(plain.dropout, 0);
  EXPECT_FALSE(plain.transposed);
  const AdapterConfig full =
      parse_adapter_config(R"({"peft_type": "LORA", "r": 16, "lora_alpha": 4, "lora_dropout": 0.1, "use_rslora": true,
    "fan_in_fan_out": true, "modules_to_save": ["score"], "target_modules": "model.*q_proj", "rank_pattern": {}, "use_dora": false})",
                           "c");
  EXPECT_EQ(full.rank, 16);
  EXPECT_EQ(full.alpha, 16) << "alpha / sqrt(r) = 1 = 16 / 16";
  EXPECT_EQ(full.dropout, 0.1);
  EXPECT_TRUE(full.transposed);
  EXPECT_EQ(full.trained, std::vector<std::string>{"score"});
  EXPECT_TRUE(full.layers.empty()) << "an expression";
}

TEST(AdapterConfig, WhatIsWrittenIsReadBack) {
  const AdapterConfig config{
      .rank = 4, .alpha = 2.5, .dropout = 0.25, .layers = {"a.b", "c"}, .trained = {"head"}, .base = "x/y", .task_type = "CAUSAL_LM"};
  const AdapterConfig read = parse_adapter_config(adapter_config_text(config), "c");
  EXPECT_EQ(read.rank, 4);
  EXPECT_EQ(read.alpha, 2.5);
  EXPECT_EQ(read.dropout, 0.25);
  EXPECT_EQ(read.layers, config.layers);
  EXPECT_EQ(read.trained, config.trained);
  EXPECT_EQ(read.base, "x/y");
  EXPECT_EQ(read.task_type, "CAUSAL_LM");
}

TEST(AdapterConfig, RefusesWhatWouldGiveOtherResults) {
  EXPECT_NE(adapter_error("{}").find("peft_type"), std::string::npos);
  EXPECT_NE(adapter_error(R"({"peft_type": "IA3"})").find("'IA3'"), std::string::npos);
  for (const char* option :
       {R"("use_dora": true)", R"("lora_bias": true)", R"("rank_pattern": {"a": 4})", R"("alpha_pattern": {"a": 4})", R"("bias": "all")",
        R"("init_lora_weights": "pissa_niter_4")", R"("r": 0)", R"("lora_dropout": 2)", R"("layer_replication": [[0, 1]])"}) {
    const std::string key = std::string(option).substr(1, std::string(option).find('"', 1) - 1);
    const std::string message = adapter_error(std::string(R"({"peft_type": "LORA", )") + option + "}");
    EXPECT_NE(message.find(key), std::string::npos) << option << ": " << message;
  }
}

Tensor filled_adapter(DType dtype, Shape shape, int step) {
  Tensor tensor(DType::kF64, shape);
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>((i * step) % 11 - 5) / 8);
  tensor.from_doubles(values);
  return tensor.to(dtype);
}

TEST(MergeAdapter, AddsTheScaledProduct) {
  constexpr int64_t kOut = 5, kIn = 7, kRank = 3;
  const AdapterConfig config{.rank = kRank, .alpha = 2};
  const Tensor a = filled_adapter(DType::kF32, {kRank, kIn}, 3), b = filled_adapter(DType::kF32, {kOut, kRank}, 4);
  for (const bool transposed : {false, true}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      const Tensor weight = filled_adapter(dtype, transposed ? Shape{kIn, kOut} : Shape{kOut, kIn}, 5);
      const Tensor merged = merge_adapter(weight, a, b, config, transposed);
      ASSERT_EQ(merged.dtype(), dtype);
      ASSERT_EQ(merged.shape(), weight.shape());
      const std::vector<double> got = merged.to_doubles(), w = weight.to_doubles(), pa = a.to_doubles(), pb = b.to_doubles();
      const double rounding = dtype == DType::kF64 ? 1e-15 : dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
      for (int64_t o = 0; o < kOut; ++o) {
        for (int64_t i = 0; i < kIn; ++i) {
          const auto at = static_cast<size_t>(transposed ? i * kOut + o : o * kIn + i);
          double expected = w[at];
          for (int64_t r = 0; r < kRank; ++r)
            expected += 2.0 / 3 * pb[static_cast<size_t>(o * kRank + r)] * pa[static_cast<size_t>(r * kIn + i)];
          EXPECT_NEAR(got[at], expected, rounding * std::max(1.0, std::abs(expected)) + 1e-15) << dtype << " " << o << "," << i;
        }
      }
    }
  }
}

TEST(AdapterFolder, ReadsFilesAndNamesWhatIsWrong) {
  const TemporaryFolder folder;
  const auto write = [&](const std::vector<TensorSource>& tensors) {
    write_file(folder / "adapter_config.json", adapter_config_text({.rank = 2, .layers = {"fc"}, .trained = {"head"}}));
    write_safetensors(folder / "adapter_model.safetensors", tensors, {});
  };
  const auto message = [&]() -> std::string {
    try {
      const AdapterFolder opened(folder / "");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message().find("adapter_config.json is missing"), std::string::npos);
  const TensorSource a(adapter_tensor_name("fc.lora_A.weight"), filled_adapter(DType::kF32, {2, 4}, 3));
  const TensorSource b(adapter_tensor_name("fc.lora_B.weight"), filled_adapter(DType::kF32, {3, 2}, 3));
  const TensorSource head(adapter_tensor_name("head.bias"), filled_adapter(DType::kF32, {3}, 3));
  write({a, b, head});
  const AdapterFolder opened(folder / "");
  EXPECT_EQ(opened.layers(), std::vector<std::string>{"fc"});
  EXPECT_TRUE(opened.find("head.bias"));
  EXPECT_EQ(opened.read(*opened.find("fc.lora_B.weight")).to_doubles(), filled_adapter(DType::kF32, {3, 2}, 3).to_doubles());
  write({a, head});
  EXPECT_NE(message().find("'fc.lora_A.weight' has no lora_B"), std::string::npos) << message();
  write({b});
  EXPECT_NE(message().find("'fc.lora_B.weight' has no lora_A"), std::string::npos) << message();
  write({a, b, TensorSource(adapter_tensor_name("other.bias"), filled_adapter(DType::kF32, {3}, 3))});
  EXPECT_NE(message().find("'other.bias' is neither"), std::string::npos) << message();
  write({a, TensorSource(b.name, filled_adapter(DType::kF32, {3, 4}, 3))});
  EXPECT_NE(message().find("[2,4] and [3,4]; with r=2"), std::string::npos) << message();
  write({TensorSource("fc.lora_A.weight", filled_adapter(DType::kF32, {2, 4}, 3))});
  EXPECT_NE(message().find("does not begin with base_model.model."), std::string::npos) << message();
}

}  // namespace
}  // namespace galley
