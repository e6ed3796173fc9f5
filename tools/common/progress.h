#pragma once
// Progress on stderr: one aligned line that is redrawn on a terminal, plain lines elsewhere, JSON lines for wrappers.

#include <chrono>
#include <string>

namespace galley::tools {

enum class ProgressMode { kAuto, kBar, kPlain, kJson, kNone };

class Progress {
 public:
  explicit Progress(ProgressMode mode);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows `line` (without newline). On a terminal it replaces the line before, at most ten times a second; elsewhere it is printed at
  /// most every 30 s. `fraction` in 0..1 is what is done, negative where unknown. `json` is the event of mode json.
  void update(double fraction, const std::string& line, const std::string& json);
  /// A line that stays: milestones (an epoch's evaluation), in every mode but json and none.
  void milestone(const std::string& line);
  /// Takes the redrawn line away, so that other text may be printed.
  void clear();

 private:
  ProgressMode mode_;
  bool drawn_ = false;
  double last_fraction_ = -1;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace galley::tools
