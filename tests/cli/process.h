#pragma once
// Runs Galley's executables as a user would: a process with arguments, what it printed, and how it ended.

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
/// Runs it without the rights of root, if this process has them: as the user nobody.
Outcome run_unprivileged(const std::string& program, const std::vector<std::string>& arguments);
/// Runs a script of bash; the tools are on its PATH.
Outcome shell(const std::string& script);
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

/// A folder of its own for each test, removed at its end where the test passes.
std::string scratch_folder();
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

/// A recipe that trains in milliseconds: 24 samples, 6 steps of 8, one thread, a checkpoint every 2 steps, a row every step.
std::string tiny_recipe(const std::string& folder, const std::string& extra = "");
/// The values of a safetensors file: what follows its header, in which only the metadata of two runs may differ.
std::string tensor_bytes(const std::string& path);
/// The same of one tensor.
std::string tensor_bytes(const std::string& path, const std::string& tensor);
/// A safetensors file from the text of its header and its values.
std::string safetensors_of(const std::string& header, const std::string& values);
/// Waits until a file has that many lines; false after 20 s.
bool wait_for_lines(const std::string& path, int lines);

}  // namespace galley::testing_cli
