#include "tools/common/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

namespace galley::tools {
namespace {
std::atomic<int> stop{0};
std::atomic<bool> checkpoint{false}, profile{false};
std::atomic<bool> noticed{false};  // the launcher ends the job
std::atomic<int> launcher{0};

/// What a second signal says: made before, since a handler may allocate nothing.
std::string last_words;

void on_stop(int signal) {
  if (stop.exchange(signal) == 0 || noticed) return;
  static_cast<void>(!::write(STDERR_FILENO, last_words.data(), last_words.size()));
  _exit(128 + signal);
}
void on_continue(int, siginfo_t* info, void*) {
  if (info->si_pid != launcher) return;  // a shell, or a debugger
  noticed = true;
  int none = 0;
  stop.compare_exchange_strong(none, SIGTERM);
}
void on_user(int signal) { (signal == SIGUSR1 ? checkpoint : profile) = true; }
}  // namespace

void install_signal_handlers(bool json) {
  const std::string text =
      "stopped at once; a file that was being written may be left under a temporary name (NAME.tmp-...), which galley-train removes "
      "from RUN at its next start";
  last_words = (json ? "{\"warning\":\"" + text + "\"}" : "warning: " + text) + "\n";
  struct sigaction action{};
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_stop;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_user;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGUSR2, &action, nullptr);
  // A closed pipe must not end a training when it prints messages; for the result on stdout, Tool::print ends the tool.
  std::signal(SIGPIPE, SIG_IGN);
  // Exceeding the file size limit must be a write error (EFBIG), not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

void follow_launcher(int pid) {
  launcher = pid;
  struct sigaction action{};
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  action.sa_sigaction = on_continue;
  sigaction(SIGCONT, &action, nullptr);
}

int stop_signal() { return stop; }

void check_stop() {
  if (stop != 0) throw Stopped();
}
bool take_checkpoint_request() { return checkpoint.exchange(false); }
bool take_profile_request() { return profile.exchange(false); }

}  // namespace galley::tools
