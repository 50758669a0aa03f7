#include "checkpoint/seal.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <new>

namespace surefoot {
namespace {

static_assert(kKeyBytes == crypto_kdf_KEYBYTES);
static_assert(kSealNonceBytes == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
static_assert(kSealTagBytes == crypto_aead_xchacha20poly1305_ietf_ABYTES);

// On disk: do not change, do not renumber.
constexpr const char* kDerivation = "surefoot";  // crypto_kdf's context: eight characters
constexpr std::uint64_t kEncryption = 1;
constexpr std::uint64_t kNonce = 2;
constexpr std::uint64_t kName = 3;
constexpr std::size_t kIdBytes = 8;

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
const unsigned char* raw(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::int64_t sealed_bytes(std::int64_t plain) {
  const std::int64_t pieces = (plain + kSealPieceBytes - 1) / kSealPieceBytes;
  return plain + pieces * kSealExtraBytes;
}

SealContext& SealContext::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  bytes_ += text;
  return *this;
}

SealContext& SealContext::add(std::int64_t number) {
  for (int i = 0; i < 8; ++i)
    bytes_ += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i));
  return *this;
}

struct SealKey::Secrets {
  std::array<unsigned char, crypto_aead_xchacha20poly1305_ietf_KEYBYTES> encryption;
  std::array<unsigned char, crypto_generichash_KEYBYTES> nonce;
};

void SealKey::Wipe::operator()(Secrets* secrets) const {
  sodium_free(secrets);  // wipes it first
}

SealKey::SealKey(std::span<const std::byte, kKeyBytes> key) {
  SUREFOOT_CHECK(sodium_init() >= 0);  // once for all threads, however often it is called
  void* const memory = sodium_malloc(sizeof(Secrets));
  SUREFOOT_CHECK(memory != nullptr);
  secrets_.reset(new (memory) Secrets);
  const auto derive = [&](unsigned char* into, std::size_t bytes, std::uint64_t number) {
    SUREFOOT_CHECK(crypto_kdf_derive_from_key(into, bytes, number, kDerivation, raw(key)) == 0);
  };
  derive(secrets_->encryption.data(), secrets_->encryption.size(), kEncryption);
  derive(secrets_->nonce.data(), secrets_->nonce.size(), kNonce);
  std::array<unsigned char, crypto_kdf_BYTES_MIN> name{};
  derive(name.data(), name.size(), kName);
  for (std::size_t i = 0; i < kIdBytes; ++i) id_ += fmt::format("{:02x}", name[i]);
  sodium_mprotect_readonly(secrets_.get());
}

void SealKey::seal(const SealContext& context, std::span<const std::byte> plain,
                   std::span<std::byte> sealed) const {
  SUREFOOT_CHECK(sealed.size() == plain.size() + kSealExtraBytes);
  const std::string& about = context.bytes();
  const auto nonce = sealed.first(kSealNonceBytes);
  // The context behind its length, so that it cannot run over into the content.
  const std::string head = SealContext(about).bytes();
  crypto_generichash_state state;
  crypto_generichash_init(&state, secrets_->nonce.data(), secrets_->nonce.size(), nonce.size());
  crypto_generichash_update(&state, raw(head), head.size());
  crypto_generichash_update(&state, raw(plain), plain.size());
  crypto_generichash_final(&state, raw(nonce), nonce.size());
  sodium_memzero(&state, sizeof state);
  crypto_aead_xchacha20poly1305_ietf_encrypt(raw(sealed.subspan(kSealNonceBytes)), nullptr,
                                             raw(plain), plain.size(), raw(about), about.size(),
                                             nullptr, raw(nonce), secrets_->encryption.data());
}

bool SealKey::open(const SealContext& context, std::span<const std::byte> sealed,
                   std::span<std::byte> plain) const {
  SUREFOOT_CHECK(sealed.size() >= static_cast<std::size_t>(kSealExtraBytes) &&
                 plain.size() == sealed.size() - kSealExtraBytes);
  const std::string& about = context.bytes();
  const auto nonce = sealed.first(kSealNonceBytes);
  const auto rest = sealed.subspan(kSealNonceBytes);
  return crypto_aead_xchacha20poly1305_ietf_decrypt(raw(plain), nullptr, nullptr, raw(rest),
                                                    rest.size(), raw(about), about.size(),
                                                    raw(nonce), secrets_->encryption.data()) == 0;
}

const SealKey* KeyRing::find(std::string_view id) const {
  if (current_.id() == id) return &current_;
  const auto found =
      std::find_if(old_.begin(), old_.end(), [&](const SealKey& key) { return key.id() == id; });
  return found == old_.end() ? nullptr : &*found;
}

Result<const SealKey*> key_for(const Keys& keys, std::string_view id) {
  if (!keys)
    return error(Code::kInvalid,
                 "encrypted with key {}: name the file of that key in "
                 "checkpoint.encryption.key_file",
                 id);
  if (const SealKey* key = keys->find(id)) return key;
  return error(Code::kInvalid,
               "encrypted with key {}, this is key {}: name the file of that key in "
               "checkpoint.encryption.key_file, or in old_key_files if it was replaced",
               id, keys->current().id());
}

bool is_key_id(std::string_view id) {
  return id.size() == 2 * kIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

void wipe(std::span<std::byte> bytes) {
  sodium_memzero(bytes.data(), bytes.size());
}

}  // namespace surefoot
