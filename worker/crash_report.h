// What a worker says when it is asked where it is, or when it dies.
#pragma once

namespace surefoot {

// SIGQUIT prints the stack of the thread that gets it to standard error and goes on; SIGSEGV,
// SIGBUS, SIGFPE, SIGILL and SIGABRT print it and die of the signal. Uses nothing that may lock or
// allocate in the handler; backtrace() is called once here so that its library is loaded.
void install_crash_report();

// SIGUSR1 (forwarded by mpirun at once) and SIGTERM ask for a drain: leave after the step in hand.
void install_drain_signals();
[[nodiscard]] bool drain_signalled();

// This process is ended (SIGKILL) when its parent, mpirun or its daemon, has ended, also by
// SIGKILL: no rank trains on alone. False: the parent is gone already.
[[nodiscard]] bool die_with_parent();

}  // namespace surefoot
