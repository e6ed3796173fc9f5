#include "tools/quantize/quantize.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/watched_metric.h"
#include "libcore/quantize/qat.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/workload.h"
#include "libcore/weights/calibration_file.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"
#include "tools/common/output_file.h"
#include "tools/common/signals.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

constexpr int kTimedRounds = 15;

/// What the conversion of a QAT run needs is in its RUN folder.
bool wants_calibration(const Recipe& recipe) {
  return recipe.quantize.method == QuantMethod::kStatic || recipe.quantize.method == QuantMethod::kQat;
}

/// Ranges that a quantization-aware training stored next to the weights.
void find_trained_statistics(Recipe& recipe) {
  if (recipe.quantize.method != QuantMethod::kQat || recipe.quantize.calibration || recipe.weights.load.size() != 1) return;
  const std::string weights = recipe.weights.load.at<WeightSource>(0).path();
  const std::string path = trained_statistics(is_folder(weights) ? weights + "/weights.safetensors" : weights);
  if (file_exists(path)) recipe.quantize.calibration = path;
}

/// Evaluates the model with the integers of `plan` (nullptr: in float). `fill` sets the values of the parameters.
MetricValues metrics_of(Session& session, std::shared_ptr<const QuantizationPlan> plan, int64_t batch,
                        const std::function<void(ParameterStore&)>& fill) {
  Engine engine(session.backend());
  Evaluator evaluator(session, engine, std::move(plan), session.recipe().evaluate.data, batch);
  engine.declare(evaluator.program());
  fill(engine.store());
  evaluator.bind();
  return evaluator.run();
}

/// "1,64"; throws (kUsage) for anything but counts.
std::vector<int64_t> batch_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int64_t size = 0;
    const auto read = std::from_chars(text.data() + at, text.data() + end, size);
    if (read.ec != std::errc() || read.ptr != text.data() + end || size < 1)
      fail(ErrorCode::kUsage, "--measure=", text, ": expected batch sizes, e.g. --measure=1,64");
    sizes.push_back(size);
    at = end + 1;
  }
  return sizes;
}

/// Tokens per second of one text, after a prompt: the median of several steps.
double tokens_per_s(const Session& session) {
  constexpr int64_t kPrompt = 128;
  Workload work(session, WorkKind::kDecode, 1, std::min(kPrompt, session.info().input_shape.front() - 1));
  std::vector<double> seconds;
  for (int i = 0; i < kTimedRounds; ++i) {
    const auto began = std::chrono::steady_clock::now();
    work.run();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTimedRounds / 2, seconds.end());
  return 1 / seconds[kTimedRounds / 2];
}

/// Reorders of activations that move bytes, in the program that runs.
int64_t activation_reorders(const Session& session, const std::shared_ptr<const QuantizationPlan>& plan) {
  const std::shared_ptr<const Program> program = compiled_forward(session, 1, plan);
  int64_t count = 0;
  for (const LayoutReport::Reorder& reorder : program->report().layout.reorders) count += !reorder.free && !reorder.weight;
  return count;
}

}  // namespace

void QuantizeTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command
      .add_option("--calibration", calibration_,
                  "statistics of galley-calibrate (the key quantize.calibration); without, they are collected on data.calibration")
      .type_name("FILE")
      .group("Recipe")
      .take_last();
  command.add_flag("--evaluate", evaluate_, "measure the float and the quantized model on evaluate.data").group("Report");
  command
      .add_flag(
          "--sensitivity", sensitivity_,
          "quantize each layer alone, and all but it; write no weights; with --evaluate by the metric, else by the SQNR of the outputs")
      .group("Report");
  command.add_option("--keep-float", keep_float_, "with --sensitivity -o FILE: number of layers that the fragment keeps in float")
      .in_range(1, 100000)
      .group("Report")
      .take_last();
  command
      .add_option(
          "--journal", journal_,
          "file of the finished trials of --sensitivity and quantize.goal (JSON lines), which are not repeated; default: next to -o")
      .type_name("FILE")
      .group("Report")
      .take_last();
  command
      .add_flag(
          "--measure{1}", measure_,
          "time each layer in float and quantized on a random batch of one sample, or of =N; =1,64: the whole model in batches of 64 too")
      .group("Report");
}

int QuantizeTool::run() {
  if (!calibration_.empty()) overrides_.push_back("quantize.calibration=" + calibration_);
  return RecipeTool::run();
}

int QuantizeTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  require_weights(loaded);
  make_paths_absolute(recipe);
  find_trained_statistics(recipe);
  if (!dry_run_) {
    if (!sensitivity_) check_output_file(output_, "quantization writes a file", "model.int8.safetensors");
    if (sensitivity_ && !output_.empty()) check_output_file(output_, "the fragment is a file", "keep.yaml");
  }
  const std::vector<int64_t> batches = batch_sizes(measure_);
  if (recipe.quantize.goal || evaluate_) split_of(recipe, recipe.evaluate.data);

  Session session(recipe);
  // Before the calibration, which takes time.
  if (recipe.quantize.goal)
    require_metric(metric_names(session.task(), recipe.metrics), recipe.quantize.goal->metric, "quantize.goal.metric");
  Statistics source = find_statistics(session);
  const std::vector<int64_t> shape = source.calibrator    ? source.calibrator->input()
                                     : source.calibration ? source.calibration->input
                                                          : std::vector<int64_t>();
  // Some models' graphs depend on the size of their images. (A file of another model is refused below, as such.)
  const std::vector<int64_t>& usual = session.info().input_shape;
  if (!shape.empty() && (usual.empty() || (shape.size() == usual.size() && shape[0] == usual[0]))) session.set_input_shape(shape);
  session.require_inputs(source.calibrator    ? source.calibrator->optional()
                         : source.calibration ? source.calibration->inputs
                                              : std::vector<std::string>());
  ModelQuantizer quantizer(session);
  const QuantizeConfig config = resolve_quantize(recipe.quantize, quantizer.graph());
  const std::optional<Calibration> calibration = collect(session, quantizer, source);
  const Calibration* statistics = calibration ? &*calibration : nullptr;
  if (dry_run_) return print_plan(session, quantizer, config, statistics);
  if (sensitivity_) return sensitivity(session, quantizer, config, statistics);

  QuantizationResult result;
  result.calibrated_samples = calibration ? calibration->samples() : 0;
  result.bytes_float = quantizer.float_bytes();
  if (recipe.quantize.goal) {
    search(session, quantizer, config, statistics, result);
  } else {
    result.model = quantizer.quantize(config, statistics);
    if (evaluate_) evaluate(session, quantizer, result);
  }
  log(LogLevel::kInfo, result.model.plan->str());
  for (int64_t batch : batches) {
    check_stop();
    result.times.emplace_back(batch, time_layers(session, quantizer, result.model, batch, kTimedRounds));
  }
  result.reorders = activation_reorders(session, result.model.plan);
  check_stop();
  write(session, result);
  if (evaluate_) measure_generation(session, result);
  return report(recipe, result);
}

void QuantizeTool::measure_generation(const Session& session, QuantizationResult& result) const {
  if (!session.info().cache || session.info().output != ModelOutput::kTokens) return;
  Recipe written = session.recipe();
  auto weights = std::make_unique<WeightSource>();
  weights->from = output_;
  written.weights.load.items.clear();
  written.weights.load.items.push_back(std::move(weights));
  resolve_weights(written, weight_registry());
  make_paths_absolute(written);
  const Session quantized(written);
  // One after the other, so that the memory holds one of them.
  result.float_tokens_per_s = tokens_per_s(Session(session.recipe()));
  result.quantized_tokens_per_s = tokens_per_s(quantized);
}

QuantizeTool::Statistics QuantizeTool::find_statistics(Session& session) const {
  const Recipe& recipe = session.recipe();
  Statistics found;
  if (!wants_calibration(recipe)) return found;
  if (recipe.quantize.calibration) {
    found.calibration = read_calibration(*recipe.quantize.calibration);
    return found;
  }
  if (recipe.quantize.method == QuantMethod::kQat) {
    throw Error(ErrorCode::kRecipe, "quantize.method is qat, whose ranges come from its training, and quantize.calibration is null")
        .key("quantize.calibration")
        .suggest("--calibration RUN/stats.calib");
  }
  found.calibrator = std::make_unique<Calibrator>(session);
  return found;
}

std::optional<Calibration> QuantizeTool::collect(const Session& session, const ModelQuantizer& quantizer, Statistics& source) {
  const Recipe& recipe = session.recipe();
  if (source.calibration) quantizer.adopt(*source.calibration, *recipe.quantize.calibration);
  if (!source.calibrator) return std::move(source.calibration);
  Calibrator& calibrator = *source.calibrator;
  log(LogLevel::kInfo, cat("calibrates on ", counted(calibrator.samples(), "sample"), " of data.", recipe.data.calibration.from,
                           "; galley-calibrate keeps the statistics in a file"));
  if (dry_run_) return std::nullopt;
  session.initialize(calibrator.parameters(), calibrator.store());
  Calibration calibration;
  Progress progress(common.progress);
  calibrator.run(calibration, [&](int64_t done) {
    progress.update(static_cast<double>(done) / static_cast<double>(calibrator.samples()),
                    cat("calibration ", done, "/", calibrator.samples()),
                    nlohmann::ordered_json{{"progress", "calibrate"}, {"samples", done}, {"total", calibrator.samples()}}.dump());
    check_stop();
    return true;
  });
  progress.clear();
  source.calibrator.reset();  // its program's memory
  quantizer.adopt(calibration, "the calibration");
  return calibration;
}

void QuantizeTool::evaluate(Session& session, ModelQuantizer& quantizer, QuantizationResult& result) const {
  const Recipe& recipe = session.recipe();
  const std::string& split = recipe.evaluate.data;
  const int64_t micro = recipe.train.batch ? recipe.train.batch->micro.value_or(recipe.train.batch->global) : 32;
  const int64_t batch = recipe.data.find(split)->batch.value_or(micro);
  result.real = metrics_of(session, nullptr, batch, [&](ParameterStore& store) {
    for (const std::string& name : store.names()) store.set(name, quantizer.store().get(name));
  });
  result.quantized = metrics_of(session, result.model.plan, batch, [&](ParameterStore& store) { result.model.put(store); });
}

void QuantizeTool::write(const Session& session, QuantizationResult& result) const {
  const Recipe& recipe = session.recipe();
  Metadata metadata;
  nlohmann::ordered_json parents = nlohmann::ordered_json::array();
  const auto add_parents = [&](const std::string& path) {
    for (const WeightsParent& parent : weights_parents(path)) parents.push_back({{"file", parent.file}, {"digest", parent.digest}});
  };
  for (size_t i = 0; i < recipe.weights.load.size(); ++i) {
    const std::string path = recipe.weights.load.at<WeightSource>(i).path();
    const Metadata carried = read_weights_metadata(path);
    for (const char* key : {"galley.input", "galley.categories", "galley.pipeline", "galley.tokenizer"}) {
      if (const auto found = carried.find(key); found != carried.end()) metadata.insert_or_assign(key, found->second);
    }
    add_parents(path);
  }
  if (recipe.quantize.calibration && wants_calibration(recipe)) add_parents(*recipe.quantize.calibration);
  metadata["galley.parents"] = parents.dump();
  metadata["galley.recipe"] = dump_recipe(recipe, DumpKind::kFull);
  if (result.calibrated_samples > 0 || !metadata.contains("galley.input"))
    metadata["galley.input"] = nlohmann::json(session.info().input_shape).dump();
  if (recipe.data.val && !recipe.data.val->pipeline_from_weights())
    metadata["galley.pipeline"] = pipeline_text(session.pipeline_of("val"), *recipe.registry);
  metadata[std::string(kQuantizationKey)] = plan_json(*result.model.plan);
  if (!result.real.empty()) metadata[std::string(kMetricsKey)] = metrics_json(result.real, result.quantized).dump();
  std::vector<TensorSource> tensors;
  for (const QuantizedTensor& tensor : result.model.conversion.tensors)
    tensors.emplace_back(tensor.name, result.model.tensors.at(tensor.name));
  result.bytes = write_safetensors(output_, tensors, metadata).bytes;
  result.file = output_;
}

int QuantizeTool::print_plan(const Session& session, const ModelQuantizer& quantizer, const QuantizeConfig& config,
                             const Calibration* calibration) const {
  const Recipe& recipe = session.recipe();
  const std::vector<QuantizableLayer> layers = quantizable_layers(quantizer.graph());
  std::string text = cat(method_name(config.method), ": ", counted(std::ssize(layers), "layer"), " with weights, ",
                         human_bytes(static_cast<double>(quantizer.float_bytes())), " in float");
  nlohmann::ordered_json json{{"fits", true}, {"layers", layers.size()}, {"bytes_float", quantizer.float_bytes()}};
  if (calibration != nullptr || !wants_calibration(recipe)) {
    const QuantizedModel model = quantizer.quantize(config, calibration);
    text = cat(model.plan->str(), ", ", human_bytes(static_cast<double>(model.bytes())), " of ",
               human_bytes(static_cast<double>(quantizer.float_bytes())));
    json["bytes"] = model.bytes();
    json["quantized_layers"] = model.plan->quantized_layers();
  }
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));
  print(common.format == Format::kJson ? json.dump() + "\n" : text + "\n");
  return kExitDone;
}

}  // namespace galley::tools
