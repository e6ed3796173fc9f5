#pragma once
// Runs Galley's executables as a user would: a process with arguments, what it printed, and how it ended.

#include <string>
#include <vector>

namespace galley::testing_cli {

struct Outcome {
  int code = -1;       // exit code, or 128 + signal
  std::string out;     // stdout
  std::string err;     // stderr
};

/// Runs build/bin/<program> with the arguments, in the folder `cwd` (empty: a fresh temporary one that outlives the test), stdin from `input`.
Outcome run(const std::string& program, const std::vector<std::string>& arguments, const std::string& input = "");
/// Starts it and returns at once; `finish` waits.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number);
  /// Exit code, or 128 + signal.
  int wait();
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  bool done_ = false;
};

/// A folder of its own for each test, removed and made anew.
std::string scratch_folder();
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

}  // namespace galley::testing_cli
