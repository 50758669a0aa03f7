// Lists of digests as one string of hex digits, 32 a digest; and any bytes, two digits each.
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

[[nodiscard]] inline std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

[[nodiscard]] inline std::optional<std::string> bytes_from_hex(std::string_view text) {
  const auto value = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t at = 0; at < text.size(); at += 2) {
    const int high = value(text[at]);
    const int low = value(text[at + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace surefoot
