// Sealing: encryption and authentication of what leaves the node for a store.
//
// XChaCha20-Poly1305 (IETF, libsodium). What is sealed is bound to a context: bytes that say what
// it is and where it belongs, not kept with it; opened under any other context, or changed in a
// single bit, it is refused. The nonce is a keyed BLAKE2b of context and content, so equal content
// in an equal place gives equal bytes (parts and manifests stay byte-deterministic), and no nonce
// is ever used for two contents. Bytes: docs/formats.md.
//
// Pure but for the keys' memory: it is locked (where the limits allow), left out of core dumps,
// and wiped when the last owner goes. Immutable after construction, so any threads may share one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace surefoot {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::int64_t kSealPieceBytes = 1 << 20;  // on disk: do not change
// Nonce before, tag behind each piece. On disk: do not change.
inline constexpr std::int64_t kSealNonceBytes = 24;
inline constexpr std::int64_t kSealTagBytes = 16;
inline constexpr std::int64_t kSealExtraBytes = kSealNonceBytes + kSealTagBytes;

// What `plain` bytes take when they are sealed in pieces of kSealPieceBytes; the last is shorter.
[[nodiscard]] std::int64_t sealed_bytes(std::int64_t plain);

// Builds a context. The fields of one purpose always have the same kinds in the same order, so no
// two different lists of fields give the same bytes: texts stand behind their length, numbers have
// eight bytes.
class SealContext {
 public:
  explicit SealContext(std::string_view purpose) { add(purpose); }
  SealContext& add(std::string_view text);
  SealContext& add(std::int64_t number);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class SealKey {
 public:
  // Derives what is needed from `key`; the caller wipes his copy.
  explicit SealKey(std::span<const std::byte, kKeyBytes> key);

  // Names the key and tells nothing about it: 16 lower-case hex digits.
  [[nodiscard]] const std::string& id() const { return id_; }

  // `sealed` has plain.size() + kSealExtraBytes. They must not overlap.
  void seal(const SealContext& context, std::span<const std::byte> plain,
            std::span<std::byte> sealed) const;
  // `plain` has sealed.size() - kSealExtraBytes. False: it was not sealed like this with this key;
  // then `plain` holds nothing of use.
  [[nodiscard]] bool open(const SealContext& context, std::span<const std::byte> sealed,
                          std::span<std::byte> plain) const;

 private:
  struct Secrets;
  struct Wipe {
    void operator()(Secrets* secrets) const;
  };
  std::unique_ptr<Secrets, Wipe> secrets_;
  std::string id_;
};

// The keys of a job: one that seals, and older ones that still open.
class KeyRing {
 public:
  explicit KeyRing(SealKey current, std::vector<SealKey> old = {})
      : current_(std::move(current)), old_(std::move(old)) {}
  [[nodiscard]] const SealKey& current() const { return current_; }
  [[nodiscard]] const SealKey* find(std::string_view id) const;

 private:
  SealKey current_;
  std::vector<SealKey> old_;
};
// Empty: nothing is encrypted.
using Keys = std::shared_ptr<const KeyRing>;

// The key to open what key `id` has sealed. kInvalid says which key that is, which ones there are,
// and what to do: what lies there may be good, so it must be neither used nor removed.
[[nodiscard]] Result<const SealKey*> key_for(const Keys& keys, std::string_view id);
// 16 lower-case hex digits?
[[nodiscard]] bool is_key_id(std::string_view id);

// Overwrites bytes in a way that no compiler leaves out.
void wipe(std::span<std::byte> bytes);

}  // namespace surefoot
