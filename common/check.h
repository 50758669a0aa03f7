// SUREFOOT_CHECK: for our own bugs only. On in every build, never reachable from input of a user, a
// disk or a network.
#pragma once

namespace surefoot::internal {
// Prints the place and the condition to standard error and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace surefoot::internal

#define SUREFOOT_CHECK(condition) \
  ((condition) ? void(0) : ::surefoot::internal::check_failed(#condition, __FILE__, __LINE__))
