#pragma once
// Messages of the core. libcore never prints: it hands messages to the sink that the tool installed.

#include <functional>
#include <string>

namespace galley {

/// kRequested: the user asked for this kind of message by name (--verbose=compile), so that it is shown at every verbosity.
enum class LogLevel { kDebug, kInfo, kRequested, kWarning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

/// Installs the sink (the default drops everything). Not thread-safe: once, at start.
void set_log_sink(LogSink sink);
/// Thread-safe where the sink is.
void log(LogLevel level, const std::string& message);

}  // namespace galley
