#pragma once
// Signals as flags: the first Ctrl-C or SIGTERM asks for a stop at the end of the step; a second says what may be left behind, and leaves
// at once. SIGUSR1 asks for a checkpoint, SIGUSR2 for a profile of the next steps.

namespace galley::tools {

/// `json`: messages on stderr are JSON objects, one per line.
void install_signal_handlers(bool json);
/// Under mpirun, whose process id this is: its SIGCONT, which it sends one second before SIGTERM, asks for a stop too, and the SIGTERM that
/// follows is not taken as a second signal.
void follow_launcher(int pid);
/// The signal that asked for a stop, or 0.
int stop_signal();
/// Thrown by check_stop; tool_main catches it, and the exit code is 128 + the signal.
struct Stopped {};
/// Throws Stopped after a signal that asks for a stop. For work that leaves nothing half-done.
void check_stop();
/// True once for every SIGUSR1 received.
bool take_checkpoint_request();
/// True once for every SIGUSR2 received.
bool take_profile_request();

}  // namespace galley::tools
