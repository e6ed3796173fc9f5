#pragma once
// Export of a recording as a trace for Perfetto and chrome://tracing: the "JSON Array/Object Format" of the Trace Event Format (Google,
// 2016). Complete events sorted by time, a counter track of memory and a flow through the steps.

#include <cstdint>
#include <string>
#include <string_view>

#include "libcore/profiler/recorder.h"
#include "libcore/runtime/machine.h"

namespace galley {

struct TraceOptions {
  /// Limit of the text. The shortest nodes are dropped first; the nodes of the first step are kept if they take at most half of the limit.
  int64_t max_bytes = int64_t{64} << 20;
  std::string process = "galley";  // name of the process track
  MachineLimits machine;           // limits for the argument limit_us; zeros: omitted
};

struct Trace {
  std::string json;
  int64_t events = 0;    // node events written
  int64_t dropped = 0;   // node events dropped
  double dropped_s = 0;  // total time of the dropped events
};

/// The recording must have at least one step.
Trace make_trace(const Recording& recording, const TraceOptions& options = {});

/// The text compressed in gzip format (RFC 1952).
std::string gzip(std::string_view text);
/// Writes the text, compressed if the name ends in ".gz".
void write_maybe_gzip(const std::string& path, std::string_view text);

/// A quoted JSON string; invalid UTF-8 is replaced.
std::string json_string(std::string_view text);

}  // namespace galley
