#include "tools/common/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace galley::tools {

Progress::Progress(ProgressMode mode) : mode_(mode) {
  if (mode_ == ProgressMode::kAuto) {
    const char* term = std::getenv("TERM");
    mode_ = isatty(STDERR_FILENO) != 0 && (term == nullptr || std::string_view(term) != "dumb") ? ProgressMode::kBar : ProgressMode::kPlain;
  }
}

Progress::~Progress() { clear(); }

void Progress::update(double fraction, const std::string& line, const std::string& json) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  const auto since = now - last_;
  switch (mode_) {
    case ProgressMode::kBar: {
      if (since < 100ms && fraction < 1) return;
      winsize window{};
      const size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col - 1u : 119u;
      std::fprintf(stderr, "\r\x1b[2K%.*s", static_cast<int>(columns), line.c_str());
      std::fflush(stderr);
      drawn_ = true;
      break;
    }
    case ProgressMode::kPlain:
      if (since < 30s && last_fraction_ >= 0 && static_cast<int>(fraction * 10) == static_cast<int>(last_fraction_ * 10)) return;
      std::fprintf(stderr, "%s\n", line.c_str());
      break;
    case ProgressMode::kJson: std::fprintf(stderr, "%s\n", json.c_str()); break;
    default: return;
  }
  last_ = now;
  last_fraction_ = fraction;
}

void Progress::milestone(const std::string& line) {
  clear();
  if (mode_ == ProgressMode::kBar || mode_ == ProgressMode::kPlain) std::fprintf(stderr, "%s\n", line.c_str());
}

void Progress::clear() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\x1b[2K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace galley::tools
