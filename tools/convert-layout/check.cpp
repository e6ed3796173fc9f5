// The layout doctor: galley-convert-layout --check RECIPE.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/passes/format_losses.h"
#include "libcore/profiler/profile.h"
#include "libcore/profiler/timer.h"
#include "libcore/train/workload.h"
#include "tools/common/signals.h"
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

/// A model in one format.
struct Patient {
  std::unique_ptr<Recipe> recipe;
  std::unique_ptr<Session> session;
  std::unique_ptr<Workload> work;          // none where only the program is looked at
  std::shared_ptr<const Program> compiled;
  Summary time;                            // of the whole
  const Program& program() const { return work ? work->program() : *compiled; }
};

bool is_image(const TensorType& type) { return type.shape.rank() == 4 || type.shape.rank() == 5; }

/// The least time of each node of one program over several runs: what other programs on the machine add is not counted.
class NodeClock : public NodeObserver {
 public:
  explicit NodeClock(const Program& program) : program_(&program) {}
  void before(const Program&, const Step&, Stream& stream) override { marks_.begin(stream); }
  void after(const Program&, const Step& step, const NodeOutputs& outputs) override {
    marks_.end(outputs.stream());
    marked_.push_back(step.node);
  }
  void after_run(const Program& program) override {
    for (size_t i = 0; i < marked_.size() && &program == program_; ++i) {  // else the part of an update that only adds gradients
      const auto [begin, end] = marks_.times(i);
      const double seconds = 1e-9 * static_cast<double>(end - begin);
      const auto [found, is_new] = seconds_.try_emplace(marked_[i], seconds);
      if (!is_new) found->second = std::min(found->second, seconds);
    }
    marks_.clear();
    marked_.clear();
  }
  double us(int node) const {
    const auto found = seconds_.find(node);
    return found == seconds_.end() ? 0 : 1e6 * found->second;
  }

 private:
  const Program* program_;
  std::map<int, double> seconds_;
  NodeMarks marks_;          // of the run
  std::vector<int> marked_;  // their nodes
};

/// A reorder of an activation, in words.
struct Loss {
  std::string module, op, from, to, reason;
  Shape shape, from_strides, to_strides;
  int64_t bytes = 0;
  double us = 0;
  bool interior = false;
};

std::vector<Loss> losses_of(const Program& program, const NodeClock& clock) {
  const Graph& graph = program.graph();
  std::vector<Loss> losses;
  for (const FormatLoss& found : format_losses(graph)) {
    const Node& node = graph.nodes()[static_cast<size_t>(found.node)];
    const Node* reader = found.reader < 0 ? nullptr : &graph.nodes()[static_cast<size_t>(found.reader)];
    const TensorType &from = graph.type(node.inputs[0]), &to = graph.type(node.outputs[0]);
    losses.push_back({.module = reader != nullptr ? reader->path : node.path,
                      .op = reader != nullptr ? std::string(reader->op->name) : "output",
                      .from = from.format.str(),
                      .to = to.format.str(),
                      .reason = found.reason,
                      .shape = from.shape,
                      .from_strides = from.format.strides(from.shape),
                      .to_strides = to.format.strides(to.shape),
                      .bytes = from.bytes(),
                      .us = clock.us(found.node),
                      .interior = found.interior});
  }
  return losses;
}

std::vector<int64_t> list_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

Json loss_json(const char* what, const char* format, const Loss& loss) {
  return {{"what", what},
          {"memory_format", format},
          {"module", loss.module},
          {"type", loss.op},
          {"interior", loss.interior},
          {"reason", loss.reason},
          {"shape", list_of(loss.shape)},
          {"from", loss.from},
          {"to", loss.to},
          {"from_strides", list_of(loss.from_strides)},
          {"to_strides", list_of(loss.to_strides)},
          {"bytes", loss.bytes},
          {"us", loss.us}};
}

/// Each image of a program with the format it has: what its nodes make, and what is fed.
struct ImageValue {
  std::string module, op, phase;
  const TensorType* type;
};
std::vector<ImageValue> images_of(const Graph& graph) {
  std::vector<ImageValue> images;
  const std::vector<bool> fed = fed_values(graph);
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kInput && is_image(info.type)) images.push_back({info.name, "input", "forward", &info.type});
  }
  for (const Node& node : graph.nodes()) {
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (node.op->outputs[o].kind == PortKind::kWeight) continue;  // a weight's gradient is no image
      const ValueId id = node.outputs[o];
      const ValueInfo& info = graph.value(id);
      if (!fed[static_cast<size_t>(id)] || !is_image(info.type) || info.type.format.is_blocked()) continue;
      images.push_back({node.path, std::string(node.op->name), std::string(phase_name(node.phase)), &info.type});
    }
  }
  return images;
}

/// "auto", unless another format is faster beyond both intervals.
size_t fastest_of(const std::vector<std::unique_ptr<Patient>>& patients) {
  size_t best = std::size(kForms) - 1;
  for (size_t i = 0; i + 1 < patients.size(); ++i) {
    if (patients[i]->time.interval.high < patients[best]->time.interval.low) best = i;
  }
  return best;
}

std::string verdict_text(int interior, int edge, size_t images) {
  if (interior > 0) return cat("channels_last is lost inside: ", interior, interior == 1 ? " activation is" : " activations are", " reordered between images (interior)\n");
  std::string text = cat("channels_last is kept from input to output (", images, images == 1 ? " image" : " images", "): no activation is reordered inside\n");
  if (edge > 0) text += cat(edge, edge == 1 ? " reorder stands" : " reorders stand", " at the edge, where features are flattened or their gradient comes back\n");
  return text;
}

}  // namespace

int ConvertLayoutTool::run_recipe(LoadedRecipe& loaded) {
  if (!dry_run_) check_outputs({apply_});
  make_paths_absolute(loaded.recipe);
  const BenchmarkSection& section = loaded.recipe.benchmark;
  if (section.stop.max_time.unit != DurationUnit::kSeconds) throw Error(ErrorCode::kRecipe, "benchmark.stop.max_time is a time").key("benchmark.stop.max_time").suggest("e.g. 30s");
  const int64_t batch = parse_count(section.batch.front());
  std::vector<std::pair<std::string, WorkKind>> kinds{{"forward", WorkKind::kForward}};
  if (loaded.recipe.train.optimizer.algorithm) kinds.emplace_back("train_step", WorkKind::kTrainStep);

  Json json{{"formats", Json::array()}, {"losses", Json::array()}, {"values", Json::array()}, {"convolutions", Json::array()}};
  Table costs{{"what", "memory_format", "reorders", "interior", "planned"}, {}};
  if (!dry_run_) costs.headings.insert(costs.headings.end(), {"median_ms", "+-%", "against contiguous", "reorder_us"});
  Table lost{{"what", "module", "operator", "where", "why", "shape", "from", "to", "strides", "new strides", "bytes", "us"}, {}};
  Table better{{"what", "module", "operator", "contiguous_us", "channels_last_us"}, {}};
  Table values{{"what", "module", "operator", "phase", "shape", "memory_format"}, {}};
  std::string best;
  int interior = 0, edge = 0;
  size_t images = 0;
  const MachineWatch watch;
  const auto stopped = [] { return stop_signal() != 0; };
  for (const auto& [what, kind] : kinds) {
    std::vector<std::unique_ptr<Patient>> patients;
    std::vector<std::function<void()>> works;
    for (const Form& form : kForms) {
      auto patient = std::make_unique<Patient>();
      patient->recipe = std::make_unique<Recipe>(loaded.recipe);
      patient->recipe->memory_format = form.choice;
      patient->session = std::make_unique<Session>(*patient->recipe);
      if (dry_run_) {
        patient->compiled = Workload::compiled(*patient->session, kind, batch);
      } else {
        patient->work = std::make_unique<Workload>(*patient->session, kind, batch);
        works.push_back([work = patient->work.get()] { work->run(); });
      }
      patients.push_back(std::move(patient));
      if (stopped()) return 128 + stop_signal();
    }
    // Node by node apart from the timing of the whole: clocks cost time.
    constexpr int kRuns = 5;
    std::vector<NodeClock> clocks;
    for (const auto& patient : patients) clocks.emplace_back(patient->program());
    if (!dry_run_) {
      const std::vector<Series> series = time_interleaved(works, {.relative_error = section.stop.ci.percent / 100, .min_runs = section.stop.min_runs, .max_time_s = section.stop.max_time.value, .stop = stopped});
      for (int run = 0; run < kRuns && !stopped(); ++run) {
        for (size_t i = 0; i < patients.size(); ++i) patients[i]->work->run(&clocks[i]);
      }
      if (stopped()) return 128 + stop_signal();
      for (size_t i = 0; i < patients.size(); ++i) patients[i]->time = summarize(series[i].seconds);
      best = kForms[fastest_of(patients)].name;  // that of the last kind of work: training, where the recipe trains
    }
    const double plain = patients[0]->time.median;
    for (size_t i = 0; i < patients.size(); ++i) {
      const Program& program = patients[i]->program();
      const std::vector<Loss> losses = losses_of(program, clocks[i]);
      const bool chosen = kForms[i].choice == MemoryFormatChoice::kAuto;
      const auto inside = static_cast<int>(std::count_if(losses.begin(), losses.end(), [](const Loss& loss) { return loss.interior; }));
      const int64_t planned = Workload::planned_bytes(program);
      Json row{{"what", what}, {"memory_format", kForms[i].name}, {"reorders", losses.size()}, {"interior_reorders", inside}, {"planned_bytes", planned}};
      std::vector<std::string> cells{what, kForms[i].name, cat(losses.size()), cat(inside), human_bytes(static_cast<double>(planned))};
      if (!dry_run_) {
        const Summary& time = patients[i]->time;
        double us = 0;
        for (const Loss& loss : losses) us += loss.us;
        row.update({{"median_ms", time.median * 1e3}, {"runs", time.count}, {"speed", plain / time.median}, {"reorder_us", us}});
        const std::string spread = time.count < 2 ? "?" : fixed(100 * time.relative_error(), 1);  // one run says nothing of it
        cells.insert(cells.end(), {human_number(time.median * 1e3), spread, fixed(plain / time.median, 2) + "x", human_number(us)});
      }
      json["formats"].push_back(std::move(row));
      costs.rows.push_back(std::move(cells));
      if (kForms[i].choice == MemoryFormatChoice::kContiguous) continue;
      for (const Loss& loss : losses) {
        json["losses"].push_back(loss_json(what.c_str(), kForms[i].name, loss));
        if (!chosen) continue;
        (loss.interior ? interior : edge) += 1;
        lost.rows.push_back({what, loss.module, loss.op, loss.interior ? "interior" : "edge", loss.reason, sizes_text(loss.shape), loss.from, loss.to, sizes_text(loss.from_strides), sizes_text(loss.to_strides), cat(loss.bytes), dry_run_ ? "" : human_number(loss.us)});
      }
      if (!chosen) continue;
      for (const ImageValue& value : images_of(program.graph())) {
        ++images;
        json["values"].push_back({{"what", what}, {"module", value.module}, {"type", value.op}, {"phase", value.phase}, {"shape", list_of(value.type->shape)}, {"memory_format", value.type->format.str()}});
        values.rows.push_back({what, value.module, value.op, value.phase, sizes_text(value.type->shape), value.type->format.str()});
      }
    }
    if (dry_run_) continue;
    // Convolutions one by one: the same module and operator in both programs.
    struct Convolution {
      std::string type;
      double us = 0;
    };
    std::map<std::tuple<std::string, Phase, bool>, Convolution> contiguous;  // by module, phase, and whether it makes a weight's gradient
    const auto each_convolution = [&](size_t i, auto visit) {
      const Graph& graph = patients[i]->program().graph();
      for (size_t n = 0; n < graph.nodes().size(); ++n) {
        const Node& node = graph.nodes()[n];
        // One form of a convolution against another, whichever operator computes it.
        if (node.op->work != WorkClass::kProduct || !node.op->layout.prefers_channels_last) continue;
        const bool weight = node.op->outputs[0].kind == PortKind::kWeight;
        visit(std::tuple(node.path, node.phase, weight), Convolution{std::string(node.op->name), clocks[i].us(static_cast<int>(n))});
      }
    };
    each_convolution(0, [&](const auto& key, Convolution found) { contiguous[key] = std::move(found); });
    each_convolution(1, [&](const auto& key, const Convolution& other) {
      const auto found = contiguous.find(key);
      if (found == contiguous.end() || found->second.us * kMarginOfConvolutions >= other.us) return;
      const auto& [type, us] = found->second;
      better.rows.push_back({what, std::get<0>(key), type, human_number(us), human_number(other.us)});
      json["convolutions"].push_back({{"what", what}, {"module", std::get<0>(key)}, {"type", type}, {"contiguous_us", us}, {"channels_last_us", other.us}});
    });
  }
  json["interior_reorders"] = interior;
  json["edge_reorders"] = edge;
  if (!dry_run_) {
    json["best"] = best;
    json["remarks"] = watch.remarks(compute_threads());
    for (const std::string& remark : watch.remarks(compute_threads())) log(LogLevel::kWarning, remark);
    if (!apply_.empty()) write_file(apply_, cat("# galley-convert-layout --check ", recipe_, ": the fastest format on this machine\nmemory_format: ", best, "\n"));
  }
  json["provenance"] = provenance_json(provenance(loaded.recipe, dump_recipe(loaded.recipe, DumpKind::kFull)));
  for (const auto& [format, path] : common.save) write_file(path, format == Format::kJson ? json.dump() + "\n" : render(costs, format));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
    return kExitDone;
  }
  std::string text = values_ ? render(values, common.format) + "\n" : "";
  text += render(costs, common.format) + verdict_text(interior, edge, images);
  if (!lost.rows.empty()) text += "\nwhere channels_last is lost (auto):\n" + render(lost, common.format);
  if (!better.rows.empty()) text += "\nconvolutions that are faster contiguous:\n" + render(better, common.format);
  if (!best.empty()) text += cat("fastest: memory_format: ", best, "\n");
  print(text);
  return kExitDone;
}

}  // namespace galley::tools
