#include "worker/crash_report.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace surefoot {
namespace {

std::atomic<bool> drain_asked{false};

void print_stack(const char* why) {
  [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, why, std::strlen(why));
  void* frames[64];
  const int count = ::backtrace(frames, 64);
  ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

void on_question(int) {
  print_stack("asked where it is (SIGQUIT):\n");
}

void on_crash(int signal) {
  print_stack("died of a signal, at:\n");
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void on_drain(int) {
  drain_asked.store(true, std::memory_order_relaxed);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_crash_report() {
  void* frame;
  ::backtrace(&frame, 1);
  handle(SIGQUIT, on_question, SA_RESTART);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) handle(signal, on_crash, 0);
}

void install_drain_signals() {
  handle(SIGUSR1, on_drain, SA_RESTART);
  handle(SIGTERM, on_drain, SA_RESTART);
}

bool die_with_parent() {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return parent != 1 && ::getppid() == parent;
}

bool drain_signalled() {
  return drain_asked.load(std::memory_order_relaxed);
}

}  // namespace surefoot
