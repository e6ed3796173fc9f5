// device: cuda on the stand-in driver, which runs the kernels on the host: the same losses as the processor, and clear errors without it.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "tests/cli/json_lines.h"
#include "tests/cli/process.h"
#include "tests/support/temporary_folder.h"

namespace galley::testing_cli {
namespace {

const std::string kFolder = GALLEY_BUILD_DIR "/stand_in", kDriver = kFolder + "/libcuda_stand_in.so";
const std::string kStandIn = "GALLEY_CUDA_DRIVER=" + kDriver + " GALLEY_CUDA_LIBRARIES=" + kFolder + " GALLEY_CUDA_PLANS=none";

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string training_in(const std::string& run) { return kStandIn + " galley-train r.yaml device=cuda deterministic=1 -q -o " + run; }
std::string training(const std::string& folder, const std::string& device) {
  return "cd " + folder + " && " + kStandIn + " galley-train r.yaml device=" + device + " log.every='1 steps' -q -o " + device;
}

std::vector<double> losses_of(const std::string& path) {
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(read_file(path))) {
    if (line["kind"] == "train") losses.push_back(line["loss"]);
  }
  return losses;
}

/// Trains on both devices.
void expect_equal_losses(const std::string& recipe, size_t steps) {
  const TemporaryFolder folder;
  write_file(folder / "text.txt", std::string(2000, 'a') + std::string(2000, 'b'));
  write_file(folder / "r.yaml", "recipe: 1\n" + recipe);
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome outcome = shell(training(folder.path(), device));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  const std::vector<double> expected = losses_of(folder / "cpu/metrics.jsonl"), found = losses_of(folder / "cuda/metrics.jsonl");
  ASSERT_EQ(expected.size(), steps);
  ASSERT_EQ(found.size(), steps);
  for (size_t i = 0; i < steps; ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << "step " << i + 1;
}

TEST(Cuda, TrainsAClassifierAsTheProcessor) {
  expect_equal_losses(
      "model: {type: mlp, hidden: [32], num_classes: 10}\ndata: {train: {source: {type: synthetic, samples: 64}}}\n"
      "train: {duration: 5 steps, batch: 16, optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}\n",
      5);
}

TEST(Cuda, TrainsALanguageModelAsTheProcessor) {
  expect_equal_losses(
      "model: {type: gpt, n_layer: 1, n_head: 2, n_embd: 16, block_size: 8, vocab_size: 256, dropout: 0.1}\n"
      "data: {train: {source: {type: text, path: text.txt}}}\n"
      "train: {duration: 4 steps, batch: 2, optimizer: {type: adamw, lr: 0.01}, clip: 1.0}\n",
      4);
}

constexpr const char* kRanksRecipe =
    "recipe: 1\nmodel: {type: mlp, hidden: [24, 24], num_classes: 4}\ntrain: {duration: 5 steps, batch: 8, ema: 0.9, clip: 1.0, "
    "optimizer: {type: adamw, lr: 0.02}}\n"
    "data: {train: {source: {type: synthetic, samples: 32, shape: [6], classes: 4}}}\nlog: {every: 1 steps}\n";

// A run that began on the processor goes on there.
TEST(Cuda, ContinuesARunOfTheProcessor) {
  const TemporaryFolder folder;
  write_file(folder / "r.yaml",
             "recipe: 1\nmodel: {type: mlp, hidden: [24, 24], num_classes: 4}\nlog: {every: 1 steps}\n"
             "train: {duration: 6 steps, batch: 8, clip: 1.0, ema: 0.9, optimizer: {type: adamw, lr: 0.02}}\n"
             "data: {train: {source: {type: synthetic, samples: 32, shape: [6], classes: 4}}}\n");
  const std::string train = "cd " + folder.path() + " && export " + kStandIn + " && galley-train r.yaml -q ";
  for (const std::string words : {"-o whole", "-o run 'train.duration=3 steps'", "-o run device=cuda", "-o run 'train.duration=9 steps'",
                                  "-o whole 'train.duration=9 steps'"}) {
    const Outcome outcome = shell(train + words);
    ASSERT_EQ(outcome.code, 0) << words << ": " << outcome.err;
  }
  const std::vector<double> expected = losses_of(folder / "whole/metrics.jsonl"), found = losses_of(folder / "run/metrics.jsonl");
  ASSERT_EQ(found.size(), 9u);
  ASSERT_EQ(expected.size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << "step " << i + 1;
}

TEST(Cuda, ProfilesSayWhichKernelsRan) {
  const TemporaryFolder folder;
  write_file(folder / "r.yaml", kRanksRecipe);
  const Outcome outcome = shell("cd " + folder.path() + " && " + kStandIn + " galley-profile r.yaml device=cuda -o t.json --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json profile = nlohmann::json::parse(outcome.out);
  std::map<std::string, std::string> kernels;
  for (const nlohmann::json& row : profile["operators"]) kernels[row["type"]] = row["kernel"];
  EXPECT_EQ(kernels["linear"], "cublaslt") << outcome.out;
  EXPECT_EQ(kernels["cross_entropy"], "positions") << outcome.out;
  std::ifstream file(folder / "t.json");
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(trace.find("\"cross_entropy_rows\""), std::string::npos) << "kernels as CUPTI names them";
}

TEST(Cuda, ErrorsSayWhatIsMissing) {
  const TemporaryFolder folder;
  write_file(folder / "r.yaml",
             "recipe: 1\nmodel: {type: mlp, num_classes: 10}\ndata: {train: {source: {type: synthetic, samples: 64}}}\n"
             "train: {duration: 1 steps, batch: 16, optimizer: {type: sgd, lr: 0.05}}\n");
  const std::string train = "cd " + folder.path() + " && GALLEY_CUDA_LIBRARIES=" + kFolder + " galley-train r.yaml device=cuda -q -o run";
  Outcome outcome = shell("GALLEY_CUDA_DRIVER=/nowhere/libcuda.so.1; export GALLEY_CUDA_DRIVER; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("cannot be opened: /nowhere/libcuda.so.1"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("install NVIDIA's driver 580 or later"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuInit:1=100; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("finds no NVIDIA GPU"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuMemAlloc:2=2; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("memory"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuLaunchKernel:7=700; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("CUDA: starting the kernel "), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/weights.safetensors"));
}

TEST(Cuda, ADriverThatCannotBeUsedIsNamedWithTheCure) {
  const std::string cure = "install NVIDIA's driver 580 or later", stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
  const std::map<std::string, std::string> reasons{
      {kFolder + "/old/libcuda.so.1", " is of CUDA 12.8, but 13.0 or later is needed; " + cure},
      {kFolder + "/partial/libcuda.so.1",
       " has no cuGraphInstantiateWithFlags, cuGraphLaunch, cuGraphDestroy, cuGraphExecDestroy; " + cure},
      {stub,
       " is the stub of a CUDA toolkit, which computes nothing; " + cure + " (nvidia-smi shows the one installed), and remove the stub"}};
  for (const auto& [driver, reason] : reasons) {
    if (!std::filesystem::exists(driver)) continue;  // no toolkit is installed
    const Outcome outcome = shell("GALLEY_CUDA_DRIVER=" + driver + " galley-train fashion_mnist_cnn device=cuda -n");
    EXPECT_EQ(outcome.code, 7) << driver;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  }
}

/// Calls of the driver's functions in a training.
std::map<std::string, int64_t> counts_of(const std::string& path) {
  std::map<std::string, int64_t> counts;
  std::ifstream file(path);
  for (std::string function; file >> function;) file >> counts[function];
  return counts;
}

// Every function of the driver fails once, the functions of each step in the third of four steps. The run ends with exit code 7, its last
// checkpoint is whole, and continues to the weights of a run that was not disturbed.
TEST(Cuda, AFailingCallLosesNothing) {
  const TemporaryFolder folder;
  write_file(
      folder / "r.yaml",
      "recipe: 1\nmodel: {type: mlp, hidden: [8], num_classes: 4}\ndata: {train: {source: {type: synthetic, samples: 16, shape: [6], "
      "classes: 4}}}\ncheckpoint: {every: 1 steps}\n"
      "train: {duration: 4 steps, batch: 4, optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}\n");
  const auto train = [&](const std::string& out, const std::string& environment) {
    return shell("cd " + folder.path() + " && " + environment + " " + training_in(out));
  };
  Outcome outcome = train("whole", "GALLEY_STAND_IN_COUNTS=whole.counts");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::map<std::string, int64_t> counts = counts_of(folder / "whole.counts");
  ASSERT_GT(counts.at("cuLaunchKernel"), 30);
  const std::string weights = tensor_bytes(folder / "whole/weights.safetensors");
  // Without these the run goes on: on own kernels, without a graph of the step, or with memory that the driver keeps.
  const std::set<std::string> harmless{
      "cuMemFree",      "cuMemFreeHost", "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
      "cublasLtCreate", "cudnnCreate"};
  const std::set<std::string> resumed{"cuLaunchKernel", "cuMemcpyAsync", "cuStreamSynchronize"};
  for (const auto& [function, count] : counts) {
    const std::string run = "run_" + function, place = std::to_string(count >= 8 ? count * 5 / 8 : count);
    outcome = train(run, "GALLEY_STAND_IN_FAIL=" + function + ":" + place + "=700");
    EXPECT_EQ(outcome.code, harmless.contains(function) ? 0 : 7) << function << ": " << outcome.err;
    if (harmless.contains(function)) continue;
    EXPECT_NE(outcome.err.find("700"), std::string::npos) << function << ": " << outcome.err;
    EXPECT_TRUE(function != "cuLaunchKernel" || outcome.err.find(" at ") != std::string::npos) << outcome.err;
    if (!resumed.contains(function)) continue;
    outcome = train(run, "");
    EXPECT_EQ(outcome.code, 0) << function << ": " << outcome.err;
    EXPECT_EQ(tensor_bytes(folder / (run + "/weights.safetensors")), weights) << function;
  }
}

/// mpirun as root, with more ranks than cores.
constexpr const char* kMpirun =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; timeout -s KILL 120 mpirun --oversubscribe --bind-to none ";
// A rank computes on a GPU of its own; the stand-in of NCCL adds up gradients in the order of ranks, as the processor does.
TEST(Cuda, RanksTrainAsTheProcessor) {
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFolder folder;
  write_file(folder / "r.yaml", kRanksRecipe);
  const std::string in = "cd " + folder.path() + " && export " + kStandIn + " && ";
  ASSERT_EQ(shell(in + "galley-train r.yaml -q -o cpu").code, 0);
  const std::vector<double> expected = losses_of(folder / "cpu/metrics.jsonl");
  ASSERT_EQ(expected.size(), 5u);
  // Pairs divide parameters; with four ranks, two of them hold the same.
  const std::string pairs = "'{strategy: hybrid, mesh: {data: 2, shard: 2}}'";
  for (const auto& [sharding, count] : std::map<std::string, std::string>{{"ddp", "2"}, {"zero2", "2"}, {"fsdp", "8"}, {"hybrid", "4"}}) {
    const Outcome outcome =
        shell(in + "export GALLEY_STAND_IN_COUNTS=counts && " + kMpirun + "-np " + count +
              " galley-train r.yaml device=cuda sharding=" + (sharding == "hybrid" ? pairs : sharding) + " -q -o " + sharding);
    ASSERT_EQ(outcome.code, 0) << sharding << ": " << outcome.err;
    const std::vector<double> found = losses_of(folder / (sharding + "/metrics.jsonl"));
    ASSERT_EQ(found.size(), 5u);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << sharding << " step " << i + 1;
    std::map<std::string, int64_t> counts = counts_of(folder / "counts");
    EXPECT_EQ(counts["cuGraphLaunch"], 3) << sharding;  // the collectives are recorded with the step
    EXPECT_GT(counts[sharding == "ddp" ? "ncclAllReduce" : "ncclReduceScatter"], 0) << sharding;
    EXPECT_GT(counts["ncclCommRegister"], 0) << sharding;
    EXPECT_EQ(counts["ncclCommDeregister"], counts["ncclCommRegister"]) << sharding;
  }
}

// Logical replicas are computed one after the other, and added in one order. The libraries' stand-ins give other bits without
// deterministic.
TEST(Cuda, BitsDependOnNoRanks) {
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFolder folder;
  write_file(folder / "r.yaml", kRanksRecipe);
  const std::string in = "cd " + folder.path() + " && export " + kStandIn + " && ";
  const auto train = [&](const std::string& ranks, const std::string& settings) {
    const Outcome outcome =
        shell(in + "rm -rf run && " + kMpirun + "-np " + ranks + " galley-train r.yaml device=cuda " + settings + " -q -o run");
    EXPECT_EQ(outcome.code, 0) << ranks << " " << settings << ": " << outcome.err;
    return tensor_bytes(folder / "run/weights.safetensors");
  };
  const std::string expected = train("1", "deterministic=4");
  for (const auto& [ranks, sharding] : {std::pair<std::string, std::string>("2", "ddp"),
                                        {"3", "fsdp"},
                                        {"4", "'{strategy: hybrid, mesh: {data: 2, shard: 2}}'"},
                                        {"2", "'{strategy: pipeline, mesh: {pipe: 2}}'"}})
    EXPECT_EQ(train(ranks, "deterministic=4 sharding=" + sharding), expected) << ranks << " " << sharding;
  EXPECT_NE(train("2", "deterministic=false sharding=ddp"), expected);
  const Outcome refused = shell(in + "galley-train r.yaml device=cuda deterministic=4 train.sync_batch_norm=true -q -o refused");
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("one after the other"), std::string::npos) << refused.err;
}

// Pairs divide matrices; with four ranks, two pairs read different samples; with eight, pairs of pairs divide parameters too, and two such
// groups hold the same. Two ranks are stages of a pipeline.
TEST(Cuda, RanksDivideModels) {
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFolder folder;
  write_file(folder / "r.yaml",
             "recipe: 1\nmodel: {type: gpt, n_layer: 2, n_head: 2, n_embd: 16, block_size: 8, vocab_size: 32}\nlog: {every: 1 steps}\n"
             "data: {train: {source: {type: synthetic, samples: 16, values: integer, high: 32}}}\n"
             "train: {duration: 4 steps, batch: 4, clip: 1.0, optimizer: {type: adamw, lr: 0.01}}\n");
  const std::string in = "cd " + folder.path() + " && export " + kStandIn + " && ";
  ASSERT_EQ(shell(in + "galley-train r.yaml -q -o cpu").code, 0);
  const std::vector<double> expected = losses_of(folder / "cpu/metrics.jsonl");
  ASSERT_EQ(expected.size(), 4u);
  for (const auto& [ranks, sharding] : {std::pair<std::string, std::string>("2", "tensor"),
                                        {"4", "'{strategy: tensor, mesh: {data: 2, tensor: 2}, sequence_parallel: true}'"},
                                        {"8", "'{strategy: hybrid, mesh: {data: 2, shard: 2, tensor: 2}}'"},
                                        {"2", "'{strategy: pipeline, mesh: {pipe: 2}}' 'train.batch={global: 4, micro: 2}'"}}) {
    const Outcome outcome = shell(in + "export GALLEY_STAND_IN_COUNTS=counts && rm -rf run && " + kMpirun + "-np " + ranks +
                                  " galley-train r.yaml device=cuda sharding=" + sharding + " -q -o run");
    ASSERT_EQ(outcome.code, 0) << sharding << ": " << outcome.err;
    const std::vector<double> found = losses_of(folder / "run/metrics.jsonl");
    ASSERT_EQ(found.size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << sharding << " step " << i + 1;
    EXPECT_GE(counts_of(folder / "counts")["cuGraphLaunch"], 2) << sharding;  // collectives of both kinds are recorded with the step
  }
}

TEST(Cuda, AFailingRankEndsTheOthers) {
  if (shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFolder folder;
  write_file(folder / "r.yaml", kRanksRecipe);
  const std::string train = "galley-train r.yaml device=cuda sharding=ddp -q -o run";
  // -9: the process is killed in that call.
  Outcome outcome = shell("cd " + folder.path() + " && export " + kStandIn + " && " + kMpirun + "-np 1 " + train +
                          " : -np 1 env GALLEY_STAND_IN_FAIL=ncclAllReduce:4=-9 " + train);
  EXPECT_EQ(outcome.code, 8) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 was killed by signal 9 (Killed)"), std::string::npos) << outcome.err;
  outcome = shell("cd " + folder.path() + " && mkdir none && export GALLEY_CUDA_DRIVER=" + kDriver + " GALLEY_CUDA_LIBRARIES=none && " +
                  kMpirun + "-np 2 " + train);
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_NE(outcome.err.find("device cuda with 2 ranks: NCCL was not found (libnccl.so.2, searched none)"), std::string::npos)
      << outcome.err;
}

// One file of quantized weights for both devices.
TEST(Cuda, QuantizedModelsEvaluateAsOnTheProcessor) {
  const TemporaryFolder folder;
  const std::string train = "train: {duration: 2 steps, batch: 8, optimizer: {type: sgd, lr: 0.05}}\n";
  write_file(folder / "cnn.yaml",
             "recipe: 1\nmodel: {type: cnn, num_classes: 4, channels: [8, 8]}\ndata: {train: {source: {type: synthetic, samples: 32, "
             "values: image}}, val: {source: {type: synthetic, samples: 8, values: image}, batch: 4}}\n" +
                 train);
  const std::string tokens = "{source: {type: synthetic, samples: 8, values: integer, high: 64}";
  write_file(folder / "gpt.yaml",
             "recipe: 1\nmodel: {type: gpt, n_layer: 1, n_head: 2, n_embd: 32, block_size: 8, vocab_size: 64}\ndata: {train: " + tokens +
                 "}, val: " + tokens + ", batch: 2}}\n" + train);
  const std::string in = "cd " + folder.path() + " && " + kStandIn + " ";
  for (const std::string model : {"cnn", "gpt"}) ASSERT_EQ(shell(in + "galley-train " + model + ".yaml -q -o " + model).code, 0);
  struct Case {
    std::string model, words, file;
  };
  for (const auto& [model, words, file] :
       {Case{"cnn", "method=static", "static.safetensors"}, Case{"cnn", "method=static quantize.weights.dtype=f8_e4m3", "f8.safetensors"},
        Case{"gpt", "method=dynamic", "dynamic.safetensors"}, Case{"gpt", "method=weight_only", "weight_only.safetensors"}}) {
    ASSERT_EQ(
        shell(in + "galley-quantize " + model + ".yaml weights=" + model + "/weights.safetensors quantize." + words + " -q -o " + file)
            .code,
        0);
    std::map<std::string, double> losses;
    for (const std::string device : {"cpu", "cuda"}) {
      const Outcome outcome = shell(in + "galley-evaluate " + model + ".yaml weights=" + file + " device=" + device + " -q --format json");
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      losses[device] = nlohmann::json::parse(outcome.out)["metrics"]["loss"];
    }
    EXPECT_NEAR(losses["cuda"], losses["cpu"], 1e-4 * losses["cpu"]) << model << ", " << words;
  }
  // A program in integers takes images in numbers, one in float takes bytes; a comparison feeds both the same.
  const std::string cnn = " cnn.yaml weights=cnn/weights.safetensors device=cuda -q ";
  Outcome outcome = shell(in + "galley-quantize" + cnn + "quantize.method=static --evaluate -o evaluated.safetensors");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  outcome = shell(in + "galley-evaluate" + cnn + "--against static.safetensors");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(Cuda, MeasuresTheLimitsOfTheGpu) {
  const Outcome outcome = shell(kStandIn + " galley-benchmark machine device=cuda --format json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  for (const char* rate : {"copy_per_s", "to_device_per_s", "from_device_per_s"}) EXPECT_GT(json[rate], 0) << rate;
  ASSERT_EQ(json["products"].size(), 4u);
  EXPECT_EQ(json["products"][1]["kernel"], "cublaslt_tf32");
  for (const nlohmann::json& product : json["products"]) EXPECT_GT(product["per_s"], 0) << product;
}

TEST(Cuda, VersionListsDevices) {
  const Outcome outcome = shell(kStandIn + " galley-train --version -v");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("own kernels; oneDNN 3."), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("/libdnnl.so"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("device cuda: an NVIDIA GPU"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("driver of CUDA 13.0, " + kDriver), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("cuBLASLt 13.1.0, " + kFolder + "/libcublasLt.so.13"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(" and PTX of the last one"), std::string::npos) << outcome.out;
}
TEST(Cuda, VersionNamesTheFilesThatTheLoaderFinds) {
  const std::string loader = " LD_LIBRARY_PATH=" + kFolder + " galley-train --version -v";
  for (const std::string& driver : {kDriver, std::string("/nowhere/libcuda.so.1")}) {
    const Outcome outcome = shell("env -u GALLEY_CUDA_LIBRARIES GALLEY_CUDA_DRIVER=" + driver + loader);
    EXPECT_EQ(outcome.code, 0);
    for (const char* file : {"/libcublasLt.so.13", "/libcudnn.so.9", "/libnccl.so.2"})
      EXPECT_NE(outcome.out.find(", " + kFolder + file), std::string::npos) << driver << ": " << outcome.out;
  }
}

}  // namespace
}  // namespace galley::testing_cli
