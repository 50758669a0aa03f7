#include "launcher/format.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace surefoot {

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0) return "-" + duration_text(-seconds);
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1023.95 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}iB", value, "KMGTP"[unit]);
}

std::string count_text(std::int64_t count, const std::string& one, const std::string& many) {
  if (count == 0) return "no " + many;
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string number_text(double value) {
  return fmt::format("{:.4g}", value);
}

}  // namespace surefoot
