// The digests that S3 asks for, and how they are written. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot::s3 {

[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view text);  // 32 raw bytes
// 16 raw bytes. kInvalid: this machine allows no MD5 (FIPS); always so, whatever the bytes are.
[[nodiscard]] Result<std::string> md5(std::span<const std::byte> bytes);
[[nodiscard]] std::string base64(std::string_view raw);
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes);  // of zlib, as S3's CRC32

}  // namespace surefoot::s3
