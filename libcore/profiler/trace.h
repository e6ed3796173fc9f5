#pragma once
// A recording as a trace that Perfetto and chrome://tracing open: the "JSON Array/Object Format" of the Trace Event Format (Google,
// 2016). Complete events only, sorted by time, nested by construction; a counter track of memory; a flow through the steps.

#include <cstdint>
#include <string>
#include <string_view>

#include "libcore/profiler/recorder.h"
#include "libcore/runtime/machine.h"

namespace galley {

struct TraceOptions {
  /// Bound on the text. What does not fit is left out, shortest nodes first; the nodes of the first step stay as long as they take at
  /// most half of the bound.
  int64_t max_bytes = int64_t{64} << 20;
  std::string process = "galley";  // name of the process's track
  MachineLimits machine;           // for the share of the limit; zeros: left out
};

struct Trace {
  std::string json;
  int64_t events = 0;    // node events written
  int64_t dropped = 0;   // node events left out
  double dropped_s = 0;  // their time
};

Trace make_trace(const Recording& recording, const TraceOptions& options = {});

/// Compressed as gzip does (RFC 1952).
std::string gzip(std::string_view text);
/// Writes the text, compressed where the name ends in ".gz".
void write_maybe_gzip(const std::string& path, std::string_view text);

/// A JSON string with its quotes; bytes that are no UTF-8 are replaced.
std::string json_string(std::string_view text);

}  // namespace galley
