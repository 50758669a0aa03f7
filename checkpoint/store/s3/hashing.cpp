#include "checkpoint/store/s3/hashing.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <zlib.h>

#include "common/check.h"

namespace surefoot::s3 {

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &size);
  SUREFOOT_CHECK(made != nullptr);
  out.resize(size);
  return out;
}

Result<std::string> md5(std::span<const std::byte> bytes) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(out.data()), &size,
                 EVP_md5(), nullptr) != 1)
    return error(Code::kInvalid,
                 "this machine does not allow MD5: set checkpoint.s3.checksum to crc32 or none");
  out.resize(size);
  return out;
}

std::string base64(std::string_view raw) {
  std::string out((raw.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(raw.data()),
                                   static_cast<int>(raw.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::uint32_t crc32(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace surefoot::s3
