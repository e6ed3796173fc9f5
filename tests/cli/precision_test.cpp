// precision: bf16 as a user runs it: it trains, resumes and evaluates, warns on processors without fast bf16 instructions, and rejects
// combinations that are not supported.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

double loss_of(const std::string& result) { return Json::parse(result)["metrics"]["loss"]; }

TEST(Precision, Bf16TrainsResumesAndEvaluates) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const auto train = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words{recipe, "-o", folder + "/" + to, "--format", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-train", words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  const double wide = loss_of(train("wide", {}).out);
  const Outcome trained = train("narrow", {"precision=bf16"});
  const double narrow = loss_of(trained.out);
  EXPECT_NE(narrow, wide) << "values are rounded";
  EXPECT_NEAR(narrow, wide, 0.05 * wide);
  const std::string processor = read_text("/proc/cpuinfo");
  const auto has = [&](const char* word) { return processor.find(word) != std::string::npos; };
  const bool fast = has("amx_bf16") || (has("avx512_bf16") && !(has("GenuineIntel") && has("avx512_fp16")));
  EXPECT_EQ(trained.err.find("no fast bf16 instructions") == std::string::npos, fast) << trained.err;
  // Every tool computes the RUN in bf16, and in f32 on request.
  EXPECT_EQ(loss_of(run("galley-evaluate", {folder + "/narrow", "--format", "json", "-q"}).out), narrow);
  EXPECT_NE(loss_of(run("galley-evaluate", {folder + "/narrow", "precision=f32", "--format", "json", "-q"}).out), narrow);
  // Parameters, state and files remain in f32; an interruption and a resume change no bit.
  EXPECT_EQ(run("galley-weights", {"show", folder + "/narrow/weights.safetensors"}).out.find("bf16"), std::string::npos);
  train("parts", {"precision=bf16", "train.duration=3 steps"});
  train("parts", {"precision=bf16"});
  EXPECT_EQ(tensor_bytes(folder + "/parts/weights.safetensors"), tensor_bytes(folder + "/narrow/weights.safetensors"));
  // Quantization starts from f32.
  EXPECT_EQ(run("galley-calibrate", {folder + "/narrow", "--samples", "8", "-o", folder + "/stats.calib", "-q"}).code, 0);
}

TEST(Precision, F16ScalesTheLoss) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const auto train = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words{recipe, "-o", folder + "/" + to, "--format", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-train", words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  const double wide = loss_of(train("wide", {}).out);
  const Outcome trained = train("narrow", {"precision={compute: f16, loss_scale: 1024}"});
  EXPECT_NE(loss_of(trained.out), wide);
  EXPECT_NEAR(loss_of(trained.out), wide, 0.02 * wide);
  EXPECT_NE(trained.err.find("there are no f16 kernels for processors: with precision: f16, operators compute in f32"), std::string::npos)
      << trained.err;
  EXPECT_EQ(loss_of(run("galley-evaluate", {folder + "/narrow", "--format", "json", "-q"}).out), loss_of(trained.out));
  // The factor is part of a checkpoint: an interruption and a resume change no bit.
  train("whole", {"precision=f16"});
  EXPECT_NE(read_text(folder + "/whole/metrics.jsonl").find("\"loss_scale\":"), std::string::npos);
  train("parts", {"precision=f16", "train.duration=3 steps"});
  train("parts", {"precision=f16"});
  EXPECT_EQ(tensor_bytes(folder + "/parts/weights.safetensors"), tensor_bytes(folder + "/whole/weights.safetensors"));
}

TEST(Precision, WhatItCannotDoIsRefused) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const auto refused = [&](const std::vector<std::string>& overrides, const std::string& part) {
    std::vector<std::string> words{recipe, "--dry-run"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const Outcome outcome = run("galley-train", words);
    EXPECT_EQ(outcome.code, 3) << part;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  };
  refused({"precision=f64"}, "this version computes only in f32, bf16 and f16");
  refused({"precision=bf17"}, "bf17");
  refused({"precision={compute: bf16, master: bf16}"}, "precision.master must be f32");
  refused({"precision=bf16", "quantize.method=qat"}, "quantization-aware training needs f32");
  refused({"precision={compute: bf16, keep_f32: [nothing]}"}, "'precision.keep_f32': the pattern 'nothing'");
  EXPECT_EQ(run("galley-train", {recipe, "--dry-run", "precision={compute: bf16, keep_f32: ['type:linear']}"}).code, 0);
}

}  // namespace
}  // namespace galley::testing_cli
