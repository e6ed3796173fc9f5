#include "libcore/train/layout_check.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <tuple>

#include "libcore/base/error.h"
#include "libcore/infer/session.h"
#include "libcore/passes/format_losses.h"
#include "libcore/profiler/profile.h"
#include "libcore/train/workload.h"

namespace galley {
namespace {

constexpr double kMarginOfConvolutions = 1.1;  // a convolution is reported if contiguous is faster by this factor

struct Form {
  const char* name;
  MemoryFormatChoice choice;
};
constexpr Form kForms[] = {{"contiguous", MemoryFormatChoice::kContiguous},
                           {"channels_last", MemoryFormatChoice::kChannelsLast},
                           {"auto", MemoryFormatChoice::kAuto}};

/// Whether a value has a memory format to choose.
bool has_format(const TensorType& type) { return type.shape.rank() == 4 || type.shape.rank() == 5; }

/// The shortest time of each node of one program over several runs, which excludes most of the influence of other processes.
class NodeClock : public NodeObserver {
 public:
  explicit NodeClock(const Program& program) : program_(&program) {}
  void before(const Program&, const Step&, Stream& stream) override { marks_.begin(stream); }
  void after(const Program&, const Step& step, const NodeOutputs& outputs) override {
    marks_.end(outputs.stream());
    marked_.push_back(step.node);
  }
  void after_run(const Program& program) override {
    for (size_t i = 0; i < marked_.size() && &program == program_; ++i) {  // other programs only accumulate gradients
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
  NodeMarks marks_;          // marks of the current run
  std::vector<int> marked_;  // nodes of the marks
};

/// A model in one memory format.
struct Variant {
  Variant(const Recipe& given, const Form& form, WorkKind kind, const LayoutCheckOptions& options) : recipe(given), name(form.name) {
    recipe.memory_format = form.choice;
    session = std::make_unique<Session>(recipe);
    if (options.measure) {
      work = std::make_unique<Workload>(*session, kind, options.batch);
    } else {
      compiled = Workload::compiled(*session, kind, options.batch);
    }
    clock = std::make_unique<NodeClock>(program());
  }
  const Program& program() const { return work ? work->program() : *compiled; }

  Recipe recipe;
  std::string name;
  std::unique_ptr<Session> session;
  std::unique_ptr<Workload> work;  // null without measurement
  std::shared_ptr<const Program> compiled;
  std::unique_ptr<NodeClock> clock;
  Summary time;  // of a whole run
};
using Variants = std::vector<std::unique_ptr<Variant>>;

std::vector<LayoutLoss> losses_of(const std::string& what, const Variant& variant) {
  const Graph& graph = variant.program().graph();
  std::vector<LayoutLoss> losses;
  for (const FormatLoss& found : format_losses(graph)) {
    const Node& node = graph.nodes()[static_cast<size_t>(found.node)];
    const Node* reader = found.reader < 0 ? nullptr : &graph.nodes()[static_cast<size_t>(found.reader)];
    const TensorType &from = graph.type(node.inputs[0]), &to = graph.type(node.outputs[0]);
    losses.push_back({.what = what,
                      .memory_format = variant.name,
                      .module = reader != nullptr ? reader->path : node.path,
                      .op = reader != nullptr ? std::string(reader->op->name) : "output",
                      .from = from.format.str(),
                      .to = to.format.str(),
                      .reason = found.reason,
                      .shape = from.shape,
                      .from_strides = from.format.strides(from.shape),
                      .to_strides = to.format.strides(to.shape),
                      .bytes = from.bytes(),
                      .us = variant.clock->us(found.node),
                      .interior = found.interior});
  }
  return losses;
}

void add_activations(const std::string& what, const Graph& graph, std::vector<LayoutActivation>& activations) {
  const auto add = [&](const std::string& module, std::string op, std::string_view phase, const TensorType& type) {
    activations.push_back({.what = what,
                           .module = module,
                           .op = std::move(op),
                           .phase = std::string(phase),
                           .shape = type.shape,
                           .format = type.format.str()});
  };
  const std::vector<bool> fed = fed_values(graph);
  for (const ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kInput && has_format(info.type)) add(info.name, "input", "forward", info.type);
  }
  for (const Node& node : graph.nodes()) {
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (node.op->outputs[o].kind == PortKind::kWeight) continue;  // the gradient of a weight is not an activation
      const ValueId id = node.outputs[o];
      const ValueInfo& info = graph.value(id);
      if (!fed[static_cast<size_t>(id)] || !has_format(info.type) || info.type.format.is_blocked()) continue;
      add(node.path, std::string(node.op->name), phase_name(node.phase), info.type);
    }
  }
}

/// Times whole runs of the variants in turns, and single nodes in separate runs, since reading the clock takes time. Returns false if it
/// was stopped.
bool measure(Variants& variants, const TimerOptions& timing) {
  const auto stopped = [&] { return timing.stop && timing.stop(); };
  std::vector<std::function<void()>> works;
  for (const auto& variant : variants) works.push_back([work = variant->work.get()] { work->run(); });
  const std::vector<Series> series = time_interleaved(works, timing);
  constexpr int kRuns = 5;
  for (int run = 0; run < kRuns && !stopped(); ++run) {
    for (const auto& variant : variants) variant->work->run(variant->clock.get());
  }
  if (stopped()) return false;
  for (size_t i = 0; i < variants.size(); ++i) variants[i]->time = summarize(series[i].seconds);
  return true;
}

/// "auto", unless another format is faster and the confidence intervals do not overlap.
std::string fastest_of(const Variants& variants) {
  const Variant* best = variants.back().get();
  for (const auto& variant : variants) {
    if (variant->time.interval.high < best->time.interval.low) best = variant.get();
  }
  return best->name;
}

LayoutCost layout_cost(const std::string& what, const Variant& variant, const std::vector<LayoutLoss>& losses, double contiguous_s) {
  LayoutCost cost{.what = what, .format = variant.name, .reorders = static_cast<int64_t>(losses.size())};
  cost.interior = std::count_if(losses.begin(), losses.end(), [](const LayoutLoss& loss) { return loss.interior; });
  cost.planned_bytes = Workload::planned_bytes(variant.program());
  cost.time = variant.time;
  cost.speed = variant.time.median > 0 ? contiguous_s / variant.time.median : 0;
  for (const LayoutLoss& loss : losses) cost.reorder_us += loss.us;
  return cost;
}

/// Compares each convolution of the two programs, matched by module and operator.
void compare_convolutions(const std::string& what, const Variant& contiguous, const Variant& channels_last,
                          std::vector<ContiguousConvolution>& faster) {
  struct Convolution {
    std::string op;
    double us = 0;
  };
  const auto each = [](const Variant& variant, const auto& visit) {
    const Graph& graph = variant.program().graph();
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      // Compare forms of a convolution regardless of the operator that computes them.
      if (node.op->work != WorkClass::kProduct || !node.op->layout.prefers_channels_last) continue;
      const bool weight = node.op->outputs[0].kind == PortKind::kWeight;
      visit(std::tuple(node.path, node.phase, weight), Convolution{std::string(node.op->name), variant.clock->us(static_cast<int>(n))});
    }
  };
  std::map<std::tuple<std::string, Phase, bool>, Convolution> plain;  // by module, phase, and whether it computes the gradient of a weight
  each(contiguous, [&](const auto& key, Convolution found) { plain[key] = std::move(found); });
  each(channels_last, [&](const auto& key, const Convolution& other) {
    const auto found = plain.find(key);
    if (found == plain.end() || found->second.us * kMarginOfConvolutions >= other.us) return;
    faster.push_back({what, std::get<0>(key), found->second.op, found->second.us, other.us});
  });
}

}  // namespace

int64_t LayoutCheck::count(bool interior) const {
  return std::count_if(losses.begin(), losses.end(),
                       [&](const LayoutLoss& loss) { return loss.memory_format == "auto" && loss.interior == interior; });
}

std::optional<LayoutCheck> check_layouts(const Recipe& recipe, const LayoutCheckOptions& options) {
  std::vector<std::pair<std::string, WorkKind>> kinds{{"forward", WorkKind::kForward}};
  if (recipe.train.optimizer.algorithm) kinds.emplace_back("train_step", WorkKind::kTrainStep);
  LayoutCheck check;
  check.measured = options.measure;
  // Timing takes about as long as the compilations together.
  constexpr double kFormats = std::size(kForms);
  const double parts = static_cast<double>(kinds.size()) * (options.measure ? 2 : 1) * kFormats;
  double done = 0;
  const auto next = [&](const std::string& text, double size) {
    if (options.progress) options.progress(done / parts, text);
    done += size;
  };
  for (const auto& [what, kind] : kinds) {
    Variants variants;
    for (const Form& form : kForms) {
      next(cat(what, ": compiles ", form.name), 1);
      variants.push_back(std::make_unique<Variant>(recipe, form, kind, options));
      if (options.timing.stop && options.timing.stop()) return std::nullopt;
    }
    if (options.measure) {
      next(cat(what, ": times ", std::size(kForms), " formats in turns"), kFormats);
      if (!measure(variants, options.timing)) return std::nullopt;
      check.best = fastest_of(variants);
    }
    for (size_t i = 0; i < variants.size(); ++i) {
      const std::vector<LayoutLoss> losses = losses_of(what, *variants[i]);
      check.costs.push_back(layout_cost(what, *variants[i], losses, variants[0]->time.median));
      if (kForms[i].choice == MemoryFormatChoice::kContiguous) continue;
      check.losses.insert(check.losses.end(), losses.begin(), losses.end());
      if (kForms[i].choice == MemoryFormatChoice::kAuto) add_activations(what, variants[i]->program().graph(), check.activations);
    }
    if (options.measure) compare_convolutions(what, *variants[0], *variants[1], check.convolutions);
  }
  return check;
}

}  // namespace galley
