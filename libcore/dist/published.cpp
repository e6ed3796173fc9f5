#include "libcore/dist/published.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/dist/rank_memory.h"
#include "libcore/dist/simulate.h"

namespace galley {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

TransformerShape gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t vocabulary, int64_t sequence) {
  return {.layers = layers, .hidden = hidden, .heads = heads, .vocabulary = vocabulary, .sequence = sequence};
}

/// The two runs of fully sharded training on 16 nodes of eight A100-40GB.
void add_posts(std::vector<PublishedRun>& runs) {
  PublishedRun post{.source = "FSDP post, 2022", .unit = "TFLOP/s"};
  post.job = {.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 128}};
  post.job.parameters = post.job.gradients = post.job.optimizer = StatePlace::kHost;
  post.cluster = *find_cluster("a100_40gb_p4d");
  post.name = "GPT-175B, 128 A100-40GB";
  post.published = 159;
  post.shape = gpt(96, 12288, 96, 50257, 512);
  post.run = {.micro_batch = 20};
  post.assumptions = "sequence 512, batch 20; host offload; full recomputation, counted; EFA share 0.25, fitted to this row";
  runs.push_back(post);
  post.name = "GPT-1T, 128 A100-40GB";
  post.published = 84;
  post.shape = gpt(128, 25600, 160, 50257, 2048);
  post.run.micro_batch = 4;
  post.cluster.allocator = Allocator::kSerialises;
  post.assumptions = "sequence 2048, batch 4; as above, and allocator: serialises (a static plan predicts 1.6 times the rate)";
  runs.push_back(post);
}

/// Narayanan et al. 2021: tensor parallelism inside nodes, pipelines over nodes.
PublishedRun megatron_run(const std::string& source, const std::string& name, double published) {
  PublishedRun run{.source = source, .name = name, .unit = "TFLOP/s", .published = published};
  run.cluster = *find_cluster("a100_80gb");
  run.run = {.passes = 1.4};
  run.run.bytes = {2, 4, 12};
  run.run.reduce_bytes = 2;
  run.job.strategy = ShardingStrategy::kPipeline;
  run.job.overlap_gradients = false;
  return run;
}

/// Sets the mesh of a Megatron run, and its micro-batches from the global batch.
void set_mesh(PublishedRun& run, int64_t tensor, int64_t pipe, int64_t devices, int64_t batch, int64_t chunks) {
  run.job.mesh = {.data = devices / (tensor * pipe), .tensor = tensor, .pipe = pipe};
  run.job.micro_batches = std::max<int64_t>(1, batch / run.job.mesh.data / run.run.micro_batch);
  run.job.chunks = chunks;
  run.job.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::kOneForwardOneBackward;
  run.run.tensor = tensor;
  run.job.strategy = pipe > 1 ? ShardingStrategy::kPipeline : ShardingStrategy::kDdp;
}

void add_megatron(std::vector<PublishedRun>& runs) {
  struct Row {
    const char* billions;
    int64_t heads, hidden, layers, tensor, pipe, devices, batch, micro, chunks;
    double published;
  };
  // Micro-batches and chunks are not in the table: chosen once, one sample above 100 billion parameters.
  constexpr Row kRows[] = {
      {"1.7B", 24, 2304, 24, 1, 1, 32, 512, 8, 1, 137},          {"3.6B", 32, 3072, 30, 2, 1, 64, 512, 8, 1, 138},
      {"7.5B", 32, 4096, 36, 4, 1, 128, 512, 4, 1, 142},         {"18.4B", 48, 6144, 40, 8, 1, 256, 1024, 4, 1, 135},
      {"39.1B", 64, 8192, 48, 8, 2, 512, 1536, 2, 2, 138},       {"76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140},
      {"145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 1, 2, 148},    {"310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 1, 3, 155},
      {"529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163}, {"1008B", 160, 25600, 128, 8, 64, 3072, 3072, 1, 2, 163}};
  for (const Row& row : kRows) {
    PublishedRun run = megatron_run("Narayanan 2021, table 1", cat(row.billions, ", ", row.devices, " A100-80GB"), row.published);
    run.shape = gpt(row.layers, row.hidden, row.heads, 51200, 2048);
    run.run.micro_batch = row.micro;
    set_mesh(run, row.tensor, row.pipe, row.devices, row.batch, row.chunks);
    run.assumptions =
        cat("t ", row.tensor, ", p ", row.pipe, "; micro-batch ", row.micro, " and ", row.chunks, " chunks assumed; fused kernels");
    runs.push_back(run);
  }
  struct Comparison {
    const char* name;
    int64_t layers, hidden, heads, devices, batch, pipe, micro;
    double published;
  };
  constexpr Comparison kPtd[] = {{"175B", 96, 12288, 96, 384, 1536, 12, 1, 153},    {"175B", 96, 12288, 96, 768, 1536, 12, 1, 149},
                                 {"175B", 96, 12288, 96, 1536, 1536, 12, 1, 141},   {"530B", 105, 20480, 128, 560, 2240, 35, 1, 171},
                                 {"530B", 105, 20480, 128, 1120, 2240, 35, 1, 167}, {"530B", 105, 20480, 128, 2240, 2240, 35, 1, 159}};
  for (const Comparison& row : kPtd) {
    PublishedRun run = megatron_run("Narayanan 2021, table 2, PTD-P", cat(row.name, ", ", row.devices, " A100-80GB"), row.published);
    run.shape = gpt(row.layers, row.hidden, row.heads, 51200, 2048);
    run.run.micro_batch = row.micro;
    set_mesh(run, 8, row.pipe, row.devices, row.batch, 1);
    run.assumptions = cat("t 8, p ", row.pipe, "; batch ", row.batch, ", micro-batch 1, 1f1b assumed; fused kernels");
    runs.push_back(run);
  }
  constexpr Comparison kZero[] = {{"175B", 96, 12288, 96, 384, 1536, 1, 4, 144},   {"175B", 96, 12288, 96, 768, 1536, 1, 2, 88},
                                  {"175B", 96, 12288, 96, 1536, 1536, 1, 1, 44},   {"530B", 105, 20480, 128, 640, 2560, 1, 4, 138},
                                  {"530B", 105, 20480, 128, 1120, 2240, 1, 2, 98}, {"530B", 105, 20480, 128, 2240, 2240, 1, 1, 48}};
  for (const Comparison& row : kZero) {
    PublishedRun run{
        .source = "Narayanan 2021, table 2, ZeRO-3", .name = cat(row.name, ", ", row.devices, " A100-80GB"), .unit = "TFLOP/s"};
    run.published = row.published;
    run.cluster = *find_cluster("a100_80gb");
    run.cluster.network_share = 0.08;
    run.shape = gpt(row.layers, row.hidden, row.heads, 51200, 2048);
    run.run = {.micro_batch = row.micro};
    run.job = {.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = row.devices}};
    run.assumptions = cat("micro-batch ", row.micro, "; network share 0.08, fitted to these six rows");
    runs.push_back(run);
  }
}

/// Korthikanti et al. 2022, table 5: full recomputation, then sequence parallelism with recomputation of the attention core.
void add_korthikanti(std::vector<PublishedRun>& runs) {
  struct Row {
    const char* name;
    int64_t layers, hidden, heads, pipe, devices, batch, micro, chunks;
    double full, selective;
  };
  constexpr Row kRows[] = {{"22B", 48, 6144, 64, 1, 8, 4, 4, 1, 1.42, 1.10},
                           {"175B", 96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75},
                           {"530B", 105, 20480, 128, 35, 280, 280, 1, 3, 49.05, 37.83},
                           {"1T", 128, 25600, 160, 64, 512, 512, 1, 1, 94.42, 71.49}};
  for (const Row& row : kRows) {
    for (const bool selective : {false, true}) {
      PublishedRun run =
          megatron_run("Korthikanti 2022, table 5", cat(row.name, ", ", row.devices, " A100-80GB, ", selective ? "selective" : "full"), 0);
      run.unit = "s";
      run.published = selective ? row.selective : row.full;
      run.shape = gpt(row.layers, row.hidden, row.heads, 51200, 2048);
      run.run.micro_batch = row.micro;
      run.run.sequence_parallel = selective;
      run.run.recompute = selective ? Recomputation::kAttentionCore : Recomputation::kFull;
      set_mesh(run, 8, row.pipe, row.devices, row.batch, row.chunks);
      run.assumptions = cat("t 8, p ", row.pipe, ", ", row.chunks, row.chunks > 1 ? " chunks" : " chunk", "; ",
                            selective ? "sequence parallel, attention core recomputed" : "full recomputation", "; fused kernels");
      runs.push_back(run);
    }
  }
}

void add_fsdp_paper(std::vector<PublishedRun>& runs) {
  for (const int64_t batch : {1, 2}) {
    PublishedRun run{.source = "FSDP paper, 2023", .name = cat("GPT-175B, 512 A100-80GB, batch ", batch), .unit = "TFLOP/s"};
    run.published = batch == 1 ? 173 : 186;
    run.cluster = *find_cluster("a100_80gb");
    run.cluster.network = 250e9;
    run.cluster.network_share = 0.5;
    run.shape = gpt(96, 12288, 96, 50000, 2048);
    run.run = {.micro_batch = batch};
    run.job = {.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 512}};
    run.assumptions = "RoCE 2 Tb/s, share 0.5 assumed; full recomputation, counted";
    runs.push_back(run);
  }
}

/// What all runs of torchtitan, December 2024, share: H100 of 96 GB at 500 W.
PublishedRun torchtitan_run() {
  PublishedRun base{.source = "torchtitan, 2024", .unit = "tokens/s"};
  ClusterOptions options;
  options.gpu = "h100_96gb_500w";
  options.network = ByteRate(400e9);
  base.cluster = make_cluster(options, "torchtitan");
  base.reserved = 1.10;
  base.copies = true;
  base.run.flash = true;
  base.run.bytes = {4, 4, 8};
  base.run.reduce_bytes = 4;
  base.run.logit_bytes = 14;  // bf16 logits; f32 logits, log probabilities and their gradient
  return base;
}

void add_llama_8b(std::vector<PublishedRun>& runs) {
  const PublishedRun base = torchtitan_run();
  const TransformerShape llama8{.layers = 32,
                                .hidden = 4096,
                                .heads = 32,
                                .kv_heads = 8,
                                .ffn = 14336,
                                .gated = true,
                                .tied = false,
                                .vocabulary = 128256,
                                .sequence = 8192};
  struct Row {
    int64_t devices;
    bool compiled;
    double rate, gib;
  };
  constexpr Row kRows[] = {{8, false, 5762, 82.4}, {8, true, 6667, 77.0}, {128, false, 5605, 67.0}, {128, true, 6514, 62.0}};
  for (const Row& row : kRows) {
    PublishedRun run = base;
    run.name = cat("Llama 3.1 8B, ", row.devices, " H100", row.compiled ? ", compiled" : "");
    run.published = row.rate;
    run.memory = row.gib * kGiB;
    run.shape = llama8;
    run.run.micro_batch = 2;
    run.run.recompute = Recomputation::kOperators;
    run.run.compiled = row.compiled;
    run.run.passes = row.compiled ? 1.4 : 3;  // plain kernels compute norms and rotations in f32
    run.job = {.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = row.devices}};
    run.assumptions = cat(
        "batch 2; every second product recomputed; 14 bytes per logit; a copy of a layer's gradient; 10 % of memory reserved beyond use",
        row.compiled ? "; results that nothing reads are not kept" : "");
    runs.push_back(run);
  }
}

void add_large_llamas(std::vector<PublishedRun>& runs) {
  PublishedRun large = torchtitan_run();
  large.run.dtype = DType::kI8;
  large.run.compiled = true;
  large.run.passes = 1.4;
  large.run.sequence_parallel = true;
  large.run.logit_bytes = 18;  // the vocabulary-parallel loss has one more f32 array
  large.name = "Llama 3.1 70B, float8, 256 H100: fsdp 32 x tensor 8";
  large.published = 829;
  large.memory = 71.9 * kGiB;
  large.shape = {.layers = 80,
                 .hidden = 8192,
                 .heads = 64,
                 .kv_heads = 8,
                 .ffn = 28672,
                 .gated = true,
                 .tied = false,
                 .vocabulary = 128256,
                 .sequence = 8192};
  large.run.micro_batch = 16;
  large.run.tensor = 8;
  large.job = {.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 32, .tensor = 8}};
  large.assumptions =
      "batch 16; full recomputation; the head in bf16; 18 bytes per logit; a copy of a layer's gradient; 10 % of memory reserved beyond "
      "use";
  runs.push_back(large);
  for (const bool interleaved : {false, true}) {
    PublishedRun run = large;
    run.name = cat("Llama 3.1 405B, float8, 512 H100: fsdp 8 x tensor 8 x pipe 8, ", interleaved ? "interleaved" : "1f1b");
    run.published = interleaved ? 128 : 100;
    run.memory = (interleaved ? 72.7 : 82.5) * kGiB;
    run.shape = {.layers = 126,
                 .hidden = 16384,
                 .heads = 128,
                 .kv_heads = 8,
                 .ffn = 53248,
                 .gated = true,
                 .tied = false,
                 .vocabulary = 128256,
                 .sequence = 8192};
    run.run.micro_batch = 4;
    run.job = {.strategy = ShardingStrategy::kFsdp,
               .mesh = {.shard = 8, .tensor = 8, .pipe = 8},
               .micro_batches = 8,
               .reshard_after_forward = false};
    run.job.chunks = interleaved ? 2 : 1;
    run.job.schedule = interleaved ? PipelineSchedule::kInterleaved : PipelineSchedule::kOneForwardOneBackward;
    run.assumptions = "batch 32 in 8 micro-batches; a stage's units stay gathered, with whole f32 gradients; the rest as for 70B";
    runs.push_back(run);
  }
}

/// The gradient of the largest layer in the dtype of sums, and outputs of all micro-batches in flight.
double copied_bytes(const PublishedRun& run, const PlanModel& model) {
  if (!run.copies) return 0;
  const double gradient = run.shape.layer_parameters() / static_cast<double>(run.run.tensor) * static_cast<double>(run.run.reduce_bytes);
  if (run.job.mesh.pipe == 1) return gradient;
  const double held = held_micro_batches(run.job.schedule, 0, run.job.mesh.pipe, run.job.micro_batches, run.job.chunks);
  return gradient + held * model.forward.front().output_bytes;
}

}  // namespace

const std::vector<PublishedRun>& published_runs() {
  static const std::vector<PublishedRun> all = [] {
    std::vector<PublishedRun> runs;
    add_posts(runs);
    add_megatron(runs);
    add_korthikanti(runs);
    add_fsdp_paper(runs);
    add_llama_8b(runs);
    add_large_llamas(runs);
    return runs;
  }();
  return all;
}

PublishedRow predict(const PublishedRun& run) {
  const PlanModel model = transformer_model(run.shape, run.run);
  const Simulation simulation = simulate(model, run.job, run.cluster);
  PublishedRow row{.run = &run};
  row.step_s = simulation.step_s;
  const auto devices = static_cast<double>(run.job.mesh.ranks());
  const Utilization use =
      utilization(simulation.model_flops, simulation.flops, simulation.step_s, run.job.mesh.ranks(), run.cluster.peak_16);
  row.mfu = use.mfu;
  row.hfu = use.hfu;
  if (run.unit == "s") {
    row.predicted = simulation.step_s;
  } else if (run.unit == "tokens/s") {
    const double readers = devices / static_cast<double>(run.job.mesh.tensor * run.job.mesh.pipe);
    row.predicted = model.tokens * static_cast<double>(run.job.micro_batches) * readers / simulation.step_s / devices;
  } else {
    row.predicted = simulation.flops / simulation.step_s / devices * 1e-12;
  }
  const std::vector<RankMemory> stages = rank_memory(model, run.job, run.cluster, simulation.cuts);
  row.predicted_memory = (peak_bytes(stages) + copied_bytes(run, model)) * run.reserved;
  for (const RankMemory& stage : stages) row.kept_memory = std::max(row.kept_memory, stage.kept_bytes);
  row.fits = row.predicted_memory <= run.cluster.memory;
  return row;
}

}  // namespace galley
