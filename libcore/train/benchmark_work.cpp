#include "libcore/train/benchmark_work.h"

#include <algorithm>

#include "libcore/base/cores.h"
#include "libcore/base/resident_memory.h"
#include "libcore/data/loader.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/session.h"
#include "libcore/recipe/choice_names.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/workload.h"

namespace galley {
namespace {

/// A recipe and the objects that its runs use.
struct Parts {
  explicit Parts(std::unique_ptr<LoadedRecipe> given) : loaded(std::move(given)), session(loaded->recipe) {}
  std::unique_ptr<LoadedRecipe> loaded;
  Session session;
  std::unique_ptr<DataLoader> loader;  // for what=data
  std::unique_ptr<Workload> work;      // for what=forward, train_step, decode, prefill
  std::unique_ptr<Engine> engine;      // for what=load
  std::vector<ParameterSpec> parameters;
};

/// Prepares the work `data`: each run loads a batch of data.train.
void make_data(Parts& parts, int64_t batch, BenchmarkWork& work) {
  parts.loader = parts.session.loader("train", batch, 0, 0, 0, {.bytes = true});
  for (const auto& [field, tensor] : parts.loader->layout()) work.row.bytes += static_cast<double>(tensor.bytes());
  work.row.samples = static_cast<double>(batch);
  work.run = [loader = parts.loader.get()] { loader->next(); };
}

/// Prepares the work `load`: each run reads the recipe's weights into device memory, in the formats that the kernels of a forward pass
/// need.
void make_load(Parts& parts, BenchmarkWork& work) {
  const Recipe& recipe = parts.loaded->recipe;
  if (recipe.weights.load.empty())
    throw Error(ErrorCode::kRecipe, "what=load reads weights, and none were named").key("weights").suggest("weights=FILE");
  const BatchTypes types = parts.session.usual_types(1, false);
  InferenceModel model = inference_model(parts.session, types, loaded_plan(recipe));
  parts.parameters = std::move(model.parameters);
  for (const ParameterSpec& spec : parts.parameters) work.row.bytes += static_cast<double>(spec.type.bytes());
  parts.engine = std::make_unique<Engine>(parts.session.backend());
  parts.engine->declare(*compile_inference(*parts.engine, types, model, "loading of weights"));
  work.run = [used = &parts] { used->session.initialize(used->parameters, used->engine->store()); };
}

WorkKind kind_of(const std::string& what) {
  return what == "forward"   ? WorkKind::kForward
         : what == "decode"  ? WorkKind::kDecode
         : what == "prefill" ? WorkKind::kPrefill
                             : WorkKind::kTrainStep;
}

void make_model(Parts& parts, WorkKind kind, int64_t batch, BenchmarkWork& work) {
  parts.work = std::make_unique<Workload>(parts.session, kind, batch, parts.loaded->recipe.benchmark.tokens);
  work.row.flops = parts.work->flops();
  work.row.executed = parts.work->executed();
  work.row.bytes = parts.work->bytes();
  work.row.planned_bytes = parts.work->planned_bytes();
  work.row.samples = static_cast<double>(batch);
  work.run = [used = parts.work.get()] { used->run(); };
}

}  // namespace

BenchmarkRow benchmark_row(const Recipe& recipe, const std::string& name, const BenchmarkCell& cell) {
  BenchmarkRow row;
  row.recipe = name;
  row.what = cell.what;
  row.batch = cell.what == "load" ? 0 : cell.batch;
  row.threads = recipe.threads.value_or(available_cores());
  row.set = cell.set;
  row.precision = name_of(recipe.precision.compute);
  row.memory_format = name_of(recipe.memory_format);
  row.device = recipe.device.str();
  return row;
}

BenchmarkWork benchmark_work(std::unique_ptr<LoadedRecipe> loaded, const std::string& name, const BenchmarkCell& cell) {
  static const int64_t base = resident_bytes();  // of the process before the first cell
  BenchmarkWork work;
  BenchmarkRow& row = work.row;
  row = benchmark_row(loaded->recipe, name, cell);
  const int64_t before = resident_bytes();
  reset_peak_resident_bytes();
  const auto parts = std::make_shared<Parts>(std::move(loaded));
  Device& device = parts->session.backend()->device();
  device.memory().reset_peak();
  if (cell.what != "train_step" && cell.what != "data") {
    if (const auto plan = loaded_plan(parts->loaded->recipe)) row.precision = plan->dtype();
  }
  if (cell.what == "data") {
    make_data(*parts, cell.batch, work);
  } else if (cell.what == "load") {
    make_load(*parts, work);
  } else {
    make_model(*parts, kind_of(cell.what), cell.batch, work);
  }
  work.parts = parts;
  work.run();
  work.run();
  const int64_t own = device.memory().peak_bytes();
  row.peak_bytes = own > 0 ? own : base + std::max<int64_t>(0, peak_resident_bytes() - before);
  return work;
}

}  // namespace galley
