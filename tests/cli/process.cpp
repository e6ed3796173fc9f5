#include "tests/cli/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace galley::testing_cli {
namespace {

int start(const std::string& program, const std::vector<std::string>& arguments, const std::string& in, const std::string& out, const std::string& err) {
  const std::string path = std::string(GALLEY_BIN_DIR) + "/" + program;
  const int pid = fork();
  if (pid != 0) return pid;
  const auto redirect = [](const std::string& file, int flags, int target) { dup2(open(file.c_str(), flags, 0644), target); };
  redirect(in, O_RDONLY, STDIN_FILENO);
  redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
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

}  // namespace

Outcome run(const std::string& program, const std::vector<std::string>& arguments, const std::string& input) {
  const std::string base = testing::TempDir() + "galley-cli-" + std::to_string(getpid());
  write_text(base + ".in", input);
  Outcome outcome;
  outcome.code = exit_code(start(program, arguments, base + ".in", base + ".out", base + ".err"));
  outcome.out = read_text(base + ".out");
  outcome.err = read_text(base + ".err");
  for (const char* suffix : {".in", ".out", ".err"}) std::filesystem::remove(base + suffix);
  return outcome;
}

Child::Child(const std::string& program, const std::vector<std::string>& arguments) : pid_(start(program, arguments, "/dev/null", "/dev/null", "/dev/null")) {}
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
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + "galley-" + info->test_suite_name() + "-" + info->name() + "-" + std::to_string(getpid());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace galley::testing_cli
