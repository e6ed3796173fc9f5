#pragma once
// Messages from libcore. libcore never prints; it passes messages to the sink that the tool installed.

#include <functional>
#include <string>

namespace galley {

/// kRequested: the user asked for this kind of message by name (--verbose=compile), so that it is shown at every verbosity.
enum class LogLevel { kDebug, kInfo, kRequested, kWarning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

/// Installs the sink; the default discards messages. Not thread-safe: call it once, at start.
void set_log_sink(LogSink sink);
/// Thread-safe if the sink is.
void log(LogLevel level, const std::string& message);

}  // namespace galley
