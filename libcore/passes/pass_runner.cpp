#include "libcore/passes/pass_runner.h"

#include <atomic>
#include <cstdlib>

#include "libcore/base/log.h"

namespace galley {
namespace {

std::atomic<bool> logs_passes{false};

bool checks_passes() {
#ifdef NDEBUG
  return std::getenv("GALLEY_CHECK_PASSES") != nullptr;
#else
  return true;
#endif
}

}  // namespace

void set_pass_log(bool on) { logs_passes = on; }

void PassRunner::begin() { nodes_before_ = graph_.nodes().size(); }

void PassRunner::end(std::string_view name, const PassReport& report) const {
  if (logs_passes) {
    std::string text = cat("pass ", pipeline_, ": ", name, ": ", nodes_before_, " -> ", graph_.nodes().size(), " nodes");
    if (!report.done.empty()) text += cat(", ", report.done.size(), " replaced");
    if (!report.declined.empty()) text += cat(", ", report.declined.size(), " declined");
    for (const std::string& line : report.done) text += "\n  " + line;
    for (const std::string& line : report.declined) text += "\n  declined: " + line;
    log(LogLevel::kRequested, text);
  }
  if (!logs_passes && !checks_passes()) return;
  try {
    verify(graph_);
  } catch (const InternalError& error) {
    throw InternalError(cat("after the pass ", name, " (", pipeline_, "): ", error.what()));
  }
}

}  // namespace galley
