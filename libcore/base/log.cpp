#include "libcore/base/log.h"

#include <utility>

namespace galley {
namespace {
LogSink& sink() {
  static LogSink installed;
  return installed;
}
}  // namespace

void set_log_sink(LogSink new_sink) { sink() = std::move(new_sink); }

void log(LogLevel level, const std::string& message) {
  if (sink()) sink()(level, message);
}

}  // namespace galley
