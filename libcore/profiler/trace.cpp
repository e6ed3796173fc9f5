#include "libcore/profiler/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "libcore/base/file.h"
#include "libcore/base/units.h"
#include "libcore/profiler/profile.h"

namespace galley {
namespace {

constexpr int kProcess = 1;
constexpr int kStepThread = 1, kDataThread = 2;

/// Microseconds since the start of the recording, to the nanosecond.
std::string time_text(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
  return text;
}

/// An event of the trace: what comes first in time, and the longer of two that begin together, stands first.
struct Line {
  int64_t begin_ns = 0, duration_ns = 0;
  std::string text;
};

std::string metadata(const char* what, int thread, std::string_view name) {
  return cat(R"({"ph":"M","pid":)", kProcess, R"(,"tid":)", thread, R"(,"name":")", what, R"(","args":{"name":)", json_string(name), "}}");
}

std::string complete(std::string_view quoted_name, std::string_view category, int thread, int64_t begin, int64_t duration, std::string_view args) {
  return cat(R"({"ph":"X","pid":)", kProcess, R"(,"tid":)", thread, R"(,"ts":)", time_text(begin), R"(,"dur":)", time_text(duration), R"(,"cat":")", category, R"(","name":)", quoted_name,
             args.empty() ? "" : R"(,"args":)", args, "}");
}

/// Names and arguments of a program's steps, made once.
struct StepText {
  std::string name, category, args;
};

std::vector<StepText> texts_of(const Program& program, const MachineLimits& machine) {
  std::vector<StepText> texts;
  for (size_t s = 0; s < program.steps().size(); ++s) {
    const OperatorRow row = describe(program, s, machine);
    StepText text;
    text.name = json_string(row.module.empty() ? row.type : row.type + " " + row.module);
    text.category = row.phase;
    text.args = cat(R"({"module":)", json_string(row.module), R"(,"shape":)", json_string(row.shape), R"(,"kernel":)", json_string(row.backend + " " + row.implementation), R"(,"flops":)",
                    number_text(row.flops), R"(,"bytes":)", number_text(row.bytes));
    if (row.limit_s > 0) text.args += cat(R"(,"limit_us":)", number_text(row.limit_s * 1e6));
    text.args += "}";
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

Trace make_trace(const Recording& recording, const TraceOptions& options) {
  GALLEY_ASSERT(!recording.steps.empty(), "a trace of nothing");
  const int64_t origin = recording.steps.front().begin_ns;
  std::vector<std::vector<StepText>> texts;
  std::vector<MemoryTimeline> memory;
  for (const Program* program : recording.programs) {
    texts.push_back(texts_of(*program, options.machine));
    memory.push_back(memory_timeline(*program));
  }
  std::vector<Line> lines;
  int64_t bytes = 0;
  const auto put = [&](int64_t begin, int64_t duration, std::string text) {
    bytes += static_cast<int64_t>(text.size()) + 2;
    lines.push_back({begin, duration, std::move(text)});
  };
  const auto text_of = [&](const NodeEvent& event) -> const StepText& { return texts[static_cast<size_t>(event.program)][static_cast<size_t>(event.step)]; };

  size_t number = 0;
  for (const StepMark& step : recording.steps) {
    const int64_t begin = step.begin_ns - origin, duration = step.end_ns - step.begin_ns;
    put(begin, duration, complete(json_string(cat("step ", step.number)), "step", kStepThread, begin, duration, cat(R"({"step":)", step.number, R"(,"resident_bytes":)", step.resident_bytes, "}")));
    if (recording.steps.size() > 1) {
      const char* phase = number == 0 ? "s" : number + 1 == recording.steps.size() ? "f" : "t";
      put(begin, 0, cat(R"({"ph":")", phase, R"(","id":1,"bp":"e","pid":)", kProcess, R"(,"tid":)", kStepThread, R"(,"ts":)", time_text(begin), R"(,"cat":"steps","name":"steps"})"));
    }
    ++number;
  }
  for (const WaitEvent& wait : recording.waits) {
    const int64_t begin = wait.begin_ns - origin;
    put(begin, wait.end_ns - wait.begin_ns, complete(R"("wait for data")", "data", kDataThread, begin, wait.end_ns - wait.begin_ns, ""));
  }

  // Memory: where the sum changed by a hundredth of its peak, for the first step in full and the others while there is room.
  std::vector<Line> counters;
  for (const StepMark& step : recording.steps) {
    int64_t last = -1;
    for (size_t e = step.first_node; e < step.end_node; ++e) {
      const NodeEvent& event = recording.nodes[e];
      const MemoryTimeline& timeline = memory[static_cast<size_t>(event.program)];
      const MemorySizes& sizes = timeline.steps[static_cast<size_t>(event.step)];
      const int64_t now = total(sizes), peak = total(timeline.steps[timeline.peak]);
      if (last >= 0 && std::abs(now - last) * 100 < peak && e + 1 < step.end_node) continue;
      last = now;
      std::string text = cat(R"({"ph":"C","pid":)", kProcess, R"(,"ts":)", time_text(event.begin_ns - origin), R"(,"name":"planned memory","args":{)");
      for (size_t c = 0; c < kMemoryCategories; ++c) text += cat(c == 0 ? "" : ",", "\"", category_name(static_cast<MemoryCategory>(c)), "\":", sizes[c]);
      counters.push_back({event.begin_ns - origin, -1, text + "}}"});
    }
    if (step.resident_bytes > 0) {
      const int64_t at = step.end_ns - origin;
      counters.push_back({at, -1, cat(R"({"ph":"C","pid":)", kProcess, R"(,"ts":)", time_text(at), R"(,"name":"measured memory","args":{"resident":)", step.resident_bytes, "}}")});
    }
  }
  int64_t counter_bytes = 0;
  for (const Line& line : counters) counter_bytes += static_cast<int64_t>(line.text.size()) + 2;
  constexpr int64_t kFrame = 4096;  // names, header, remarks
  if (bytes + counter_bytes + kFrame < options.max_bytes / 4) {
    for (Line& line : counters) put(line.begin_ns, line.duration_ns, std::move(line.text));
  }

  // Nodes: longest first, after the whole first step.
  const auto size_of = [&](size_t e) {
    const StepText& text = text_of(recording.nodes[e]);
    return static_cast<int64_t>(text.name.size() + text.args.size() + text.category.size()) + 120;
  };
  std::vector<size_t> order(recording.nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const StepMark& first = recording.steps.front();
  int64_t first_bytes = 0;
  for (size_t e = first.first_node; e < first.end_node; ++e) first_bytes += size_of(e);
  const bool whole = first_bytes <= options.max_bytes / 2;
  const auto in_first = [&](size_t e) { return whole && e >= first.first_node && e < first.end_node; };
  const auto duration_of = [&](size_t e) { return recording.nodes[e].end_ns - recording.nodes[e].begin_ns; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return in_first(a) != in_first(b) ? in_first(a) : duration_of(a) > duration_of(b);
  });
  Trace trace;
  bool full = false;  // once an event did not fit, no shorter one is taken: what is missing is below one length
  for (size_t e : order) {
    const NodeEvent& event = recording.nodes[e];
    full |= bytes + size_of(e) + kFrame > options.max_bytes;
    if (full) {
      ++trace.dropped;
      trace.dropped_s += static_cast<double>(duration_of(e)) * 1e-9;
      continue;
    }
    const StepText& text = text_of(event);
    put(event.begin_ns - origin, duration_of(e), complete(text.name, text.category, kStepThread, event.begin_ns - origin, duration_of(e), text.args));
    ++trace.events;
  }

  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.duration_ns > b.duration_ns; });
  trace.json = cat(R"({"displayTimeUnit":"ms","otherData":{"dropped_events":)", trace.dropped, R"(,"dropped_ms":)", number_text(trace.dropped_s * 1e3), "},\n\"traceEvents\":[\n",
                   metadata("process_name", 0, options.process), ",\n", metadata("thread_name", kStepThread, "compute"), ",\n", metadata("thread_name", kDataThread, "data"));
  trace.json.reserve(static_cast<size_t>(bytes) + kFrame);
  for (const Line& line : lines) {
    trace.json += ",\n";
    trace.json += line.text;
  }
  trace.json += "\n]}\n";
  return trace;
}

std::string gzip(std::string_view text) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;  // window bits; +16 asks for a gzip header (zlib.h)
  GALLEY_ASSERT(deflateInit2(&stream, 6, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib does not start");
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  GALLEY_ASSERT(text.size() < (size_t{1} << 32) && packed.size() < (size_t{1} << 32), "too long for one call of zlib");
  stream.avail_in = static_cast<uInt>(text.size());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int code = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  GALLEY_ASSERT(code == Z_STREAM_END, "zlib gave ", code);
  return packed;
}

void write_maybe_gzip(const std::string& path, std::string_view text) { write_file(path, path.ends_with(".gz") ? gzip(text) : std::string(text)); }

}  // namespace galley
