// Lists of digests as one string of hex digits, 32 a digest.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/digest.h"

namespace surefoot {

[[nodiscard]] inline std::string to_hex(std::span<const Digest> digests) {
  std::string text;
  text.reserve(digests.size() * 32);
  for (const Digest& digest : digests) text += digest.hex();
  return text;
}

[[nodiscard]] inline std::optional<std::vector<Digest>> digests_from_hex(std::string_view text) {
  if (text.size() % 32 != 0) return std::nullopt;
  std::vector<Digest> digests;
  digests.reserve(text.size() / 32);
  for (std::size_t at = 0; at < text.size(); at += 32) {
    const auto digest = Digest::from_hex(text.substr(at, 32));
    if (!digest) return std::nullopt;
    digests.push_back(*digest);
  }
  return digests;
}

}  // namespace surefoot
