// Numbers, durations and sizes as they are written in a job file. Pure.
//
// Parsing is ours: yaml-cpp goes through streams and the locale, and takes "0x10", ".inf" and
// "1e3x" each in its own way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot::configs {

// The error's message says what was found and what is wrong with it ("found "5", a number without a
// unit").
[[nodiscard]] Result<std::int64_t> parse_integer(
    std::string_view text);  // "300", "1e6"; no fraction, no leading zeros
[[nodiscard]] Result<double> parse_number(std::string_view text);          // "1e-3", ".5"; finite
[[nodiscard]] Result<std::int64_t> parse_duration(std::string_view text);  // milliseconds
[[nodiscard]] Result<std::int64_t> parse_size(std::string_view text);      // bytes

// Shortest text that the parser above reads back to the same value.
[[nodiscard]] std::string format_number(double value);
[[nodiscard]] std::string format_duration(std::int64_t milliseconds);
[[nodiscard]] std::string format_size(std::int64_t bytes);

// Regular expressions for JSON Schema.
inline constexpr std::string_view kDurationPattern = "^[0-9]+([.][0-9]+)?(ms|s|m|h|d)$";
inline constexpr std::string_view kSizePattern = "^[0-9]+([.][0-9]+)?(B|KiB|MiB|GiB|TiB)$";

}  // namespace surefoot::configs
