#pragma once
// The frame of every tool: one executable = one Tool. tool_main parses the command line, runs the tool and is the only place that
// catches: errors go to stderr (text, or one JSON object a line with --format json), the exit code says what kind they are.

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/common/progress.h"
#include "tools/common/report.h"

namespace CLI {
class App;
}
namespace galley {
class Error;
}

namespace galley::tools {

/// Exit codes besides those of galley::ErrorCode.
inline constexpr int kExitDone = 0;
inline constexpr int kExitGoalMissed = 6;
inline constexpr int kExitInconclusive = 9;
inline constexpr int kExitResumable = 75;

/// Options that every tool has.
struct CommonOptions {
  Format format = Format::kTable;
  std::vector<std::pair<Format, std::string>> save;  // --save FMT:FILE
  ProgressMode progress = ProgressMode::kAuto;
  int verbosity = 0;         // -q -1, -v 1, -vv 2
  bool verbose_ops = false;  // --verbose=ops
};

class Tool {
 public:
  virtual ~Tool() = default;
  /// "galley-train"
  virtual std::string name() const = 0;
  /// One line: what it does.
  virtual std::string about() const = 0;
  /// Two or three command lines, one a line.
  virtual std::string examples() const = 0;
  virtual void add_options(CLI::App& app) = 0;
  /// The work. Returns the exit code; throws galley::Error.
  virtual int run() = 0;
  /// Words that shell completion offers after the command line `words` (the last one is being typed).
  virtual std::vector<std::string> complete(const std::vector<std::string>& words) const;
  /// Whether --format jsonl is one of its formats.
  virtual bool prints_json_lines() const { return false; }

  CommonOptions common;

 protected:
  /// Prints text to stdout (the result). Throws (exit 7) where stdout cannot be written.
  void print(const std::string& text) const;
  /// Throws (exit 7) where one of these files (or one that --save names) could not be written later: before the work, not after it. "" is
  /// none.
  void check_outputs(std::initializer_list<std::string_view> paths) const;
  /// Prints a table in the chosen format (not json) and saves the copies that --save asks for.
  void print(const Table& table) const;
};

int tool_main(int argc, char** argv, std::unique_ptr<Tool> tool);

/// An error as the JSON object of the contract: {"error":{code,file,line,col,key,message,suggestion}}, one a line.
std::string error_json(const Error& error);
/// "galley-train 0.1.0 (commit), oneDNN 3.2, avx2, 2 threads"
std::string version_text(const std::string& tool);

}  // namespace galley::tools
