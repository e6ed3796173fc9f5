#pragma once
// Signals as flags: the first Ctrl-C or SIGTERM requests a stop at the end of the step, the second ends the process immediately. SIGUSR1
// requests a checkpoint, SIGUSR2 a profile of the next steps.

namespace galley::tools {

void install_signal_handlers();
/// The signal that requested a stop, or 0.
int stop_signal();
/// True once for every SIGUSR1 received.
bool take_checkpoint_request();
/// True once for every SIGUSR2 received.
bool take_profile_request();

}  // namespace galley::tools
