#include "libcore/profiler/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "libcore/base/file.h"
#include "libcore/base/units.h"
#include "libcore/ops/collective.h"
#include "libcore/profiler/profile.h"

namespace galley {
namespace {

constexpr int kProcess = 1;
constexpr int kStepThread = 1, kDataThread = 2;
constexpr int kCollectiveThread = 3, kCopyThread = 100;  // as many of each as run at the same time

/// Microseconds since the start of the recording, to the nanosecond.
std::string time_text(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
  return text;
}

/// An event of the trace. Events are sorted by begin; of events with equal begin, the longer comes first.
struct Line {
  int64_t begin_ns = 0, duration_ns = 0;
  std::string text;
};

std::string metadata(const char* what, int thread, std::string_view name) {
  return cat(R"({"ph":"M","pid":)", kProcess, R"(,"tid":)", thread, R"(,"name":")", what, R"(","args":{"name":)", json_string(name), "}}");
}

std::string complete(std::string_view quoted_name, std::string_view category, int thread, int64_t begin, int64_t duration,
                     std::string_view args) {
  return cat(R"({"ph":"X","pid":)", kProcess, R"(,"tid":)", thread, R"(,"ts":)", time_text(begin), R"(,"dur":)", time_text(duration),
             R"(,"cat":")", category, R"(","name":)", quoted_name, args.empty() ? "" : R"(,"args":)", args, "}");
}

/// Name and arguments of a program's step, formatted once.
struct StepText {
  std::string name, category, args;
};

std::vector<StepText> texts_of(const Program& program, const MachineLimits& machine) {
  std::vector<StepText> texts;
  for (size_t s = 0; s < program.steps().size(); ++s) {
    const OperatorRow row = describe(program, s, machine);
    StepText text;
    const std::string collective = collective_name(program.graph().nodes()[static_cast<size_t>(program.steps()[s].node)]);
    const std::string& of = collective.empty() ? row.module : collective;
    text.name = json_string(of.empty() ? row.type : row.type + " " + of);
    text.category = row.phase;
    text.args = cat(R"({"module":)", json_string(row.module), R"(,"shape":)", json_string(row.shape), R"(,"kernel":)",
                    json_string(row.implementation.empty() ? row.backend : row.backend + " " + row.implementation), R"(,"flops":)",
                    number_text(row.flops), R"(,"bytes":)", number_text(row.bytes));
    if (row.limit_s > 0) text.args += cat(R"(,"limit_us":)", number_text(row.limit_s * 1e6));
    text.args += "}";
    texts.push_back(std::move(text));
  }
  return texts;
}

/// Collects a recording's events up to the maximum file size.
class TraceWriter {
 public:
  TraceWriter(const Recording& recording, const TraceOptions& options)
      : recording_(recording), options_(options), origin_(recording.steps.front().begin_ns) {
    for (const Program* program : recording.programs) {
      texts_.push_back(texts_of(*program, options.machine));
      memory_.push_back(memory_timeline(*program));
    }
    for (const std::string& name : recording.kernel_names) kernel_names_.push_back(json_string(name));
    kernels_of_.resize(recording.kernels.empty() ? 0 : recording.nodes.size());
    for (size_t k = 0; k < recording.kernels.size(); ++k) {
      if (const int64_t node = recording.kernels[k].node; node >= 0) kernels_of_[static_cast<size_t>(node)].push_back(k);
    }
  }

  Trace write() {
    add_steps();
    add_waits();
    add_counters();
    add_collectives();
    add_copies();
    add_nodes();
    join();
    return std::move(trace_);
  }

 private:
  static constexpr int64_t kFrame = 4096;  // bytes reserved for names, header and remarks

  void put(int64_t begin, int64_t duration, std::string text) {
    bytes_ += static_cast<int64_t>(text.size()) + 2;
    lines_.push_back({begin, duration, std::move(text)});
  }
  const StepText& text_of(const NodeEvent& event) const {
    return texts_[static_cast<size_t>(event.program)][static_cast<size_t>(event.step)];
  }
  int64_t duration_of(size_t e) const { return recording_.nodes[e].end_ns - recording_.nodes[e].begin_ns; }
  int64_t size_of(size_t e) const {
    const StepText& text = text_of(recording_.nodes[e]);
    int64_t size = static_cast<int64_t>(text.name.size() + text.args.size() + text.category.size()) + 120;
    for (const size_t k : kernels_of(e))
      size += static_cast<int64_t>(kernel_names_[static_cast<size_t>(recording_.kernels[k].name)].size()) + 120;
    return size;
  }
  std::span<const size_t> kernels_of(size_t e) const { return kernels_of_.empty() ? std::span<const size_t>() : kernels_of_[e]; }
  /// The line of a kernel or copy.
  void put_kernel(const KernelEvent& event, std::string_view category, int thread) {
    const int64_t begin = event.begin_ns - origin_, duration = event.end_ns - event.begin_ns;
    put(begin, duration, complete(kernel_names_[static_cast<size_t>(event.name)], category, thread, begin, duration, ""));
  }

  /// Copies outside of nodes: batches on their way, and results. As counters, they are left out where the file would be half full.
  void add_copies() {
    int64_t bytes = 0;
    for (const KernelEvent& event : recording_.kernels) bytes += event.node < 0 ? 160 : 0;
    if (bytes_ + bytes + kFrame >= options_.max_bytes / 2) return;
    for (const KernelEvent& event : recording_.kernels) {
      if (event.node >= 0 || event.begin_ns < origin_) continue;
      put_kernel(event, "copy", kCopyThread + lane_of(event.begin_ns, event.end_ns, copy_ends_));
    }
  }

  void add_steps() {
    size_t number = 0;
    for (const StepMark& step : recording_.steps) {
      const int64_t begin = step.begin_ns - origin_, duration = step.end_ns - step.begin_ns;
      const std::string args = cat(R"({"step":)", step.number, R"(,"resident_bytes":)", step.resident_bytes, "}");
      put(begin, duration, complete(json_string(cat("step ", step.number)), "step", kStepThread, begin, duration, args));
      if (recording_.steps.size() > 1) {
        const char* phase = number == 0 ? "s" : number + 1 == recording_.steps.size() ? "f" : "t";
        put(begin, 0,
            cat(R"({"ph":")", phase, R"(","id":1,"bp":"e","pid":)", kProcess, R"(,"tid":)", kStepThread, R"(,"ts":)", time_text(begin),
                R"(,"cat":"steps","name":"steps"})"));
      }
      ++number;
    }
  }

  void add_waits() {
    for (const WaitEvent& wait : recording_.waits) {
      const int64_t begin = wait.begin_ns - origin_, duration = wait.end_ns - wait.begin_ns;
      put(begin, duration, complete(R"("wait for data")", "data", kDataThread, begin, duration, ""));
    }
  }

  /// A lane for collectives, from the begin of the start to the end of the wait; more lanes where several run at the same time. As
  /// counters, they are left out where the file would be half full with them.
  void add_collectives() {
    std::vector<CommunicationEvent> events = recording_.communication;
    for (const StepMark& step : recording_.steps) add_collectives_of_programs(step, events);
    std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    std::vector<Line> lines;
    int64_t bytes = 0;
    for (const CommunicationEvent& event : events) {
      lines.push_back(collective_line(event));
      bytes += static_cast<int64_t>(lines.back().text.size()) + 2;
    }
    if (bytes_ + bytes + kFrame >= options_.max_bytes / 2) return lane_ends_.clear();
    for (Line& line : lines) put(line.begin_ns, line.duration_ns, std::move(line.text));
  }

  void add_collectives_of_programs(const StepMark& step, std::vector<CommunicationEvent>& events) const {
    std::map<std::pair<int32_t, ValueId>, int64_t> begins;  // by program and the value that stands for the collective
    for (size_t e = step.first_node; e < step.end_node; ++e) {
      const NodeEvent& event = recording_.nodes[e];
      const Program& program = *recording_.programs[static_cast<size_t>(event.program)];
      const Node& node = program.graph().nodes()[static_cast<size_t>(program.steps()[static_cast<size_t>(event.step)].node)];
      if (starts_collective(node)) begins[{event.program, node.outputs[0]}] = event.begin_ns;
      if (!waits_for_collective(node)) continue;
      const auto began = begins.find({event.program, node.inputs[0]});
      if (began == begins.end()) continue;
      const std::string_view kind = node.op->name.substr(0, node.op->name.rfind('_'));
      events.push_back({cat(kind, " ", collective_name(node)), began->second, event.end_ns});
    }
  }

  /// The first lane that is free, given when each is.
  static int lane_of(int64_t begin_ns, int64_t end_ns, std::vector<int64_t>& lane_ends) {
    size_t lane = 0;
    while (lane < lane_ends.size() && lane_ends[lane] > begin_ns) ++lane;
    lane_ends.resize(std::max(lane_ends.size(), lane + 1));
    lane_ends[lane] = end_ns;
    return static_cast<int>(lane);
  }

  Line collective_line(const CommunicationEvent& event) {
    const int lane = lane_of(event.begin_ns, event.end_ns, lane_ends_);
    const int64_t begin = event.begin_ns - origin_, duration = event.end_ns - event.begin_ns;
    return {begin, duration, complete(json_string(event.what), "collective", kCollectiveThread + lane, begin, duration, "")};
  }

  /// Adds the planned memory of one step, at points where the sum changes by 1/100 of its peak, and the measured memory at its end.
  void add_step_counters(const StepMark& step, std::vector<Line>& counters) const {
    int64_t last = -1;
    for (size_t e = step.first_node; e < step.end_node; ++e) {
      const NodeEvent& event = recording_.nodes[e];
      const MemoryTimeline& timeline = memory_[static_cast<size_t>(event.program)];
      const MemorySizes& sizes = timeline.steps[static_cast<size_t>(event.step)];
      const int64_t now = total(sizes), peak = total(timeline.steps[timeline.peak]);
      if (last >= 0 && std::abs(now - last) * 100 < peak && e + 1 < step.end_node) continue;
      last = now;
      std::string text =
          cat(R"({"ph":"C","pid":)", kProcess, R"(,"ts":)", time_text(event.begin_ns - origin_), R"(,"name":"planned memory","args":{)");
      for (size_t c = 0; c < kMemoryCategories; ++c)
        text += cat(c == 0 ? "" : ",", "\"", category_name(static_cast<MemoryCategory>(c)), "\":", sizes[c]);
      counters.push_back({event.begin_ns - origin_, -1, text + "}}"});
    }
    if (step.resident_bytes == 0) return;
    const int64_t at = step.end_ns - origin_;
    counters.push_back({at, -1,
                        cat(R"({"ph":"C","pid":)", kProcess, R"(,"ts":)", time_text(at), R"(,"name":"measured memory","args":{"resident":)",
                            step.resident_bytes, "}}")});
  }

  /// Adds counters unless they would take more than a quarter of the file.
  void add_counters() {
    std::vector<Line> counters;
    for (const StepMark& step : recording_.steps) add_step_counters(step, counters);
    int64_t counter_bytes = 0;
    for (const Line& line : counters) counter_bytes += static_cast<int64_t>(line.text.size()) + 2;
    if (bytes_ + counter_bytes + kFrame >= options_.max_bytes / 4) return;
    for (Line& line : counters) put(line.begin_ns, line.duration_ns, std::move(line.text));
  }

  /// Order in which nodes are added: the whole first step if it fits in half of the file, then the longest nodes first.
  std::vector<size_t> node_order() const {
    std::vector<size_t> order(recording_.nodes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const StepMark& first = recording_.steps.front();
    int64_t first_bytes = 0;
    for (size_t e = first.first_node; e < first.end_node; ++e) first_bytes += size_of(e);
    const bool whole = first_bytes <= options_.max_bytes / 2;
    const auto in_first = [&](size_t e) { return whole && e >= first.first_node && e < first.end_node; };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return in_first(a) != in_first(b) ? in_first(a) : duration_of(a) > duration_of(b); });
    return order;
  }

  void add_nodes() {
    bool full = false;  // set at the first event that does not fit: dropped events are never longer than later ones that were kept
    for (size_t e : node_order()) {
      const NodeEvent& event = recording_.nodes[e];
      full |= bytes_ + size_of(e) + kFrame > options_.max_bytes;
      if (full) {
        ++trace_.dropped;
        trace_.dropped_s += static_cast<double>(duration_of(e)) * 1e-9;
        continue;
      }
      const StepText& text = text_of(event);
      put(event.begin_ns - origin_, duration_of(e),
          complete(text.name, text.category, kStepThread, event.begin_ns - origin_, duration_of(e), text.args));
      for (const size_t k : kernels_of(e)) put_kernel(recording_.kernels[k], "kernel", kStepThread);
      ++trace_.events;
    }
  }

  void join() {
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.duration_ns > b.duration_ns;
    });
    std::string& json = trace_.json;
    json = cat(R"({"displayTimeUnit":"ms","otherData":{"dropped_events":)", trace_.dropped, R"(,"dropped_ms":)",
               number_text(trace_.dropped_s * 1e3),
               recording_.kernel_source.empty() ? "" : cat(R"(,"kernels":)", json_string(recording_.kernel_source)),
               "},\n\"traceEvents\":[\n", metadata("process_name", 0, options_.process), ",\n",
               metadata("thread_name", kStepThread, "compute"), ",\n", metadata("thread_name", kDataThread, "data"));
    for (size_t lane = 0; lane < copy_ends_.size(); ++lane)
      json += cat(",\n", metadata("thread_name", kCopyThread + static_cast<int>(lane), "copies"));
    for (size_t lane = 0; lane < lane_ends_.size(); ++lane)
      json += cat(",\n", metadata("thread_name", kCollectiveThread + static_cast<int>(lane), "collectives"));
    json.reserve(static_cast<size_t>(bytes_) + kFrame);
    for (const Line& line : lines_) {
      json += ",\n";
      json += line.text;
    }
    json += "\n]}\n";
  }

  const Recording& recording_;
  const TraceOptions& options_;
  int64_t origin_;
  std::vector<std::vector<StepText>> texts_;
  std::vector<MemoryTimeline> memory_;
  std::vector<Line> lines_;
  std::vector<std::string> kernel_names_;        // quoted
  std::vector<std::vector<size_t>> kernels_of_;  // by node; empty: none are recorded
  std::vector<int64_t> lane_ends_, copy_ends_;   // of collectives and of copies
  int64_t bytes_ = 0;
  Trace trace_;
};

}  // namespace

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Trace make_trace(const Recording& recording, const TraceOptions& options) {
  GALLEY_ASSERT(!recording.steps.empty(), "a trace needs at least one step");
  return TraceWriter(recording, options).write();
}

std::string gzip(std::string_view text) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;  // window bits; +16 selects a gzip header (zlib.h)
  GALLEY_ASSERT(deflateInit2(&stream, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "cannot initialize zlib");
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  GALLEY_ASSERT(text.size() < (size_t{1} << 32) && packed.size() < (size_t{1} << 32), "the text is too long for one call of zlib");
  stream.avail_in = static_cast<uInt>(text.size());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int code = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  GALLEY_ASSERT(code == Z_STREAM_END, "zlib returned ", code);
  return packed;
}

void write_maybe_gzip(const std::string& path, std::string_view text) {
  write_file(path, path.ends_with(".gz") ? gzip(text) : std::string(text));
}

}  // namespace galley
