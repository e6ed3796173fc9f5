#include "tests/cli/process.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace galley::testing_cli {
namespace {

struct Settings {
  int64_t file_bytes = 0;  // 0: no limit
  bool unprivileged = false;
};

int start(const std::string& program, const std::vector<std::string>& arguments, const std::string& in, const std::string& out,
          const std::string& err, const Settings& settings = {}) {
  const std::string path = program.starts_with("/") ? program : std::string(GALLEY_BIN_DIR) + "/" + program;
  const int pid = fork();
  if (pid != 0) return pid;
  const auto redirect = [](const std::string& file, int flags, int target) { dup2(open(file.c_str(), flags, 0644), target); };
  redirect(in, O_RDONLY, STDIN_FILENO);
  redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  if (settings.file_bytes > 0) {
    const rlimit limit{static_cast<rlim_t>(settings.file_bytes), static_cast<rlim_t>(settings.file_bytes)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  constexpr uid_t kNobody = 65534;
  if (settings.unprivileged && geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(126);
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  _exit(127);
}

int exit_code(int pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Outcome run_with(const Settings& settings, const std::string& program, const std::vector<std::string>& arguments,
                 const std::string& input = "") {
  const std::string base = testing::TempDir() + "galley-cli-" + std::to_string(getpid());
  write_text(base + ".in", input);
  Outcome outcome;
  outcome.code = exit_code(start(program, arguments, base + ".in", base + ".out", base + ".err", settings));
  outcome.out = read_text(base + ".out");
  outcome.err = read_text(base + ".err");
  for (const char* suffix : {".in", ".out", ".err"}) std::filesystem::remove(base + suffix);
  return outcome;
}

/// Removes the folders of a test when it has passed.
class Cleaner : public testing::EmptyTestEventListener {
 public:
  std::vector<std::string> folders;

 private:
  void OnTestEnd(const testing::TestInfo& test) override {
    for (const std::string& folder : folders) {
      std::error_code ignored;
      if (test.result()->Passed() || test.result()->Skipped()) std::filesystem::remove_all(folder, ignored);
    }
    folders.clear();
  }
};

void remove_at_end(const std::string& folder) {
  static Cleaner* const cleaner = [] {
    auto* made = new Cleaner;
    testing::UnitTest::GetInstance()->listeners().Append(made);  // takes ownership
    return made;
  }();
  cleaner->folders.push_back(folder);
}

}  // namespace

Outcome run(const std::string& program, const std::vector<std::string>& arguments, const std::string& input) {
  return run_with({}, program, arguments, input);
}
Outcome run_limited(const std::string& program, const std::vector<std::string>& arguments, int64_t file_bytes) {
  return run_with({.file_bytes = file_bytes}, program, arguments);
}
Outcome run_unprivileged(const std::string& program, const std::vector<std::string>& arguments) {
  return run_with({.unprivileged = true}, program, arguments);
}
Outcome shell(const std::string& script) { return run("/bin/bash", {"-c", "PATH=" GALLEY_BIN_DIR ":$PATH\n" + script}); }

Child::Child(const std::string& program, const std::vector<std::string>& arguments)
    : pid_(start(program, arguments, "/dev/null", "/dev/null", "/dev/null")) {}
Child::~Child() {
  if (done_) return;
  signal(SIGKILL);
  wait();
}
void Child::signal(int number) { kill(pid_, number); }
int Child::wait() {
  done_ = true;
  return exit_code(pid_);
}

std::string scratch_folder() {
  const auto flat = [](std::string name) {  // names of tests with parameters contain a slash: "Cases/BadInput"
    std::replace(name.begin(), name.end(), '/', '-');
    return name;
  };
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      testing::TempDir() + "galley-" + flat(info->test_suite_name()) + "-" + flat(info->name()) + "-" + std::to_string(getpid());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  remove_at_end(path);
  return path;
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string hub(const std::string& name) { return std::string(GALLEY_SOURCE_DIR) + "/tests/golden/hub/" + name; }

std::string tiny_recipe(const std::string& folder, const std::string& extra) {
  const std::string path = folder + "/tiny.yaml";
  write_text(path,
             "recipe: 1\n"
             "name: tiny\n"
             "threads: 1\n"
             "model: {type: mlp, num_classes: 4, hidden: [8]}\n"
             "data:\n"
             "  train: {source: {type: synthetic, samples: 24}, workers: 1}\n"
             "  val: {source: {type: synthetic, samples: 10}, batch: 4}\n"
             "train:\n"
             "  duration: 6 steps\n"
             "  batch: 8\n"
             "  optimizer: {type: sgd, lr: 0.05, momentum: 0.9}\n"
             "checkpoint: {every: 2 steps, keep: {last: 3}}\n"
             "log: {every: 1 step, tensorboard: false}\n" +
                 extra);
  return path;
}

std::string tensor_bytes(const std::string& path) {
  const std::string bytes = read_text(path);
  uint64_t header = 0;
  if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
  return bytes.size() < 8 + header ? "" : bytes.substr(8 + header);
}

std::string tensor_bytes(const std::string& path, const std::string& tensor) {
  const std::string bytes = read_text(path), values = tensor_bytes(path);
  const nlohmann::json entry = nlohmann::json::parse(bytes.substr(8, bytes.size() - 8 - values.size())).at(tensor);
  const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
  return values.substr(begin, end - begin);
}

std::string safetensors_of(const std::string& header, const std::string& values) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + values;
}

bool wait_for_lines(const std::string& path, int lines) {
  for (int tries = 0; tries < 4000; ++tries) {
    const std::string text = read_text(path);
    if (std::count(text.begin(), text.end(), '\n') >= lines) return true;
    usleep(5000);
  }
  return false;
}

}  // namespace galley::testing_cli
