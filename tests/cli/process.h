#pragma once
// Runs Galley's executables as a user would, and records their output and exit code.

#include <cstdint>
#include <string>
#include <vector>

namespace galley::testing_cli {

struct Outcome {
  int code = -1;    // exit code, or 128 + signal
  std::string out;  // stdout
  std::string err;  // stderr
};

/// Runs build/bin/<program> with the arguments, stdin from `input`.
Outcome run(const std::string& program, const std::vector<std::string>& arguments, const std::string& input = "");
/// The same with a limit on the size of every file it writes (RLIMIT_FSIZE): what a full disk looks like to a process.
Outcome run_limited(const std::string& program, const std::vector<std::string>& arguments, int64_t file_bytes);
/// Runs it as the user nobody if this process runs as root.
Outcome run_unprivileged(const std::string& program, const std::vector<std::string>& arguments);
/// Runs a bash script with the tools on its PATH.
Outcome shell(const std::string& script);
/// Starts a program without waiting for it; `finish` waits.
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

/// A separate folder for each test, removed at the end if the test passes.
std::string scratch_folder();
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);
/// The folder NAME of tests/golden/hub.
std::string hub(const std::string& name);

/// A recipe that trains in milliseconds: 24 samples, 6 steps of 8, one thread, a checkpoint every 2 steps, a log row every step.
std::string tiny_recipe(const std::string& folder, const std::string& extra = "");
/// The bytes after the header of a safetensors file. The metadata in the headers of two runs may differ.
std::string tensor_bytes(const std::string& path);
/// The bytes of one tensor.
std::string tensor_bytes(const std::string& path, const std::string& tensor);
/// A safetensors file with this header text and these values.
std::string safetensors_of(const std::string& header, const std::string& values);
/// Waits until a file has that many lines; false after 20 s.
bool wait_for_lines(const std::string& path, int lines);

}  // namespace galley::testing_cli
