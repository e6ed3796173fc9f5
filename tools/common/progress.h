#pragma once
// Progress on stderr: a line that is redrawn on a terminal, plain lines elsewhere, JSON lines for programs.

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

  /// Shows `line` (without newline). On a terminal it replaces the previous line, at most ten times per second; elsewhere it is printed at
  /// most every 30 s. `fraction` in 0..1 is the finished part, negative if unknown. `json` is the event for mode json.
  void update(double fraction, const std::string& line, const std::string& json);
  /// Prints a line that stays, e.g. an epoch's evaluation, in every mode except json and none.
  void milestone(const std::string& line);
  /// Removes the redrawn line, so that other text can be printed.
  void clear();

 private:
  ProgressMode mode_;
  bool drawn_ = false;
  double last_fraction_ = -1;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace galley::tools
