// Digests: XXH3-128 for integrity on every hop, SHA-256 for the hashes users see.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot {

// XXH3-128 of some bytes, in its canonical (big-endian) byte order. Plain bytes: it lies in shared
// memory and on disk.
struct Digest {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const Digest&, const Digest&) = default;
  [[nodiscard]] std::string hex() const;  // 32 lower-case digits
  [[nodiscard]] static std::optional<Digest> from_hex(std::string_view hex);
};

[[nodiscard]] Digest digest(std::span<const std::byte> bytes);
[[nodiscard]] Digest digest(std::string_view text);

// Copies `from` to `to` (same size, not overlapping) and digests it in one pass, so that memory is
// read once.
[[nodiscard]] Digest copy_and_digest(std::span<const std::byte> from, std::span<std::byte> to);

// A digest of bytes that come in pieces.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  [[nodiscard]] Digest finish() const;

 private:
  void* state_;
};

// 64 lower-case hex digits.
[[nodiscard]] std::string sha256(std::span<const std::byte> bytes);
[[nodiscard]] Result<std::string> sha256_of_file(const std::filesystem::path& path);

[[nodiscard]] inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace surefoot
