#include "configs/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "configs/yaml_tree.h"

namespace surefoot::configs {
namespace {

struct UnitName {
  std::string_view name;
  std::int64_t factor;
};
// Descending, so that formatting takes the largest that divides.
constexpr std::array<UnitName, 5> kDurationUnits = {
    {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};
constexpr std::array<UnitName, 5> kSizeUnits = {
    {{"TiB", 1LL << 40}, {"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}, {"B", 1}}};
// Above this a double no longer holds every whole number.
constexpr double kExact = 9007199254740992.0;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

template <std::size_t N>
Result<std::int64_t> parse_with_unit(std::string_view text, const std::array<UnitName, N>& units,
                                     std::string_view what) {
  const std::size_t split =
      std::find_if_not(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.'; }) -
      text.begin();
  const std::string_view digits = text.substr(0, split);
  const std::string_view unit = text.substr(split);
  if (digits.empty()) return error(Code::kInvalid, "found {}, which is no {}", quote(text), what);
  if (unit.empty()) return error(Code::kInvalid, "found {}, a number without a unit", quote(text));
  const auto* known =
      std::find_if(units.begin(), units.end(), [&](const UnitName& u) { return u.name == unit; });
  if (known == units.end())
    return error(Code::kInvalid, "found {}, whose unit {} is not known", quote(text), quote(unit));
  const Result<double> number = parse_number(digits);
  if (!number) return error(Code::kInvalid, "found {}, which is no {}", quote(text), what);
  const double value = *number * static_cast<double>(known->factor);
  if (value > kExact) return error(Code::kInvalid, "found {}, which is too large", quote(text));
  // "1.1s" is 1100.0000000000002 ms in doubles: meant is the whole number.
  if (std::abs(value - std::round(value)) > 1e-6) {
    return error(Code::kInvalid, "found {}, which is no whole number of {}", quote(text),
                 units.back().name);
  }
  return static_cast<std::int64_t>(std::round(value));
}

template <std::size_t N>
std::string format_with_unit(std::int64_t value, const std::array<UnitName, N>& units) {
  for (const UnitName& unit : units) {
    if (value != 0 && value % unit.factor == 0)
      return fmt::format("{}{}", value / unit.factor, unit.name);
  }
  return fmt::format("0{}", units.back().name);
}

}  // namespace

Result<double> parse_number(std::string_view text) {
  // from_chars also takes "inf", "nan", and leaves the rest of "1x" unread.
  const bool is_plausible = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
  });
  std::string_view digits = text;
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (!is_plausible || code == std::errc::invalid_argument ||
      (code == std::errc() && end != digits.data() + digits.size())) {
    return error(Code::kInvalid, "found {}, which is no number", quote(text));
  }
  if (code != std::errc() || !std::isfinite(value))
    return error(Code::kInvalid, "found {}, which is out of range", quote(text));
  return value;
}

Result<std::int64_t> parse_integer(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
  if (!digits.empty() && std::all_of(digits.begin(), digits.end(), is_digit)) {
    // 010 is ten in YAML 1.2 and eight in 1.1.
    if (digits.size() > 1 && digits.front() == '0')
      return error(Code::kInvalid, "found {}, a number with leading zeros", quote(text));
    std::int64_t value = 0;
    const std::string_view number = text.starts_with('+') ? digits : text;
    const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (code != std::errc())
      return error(Code::kInvalid, "found {}, which is out of range", quote(text));
    return value;
  }
  const Result<double> number = parse_number(text);
  if (!number) return number.error();
  if (*number != std::round(*number))
    return error(Code::kInvalid, "found {}, which is no whole number", quote(text));
  if (std::abs(*number) > kExact)
    return error(Code::kInvalid, "found {}, which is out of range", quote(text));
  return static_cast<std::int64_t>(*number);
}

Result<std::int64_t> parse_duration(std::string_view text) {
  return parse_with_unit(text, kDurationUnits, "duration");
}
Result<std::int64_t> parse_size(std::string_view text) {
  return parse_with_unit(text, kSizeUnits, "size");
}

std::string format_number(double value) {
  // Plain digits as far as they are exact and short: "1000000", not "1e+06".
  if (value == std::round(value) && std::abs(value) < 1e9)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  std::array<char, 32> buffer;
  const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  SUREFOOT_CHECK(code == std::errc());
  return {buffer.data(), end};
}
std::string format_duration(std::int64_t milliseconds) {
  return format_with_unit(milliseconds, kDurationUnits);
}
std::string format_size(std::int64_t bytes) {
  return format_with_unit(bytes, kSizeUnits);
}

}  // namespace surefoot::configs
