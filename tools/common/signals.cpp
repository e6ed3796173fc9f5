#include "tools/common/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace galley::tools {
namespace {
std::atomic<int> stop{0};
std::atomic<bool> checkpoint{false};

void on_stop(int signal) {
  if (stop.exchange(signal) != 0) _exit(128 + signal);
}
void on_user(int) { checkpoint = true; }
}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_stop;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_user;
  sigaction(SIGUSR1, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
}

int stop_signal() { return stop; }
bool take_checkpoint_request() { return checkpoint.exchange(false); }

}  // namespace galley::tools
