// Results and errors of every module.
//
// A code names the reaction it allows, not the cause; the cause stands in the message. A message
// says what failed, on which object, and what the user can do. Exceptions of libraries end in the
// adapter that calls them.
//
// `Result<T>` has the names of std::expected, which g++ 12 does not offer in C++20.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "common/check.h"

namespace surefoot {

enum class Code {
  kInvalid,         // the request itself is wrong; the same request will never work: tell the user
  kNotFound,        // the object is not there
  kExists,          // put-if-absent lost: somebody else's object stands there
  kCorrupt,         // this copy must not be used: try the next one
  kStale,           // somebody newer has taken over: step aside, change nothing
  kRetry,           // nothing has happened; the same request may work later
  kRestart,         // this attempt cannot go on: end it and start the next
  kOutcomeUnknown,  // the action may or may not have happened, or may still happen
  kNoSpace,         // memory or disk is full: go on without this tier, or tell the user
};
[[nodiscard]] std::string_view name(Code code);

struct [[nodiscard]] Error {
  Code code;
  std::string message;
};

template <class... Args>
Error error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return SUREFOOT_CHECK(has_value()), std::get<0>(state_); }
  const T& value() const& { return SUREFOOT_CHECK(has_value()), std::get<0>(state_); }
  T&& value() && { return SUREFOOT_CHECK(has_value()), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() & { return SUREFOOT_CHECK(!has_value()), std::get<1>(state_); }
  const Error& error() const& { return SUREFOOT_CHECK(!has_value()), std::get<1>(state_); }
  Error&& error() && { return SUREFOOT_CHECK(!has_value()), std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  Error& error() & { return SUREFOOT_CHECK(error_), *error_; }
  const Error& error() const& { return SUREFOOT_CHECK(error_), *error_; }
  Error&& error() && { return SUREFOOT_CHECK(error_), std::move(*error_); }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

#define SUREFOOT_CONCAT_(a, b) a##b
#define SUREFOOT_CONCAT(a, b) SUREFOOT_CONCAT_(a, b)

// Returns the error of a Status or Result expression from the calling function.
#define SUREFOOT_TRY(expr)                         \
  do {                                             \
    if (auto try_result_ = (expr); !try_result_) { \
      return std::move(try_result_).error();       \
    }                                              \
  } while (false)

// SUREFOOT_ASSIGN(auto x, f()): the value, or return its error.
#define SUREFOOT_ASSIGN(lhs, expr) \
  SUREFOOT_ASSIGN_IMPL_(SUREFOOT_CONCAT(assign_result_, __LINE__), lhs, expr)
#define SUREFOOT_ASSIGN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  if (!tmp) return std::move(tmp).error();    \
  lhs = std::move(tmp).value()

}  // namespace surefoot
