// The layout doctor: galley-convert-layout --check RECIPE.
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/profiler/timer.h"
#include "libcore/train/workload.h"
#include "tools/convert-layout/convert_layout.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMarginOfConvolutions = 1.1;  // a convolution counts as better left contiguous where it is faster by that factor

struct Form {
  const char* name;
  MemoryFormatChoice choice;
};
constexpr Form kForms[] = {{"contiguous", MemoryFormatChoice::kContiguous}, {"channels_last", MemoryFormatChoice::kChannelsLast}, {"auto", MemoryFormatChoice::kAuto}};

std::string sizes_text(const Shape& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

/// A model in one format, and its time as a whole.
struct Patient {
  std::unique_ptr<Recipe> recipe;
  std::unique_ptr<Session> session;
  std::unique_ptr<Workload> work;
  Summary time;
};

bool is_image(const TensorType& type) { return type.shape.rank() == 4 || type.shape.rank() == 5; }

/// Collects the time of each node by its index.
class NodeClock : public NodeObserver {
 public:
  void before(const Program&, const Step&) override { began_ = std::chrono::steady_clock::now(); }
  void after(const Program&, const Step& step, std::span<void* const>) override {
    seconds_[step.node] += std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  double seconds(int node) const {
    const auto found = seconds_.find(node);
    return found == seconds_.end() ? 0 : found->second;
  }

 private:
  std::map<int, double> seconds_;
  std::chrono::steady_clock::time_point began_;
};

/// An operator that makes an activation change its format.
struct Loss {
  std::string module, op, from, to;
  Shape shape, from_strides, to_strides;
  int64_t bytes = 0;
  double us = 0;
};

/// Reorders of activations in a program, with the operator that asked for each.
std::vector<Loss> losses_of(const Program& program, const NodeClock& clock, int runs) {
  const Graph& graph = program.graph();
  const std::vector<std::vector<int>> users = graph.users();
  std::vector<Loss> losses;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!node.is("reorder") || is_view(graph, node)) continue;
    const ValueInfo& from = graph.value(node.inputs[0]);
    if (from.role != ValueRole::kActivation && from.role != ValueRole::kInput) continue;
    const TensorType& to = graph.type(node.outputs[0]);
    if (!is_image(from.type) || from.type.format.is_blocked() || to.format.is_blocked()) continue;
    const std::vector<int>& readers = users[static_cast<size_t>(node.outputs[0])];
    const Node* reader = readers.empty() ? nullptr : &graph.nodes()[static_cast<size_t>(readers.front())];
    losses.push_back({.module = reader != nullptr ? reader->path : node.path,
                      .op = reader != nullptr ? std::string(reader->op->name) : "output",
                      .from = from.type.format.str(),
                      .to = to.format.str(),
                      .shape = from.type.shape,
                      .from_strides = from.type.format.strides(from.type.shape),
                      .to_strides = to.format.strides(to.shape),
                      .bytes = from.type.bytes(),
                      .us = 1e6 * clock.seconds(static_cast<int>(n)) / runs});
  }
  return losses;
}

}  // namespace

int ConvertLayoutTool::run_recipe(LoadedRecipe& loaded) {
  make_paths_absolute(loaded.recipe);
  const BenchmarkSection& section = loaded.recipe.benchmark;
  const int64_t batch = parse_count(section.batch.front());
  std::vector<std::pair<std::string, WorkKind>> kinds{{"forward", WorkKind::kForward}};
  if (loaded.recipe.train.optimizer.algorithm) kinds.emplace_back("train_step", WorkKind::kTrainStep);

  Json json{{"formats", Json::array()}, {"losses", Json::array()}, {"convolutions", Json::array()}};
  Table costs{{"what", "memory_format", "median_ms", "+-%", "against contiguous", "reorders", "reorder_us"}, {}};
  Table lost{{"what", "module", "operator", "shape", "from", "to", "strides", "bytes", "us"}, {}};
  Table better{{"what", "module", "operator", "contiguous_us", "channels_last_us"}, {}};
  std::string best;
  int interior = 0;
  const MachineWatch watch;
  for (const auto& [what, kind] : kinds) {
    std::vector<std::unique_ptr<Patient>> patients;
    std::vector<std::function<void()>> works;
    for (const Form& form : kForms) {
      auto patient = std::make_unique<Patient>();
      patient->recipe = std::make_unique<Recipe>(loaded.recipe);
      patient->recipe->memory_format = form.choice;
      patient->session = std::make_unique<Session>(*patient->recipe);
      patient->work = std::make_unique<Workload>(*patient->session, kind, batch);
      works.push_back([work = patient->work.get()] { work->run(); });
      patients.push_back(std::move(patient));
    }
    if (dry_run_) continue;
    const std::vector<Series> series = time_interleaved(works, {.relative_error = section.stop.ci.percent / 100, .min_runs = section.stop.min_runs, .max_time_s = section.stop.max_time.value});
    // Node by node apart from the timing of the whole: clocks cost time.
    constexpr int kRuns = 3;
    std::vector<NodeClock> clocks(patients.size());
    for (int run = 0; run < kRuns; ++run) {
      for (size_t i = 0; i < patients.size(); ++i) patients[i]->work->run(&clocks[i]);
    }
    for (size_t i = 0; i < patients.size(); ++i) patients[i]->time = summarize(series[i].seconds);
    const double plain = patients[0]->time.median;
    size_t fastest = 0;
    for (size_t i = 0; i < patients.size(); ++i) {
      const std::vector<Loss> losses = losses_of(patients[i]->work->program(), clocks[i], kRuns);
      double us = 0;
      for (const Loss& loss : losses) us += loss.us;
      const double t = patients[i]->time.median;
      if (t < patients[fastest]->time.median) fastest = i;
      char speed[32];
      std::snprintf(speed, sizeof speed, "%.2fx", plain / t);
      char spread[32];
      std::snprintf(spread, sizeof spread, "%.1f", 100 * patients[i]->time.relative_error());
      costs.rows.push_back({what, kForms[i].name, human_number(t * 1e3), spread, speed, cat(losses.size()), human_number(us)});
      json["formats"].push_back({{"what", what}, {"memory_format", kForms[i].name}, {"median_ms", t * 1e3}, {"runs", patients[i]->time.count}, {"speed", plain / t}, {"reorders", losses.size()}, {"reorder_us", us}});
      if (kForms[i].choice == MemoryFormatChoice::kContiguous) continue;
      for (const Loss& loss : losses) {
        interior += kForms[i].choice == MemoryFormatChoice::kAuto;
        json["losses"].push_back({{"what", what}, {"memory_format", kForms[i].name}, {"module", loss.module}, {"type", loss.op}, {"shape", std::vector<int64_t>(loss.shape.begin(), loss.shape.end())}, {"from", loss.from}, {"to", loss.to}, {"from_strides", std::vector<int64_t>(loss.from_strides.begin(), loss.from_strides.end())}, {"to_strides", std::vector<int64_t>(loss.to_strides.begin(), loss.to_strides.end())}, {"bytes", loss.bytes}, {"us", loss.us}});
        if (kForms[i].choice != MemoryFormatChoice::kAuto) continue;
        lost.rows.push_back({what, loss.module, loss.op, sizes_text(loss.shape), loss.from, loss.to, sizes_text(loss.from_strides), cat(loss.bytes), human_number(loss.us)});
      }
    }
    best = kind == kinds.back().second ? kForms[fastest].name : best;
    // Convolutions one by one: the same module and operator in both programs.
    std::map<std::pair<std::string, std::string>, double> contiguous;
    const auto each_convolution = [&](size_t i, auto visit) {
      const Graph& graph = patients[i]->work->program().graph();
      for (size_t n = 0; n < graph.nodes().size(); ++n) {
        const Node& node = graph.nodes()[n];
        if (node.op->name.starts_with("conv2d")) visit(std::pair(node.path, std::string(node.op->name)), 1e6 * clocks[i].seconds(static_cast<int>(n)) / kRuns);
      }
    };
    each_convolution(0, [&](const auto& key, double us) { contiguous[key] = us; });
    each_convolution(1, [&](const auto& key, double us) {
      const auto found = contiguous.find(key);
      if (found == contiguous.end() || found->second * kMarginOfConvolutions >= us) return;
      better.rows.push_back({what, key.first, key.second, human_number(found->second), human_number(us)});
      json["convolutions"].push_back({{"what", what}, {"module", key.first}, {"type", key.second}, {"contiguous_us", found->second}, {"channels_last_us", us}});
    });
  }
  if (dry_run_) {
    print("the recipe's model compiles in every format\n");
    return kExitDone;
  }
  json["best"] = best;
  json["remarks"] = watch.remarks(compute_threads());
  json["provenance"] = provenance_json(provenance(loaded.recipe, dump_recipe(loaded.recipe, DumpKind::kFull)));
  for (const std::string& remark : watch.remarks(compute_threads())) log(LogLevel::kWarning, remark);
  if (!apply_.empty()) write_file(apply_, cat("# galley-convert-layout --check ", recipe_, ": the fastest format on this machine\nmemory_format: ", best, "\n"));
  for (const auto& [format, path] : common.save) write_file(path, format == Format::kJson ? json.dump() + "\n" : render(costs, format));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
    return kExitDone;
  }
  std::string text = render(costs, common.format);
  text += interior == 0 ? "channels_last is kept from input to output: no activation is reordered\n" : "\nwhere channels_last is lost (auto):\n" + render(lost, common.format);
  if (!better.rows.empty()) text += "\nconvolutions that are faster contiguous:\n" + render(better, common.format);
  text += cat("fastest: memory_format: ", best, "\n");
  print(text);
  return kExitDone;
}

}  // namespace galley::tools
