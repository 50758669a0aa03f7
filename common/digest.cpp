#include "common/digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/file.h"

namespace surefoot {
namespace {

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t out;
  XXH128_canonicalFromHash(&out, hash);
  Digest digest;
  static_assert(sizeof out.digest == sizeof digest.bytes);
  std::memcpy(digest.bytes.data(), out.digest, sizeof out.digest);
  return digest;
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    SUREFOOT_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void update(const void* data, std::size_t size) {
    SUREFOOT_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }
  std::string finish() {
    std::array<std::uint8_t, 32> out{};
    unsigned size = out.size();
    SUREFOOT_CHECK(EVP_DigestFinal_ex(context_.get(), out.data(), &size) == 1);
    return to_hex(out);
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string Digest::hex() const {
  return to_hex(bytes);
}

std::optional<Digest> Digest::from_hex(std::string_view hex) {
  Digest digest;
  if (hex.size() != digest.bytes.size() * 2) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    int nibble = 0;
    if (c >= '0' && c <= '9') {
      nibble = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      nibble = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    digest.bytes[i / 2] = static_cast<std::uint8_t>(digest.bytes[i / 2] << 4 | nibble);
  }
  return digest;
}

Digest digest(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}
Digest digest(std::string_view text) {
  return digest(as_bytes(text));
}

Digest copy_and_digest(std::span<const std::byte> from, std::span<std::byte> to) {
  SUREFOOT_CHECK(from.size() == to.size());
  // Small enough that the second reading comes from the first-level cache, large enough to amortise
  // the call.
  constexpr std::size_t kBlock = 16 * 1024;
  Digester digester;
  for (std::size_t at = 0; at < from.size(); at += kBlock) {
    const std::size_t size = std::min(kBlock, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, size);
    digester.update(to.subspan(at, size));
  }
  return digester.finish();
}

Digester::Digester() : state_(XXH3_createState()) {
  SUREFOOT_CHECK(state_ != nullptr);
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}
Digester::~Digester() {
  XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}
void Digester::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}
void Digester::update(std::string_view text) {
  update(as_bytes(text));
}
Digest Digester::finish() const {
  return canonical(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

std::string sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.finish();
}

Result<std::string> sha256_of_file(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return error(Code::kNotFound, "cannot open {}: {}", path.string(), errno_text(errno));
  Sha256 hash;
  std::vector<char> block(1 << 20);
  for (;;) {
    const ssize_t got = ::read(fd.get(), block.data(), block.size());
    if (got < 0) return error(Code::kRetry, "cannot read {}: {}", path.string(), errno_text(errno));
    if (got == 0) return hash.finish();
    hash.update(block.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace surefoot
