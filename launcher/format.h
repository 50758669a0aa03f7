// Quantities as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"

namespace surefoot {

// "0.35 s", "12.4 s", "3 min 20 s", "2 h 5 min", "3 d 4 h".
[[nodiscard]] std::string duration_text(double seconds);
// "512 B", "3.2 MiB", "1.5 GiB".
[[nodiscard]] std::string bytes_text(std::int64_t bytes);
// "1 attempt", "2 attempts", "no attempts".
[[nodiscard]] std::string count_text(std::int64_t count, const std::string& one,
                                     const std::string& many);
// With four digits that matter: "5.541", "0.002371", "nan".
[[nodiscard]] std::string number_text(double value);

}  // namespace surefoot
