#pragma once
// Base class of all tools: one executable contains one Tool. tool_main parses the command line, runs the tool and is the only place that
// catches exceptions: errors go to stderr (text, or one JSON object per line with --format json), and the exit code tells their kind.

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/common/command.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"

namespace galley {
class Error;
}

namespace galley::tools {

/// Exit codes in addition to galley::ErrorCode.
inline constexpr int kExitDone = 0;
inline constexpr int kExitGoalMissed = 6;
inline constexpr int kExitInconclusive = 9;
inline constexpr int kExitResumable = 75;

/// Options common to all tools.
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
  /// A one-line description.
  virtual std::string about() const = 0;
  /// Two or three example command lines, one per line.
  virtual std::string examples() const = 0;
  virtual void add_options(Command& command) = 0;
  /// Runs the tool. Returns the exit code; throws galley::Error.
  virtual int run() = 0;
  /// Words that shell completion offers for the command line `words` (the last one is being typed).
  virtual std::vector<std::string> complete(const std::vector<std::string>& words) const;
  /// Whether several ranks may run the tool together (mpirun, srun); others are refused there.
  virtual bool uses_ranks() const { return false; }
  /// Whether the tool supports --format jsonl.
  virtual bool prints_json_lines() const { return false; }

  CommonOptions common;

 protected:
  /// Prints text (the result) to stdout. Throws Error (exit code 7) if stdout cannot be written.
  void print(const std::string& text) const;
  /// Throws Error (exit code 7) if one of these files or a file of --save cannot be written; to be called before the work. "" means no
  /// file.
  void check_outputs(std::initializer_list<std::string_view> paths) const;
  /// Prints a table in the selected format (not JSON).
  void print(const Table& table) const;
  /// Writes the files of --save: `json` with its newline, or the table.
  void save(const std::string& json, const Table& table) const;
  /// Writes the files of --save, and prints the result in the selected format.
  void save_and_print(const std::string& json, const Table& table) const;
};

int tool_main(int argc, char** argv, std::unique_ptr<Tool> tool);

/// An error as JSON: {"error":{code,file,line,col,key,message,suggestion}}, one object per line.
std::string error_json(const Error& error);
/// "galley-train 0.1.0 (commit), oneDNN 3.2, avx2, 2 threads"
std::string version_text(const std::string& tool);

}  // namespace galley::tools
