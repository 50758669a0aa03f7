// Sealing, contexts, keys and key files.
#include "checkpoint/seal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "checkpoint/hex_digests.h"
#include "checkpoint/key_file.h"
#include "checkpoint/testing/temporary_folder.h"
#include "checkpoint/testing/test_keys.h"
#include "common/digest.h"

namespace surefoot::testing {
namespace {

std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> seal(const SealKey& key, const SealContext& context,
                            std::span<const std::byte> plain) {
  std::vector<std::byte> sealed(plain.size() + kSealExtraBytes);
  key.seal(context, plain, sealed);
  return sealed;
}
bool opens(const SealKey& key, const SealContext& context, std::span<const std::byte> sealed,
           std::span<const std::byte> plain) {
  std::vector<std::byte> opened(sealed.size() - kSealExtraBytes);
  return key.open(context, sealed, opened) &&
         std::equal(opened.begin(), opened.end(), plain.begin(), plain.end());
}

TEST(Seal, OpensWhatWasSealedOfAnySize) {
  const SealKey key = test_key(1);
  const SealContext context("test");
  for (const std::size_t size :
       {0UL, 1UL, 15UL, 16UL, 17UL, 4096UL, std::size_t{kSealPieceBytes}}) {
    const auto plain = some_bytes(size, size);
    EXPECT_TRUE(opens(key, context, seal(key, context, plain), plain)) << size;
  }
}

TEST(Seal, AnyFlippedBitIsRefused) {
  const SealKey key = test_key(1);
  const SealContext context("test");
  const auto plain = some_bytes(50, 2);
  const auto sealed = seal(key, context, plain);
  for (std::size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    auto damaged = sealed;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(opens(key, context, damaged, plain)) << bit;
  }
  for (std::size_t size = kSealExtraBytes; size < sealed.size(); ++size)
    EXPECT_FALSE(opens(key, context, std::span(sealed).first(size), plain));
}

TEST(Seal, OpensOnlyWithItsKeyInItsPlace) {
  const SealKey key = test_key(1);
  const auto plain = some_bytes(100, 3);
  const SealContext here = SealContext("test").add("job").add(7);
  const auto sealed = seal(key, here, plain);
  EXPECT_TRUE(opens(key, SealContext("test").add("job").add(7), sealed, plain));
  EXPECT_FALSE(opens(test_key(2), here, sealed, plain));
  EXPECT_FALSE(opens(key, SealContext("test").add("job").add(8), sealed, plain));
  EXPECT_FALSE(opens(key, SealContext("tests").add("job").add(7), sealed, plain));
  EXPECT_FALSE(opens(key, SealContext("test").add("job"), sealed, plain));
  EXPECT_FALSE(opens(key, SealContext("test").add("job").add(7).add(0), sealed, plain));
}

// Equal content in an equal place: equal bytes. Anything else: another nonce.
TEST(Seal, ANonceBelongsToOneContentInOnePlace) {
  const SealKey key = test_key(1);
  const SealContext context("test");
  const auto plain = some_bytes(100, 4);
  EXPECT_EQ(seal(key, context, plain), seal(key, SealContext("test"), plain));
  EXPECT_EQ(seal(key, context, plain), seal(test_key(1), context, plain));
  std::set<std::vector<std::byte>> nonces;
  std::size_t sealed = 0;
  const auto add = [&](const SealKey& by, const SealContext& in, std::span<const std::byte> what) {
    auto bytes = seal(by, in, what);
    bytes.resize(kSealNonceBytes);
    nonces.insert(bytes);
    ++sealed;
  };
  add(key, context, plain);
  add(test_key(2), context, plain);
  add(key, SealContext("other"), plain);
  for (std::int64_t number = 0; number < 50; ++number)
    add(key, SealContext("test").add(number), plain);
  for (std::size_t bit = 0; bit < plain.size() * 8; ++bit) {
    auto changed = plain;
    changed[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    add(key, context, changed);
  }
  // The border between context and content.
  add(key, SealContext("ab"), as_bytes("c"));
  add(key, SealContext("a"), as_bytes("bc"));
  add(key, SealContext(""), as_bytes("abc"));
  EXPECT_EQ(nonces.size(), sealed);
}

TEST(Seal, DifferentFieldsGiveDifferentContexts) {
  std::set<std::string> contexts;
  std::size_t count = 0;
  const auto add = [&](const SealContext& context) {
    contexts.insert(context.bytes());
    ++count;
  };
  add(SealContext("").add("ab").add("c"));
  add(SealContext("").add("a").add("bc"));
  add(SealContext("").add("abc").add(""));
  add(SealContext("a").add("b").add("c"));
  add(SealContext("").add(1).add(2));
  add(SealContext("").add(2).add(1));
  add(SealContext("").add(-1).add(1));
  add(SealContext("").add(std::int64_t{1} << 32).add(1));
  EXPECT_EQ(contexts.size(), count);
}

// Fixed by what lies in stores: docs/formats.md says how to compute it by other means.
TEST(Seal, TheFormatStays) {
  std::array<std::byte, kKeyBytes> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const SealKey key(bytes);
  const auto sealed = seal(key, SealContext("purpose").add("job").add(20), as_bytes("plain text"));
  EXPECT_EQ(key.id(), "e64ac18c8d50e0f6");
  EXPECT_EQ(to_hex({reinterpret_cast<const char*>(sealed.data()), sealed.size()}),
            "8673a8a8dea43dcbc58a1227db71113ecfc8dc8d80aca85b7a51d541a42fa534"
            "c513dda7da7cd3719af4d87331142130a944");
}

TEST(Seal, SizesAreThoseOfItsPieces) {
  EXPECT_EQ(sealed_bytes(0), 0);
  EXPECT_EQ(sealed_bytes(1), 41);
  EXPECT_EQ(sealed_bytes(kSealPieceBytes), kSealPieceBytes + 40);
  EXPECT_EQ(sealed_bytes(kSealPieceBytes + 1), kSealPieceBytes + 81);
  EXPECT_EQ(sealed_bytes(4 * kSealPieceBytes), 4 * (kSealPieceBytes + 40));
}

TEST(Keys, AreFoundByTheirIds) {
  const std::string first = test_key(1).id();
  const std::string second = test_key(2).id();
  EXPECT_NE(first, second);
  EXPECT_EQ(first, test_key(1).id());
  EXPECT_TRUE(is_key_id(first));
  EXPECT_FALSE(is_key_id(first.substr(1)));
  EXPECT_FALSE(is_key_id("0123456789abcdeF"));
  std::vector<SealKey> old;
  old.push_back(test_key(2));
  const Keys keys = std::make_shared<const KeyRing>(test_key(1), std::move(old));
  EXPECT_EQ((*key_for(keys, first))->id(), first);
  EXPECT_EQ((*key_for(keys, second))->id(), second);
  EXPECT_EQ(keys->current().id(), first);
}

TEST(Keys, AMissingOrWrongKeyIsInvalidAndNamesTheKeys) {
  const std::string id = test_key(9).id();
  const auto missing = key_for(nullptr, id);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kInvalid);
  EXPECT_NE(missing.error().message.find(id), std::string::npos);
  const auto wrong = key_for(test_keys(1), id);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
  EXPECT_NE(wrong.error().message.find(id), std::string::npos);
  EXPECT_NE(wrong.error().message.find(test_key(1).id()), std::string::npos);
}

class KeyFileTest : public ::testing::Test {
 protected:
  TemporaryFolder folder;
  std::filesystem::path path = folder.path() / "job.key";

  void write(std::size_t size, mode_t mode = 0600) {
    const auto bytes = some_bytes(size, 1);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  void expect_refused(const std::string& why) {
    const auto key = read_key_file(path);
    ASSERT_FALSE(key) << why;
    EXPECT_EQ(key.error().code, Code::kInvalid);
    EXPECT_NE(key.error().message.find(path.string()), std::string::npos);
    EXPECT_NE(key.error().message.find(why), std::string::npos) << key.error().message;
  }
};

TEST_F(KeyFileTest, OfThirtyTwoBytesIsRead) {
  write(32);
  for (const mode_t mode : {0600, 0400, 0700}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const auto key = read_key_file(path);
    ASSERT_TRUE(key) << key.error().message;
    const auto bytes = some_bytes(32, 1);
    EXPECT_EQ(key->id(), SealKey(std::span(bytes).first<kKeyBytes>()).id());
  }
}

TEST_F(KeyFileTest, ThatOthersCouldReadIsRefused) {
  write(32);
  for (const mode_t mode : {0640, 0604, 0644, 0620, 0601, 0777}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    expect_refused("chmod 600");
  }
}

TEST_F(KeyFileTest, OfAnotherLengthIsRefused) {
  for (const std::size_t size : {0, 1, 31, 33, 64, 5000}) {
    write(size);
    expect_refused("32 bytes");
  }
}

TEST_F(KeyFileTest, ThatIsMissingOrNoFileIsRefusedAtOnce) {
  expect_refused("No such file");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_refused("no regular file");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  expect_refused("no regular file");
}

TEST_F(KeyFileTest, KeysOfAJobAreItsNewAndItsOldOnes) {
  config::Checkpoint checkpoint;
  EXPECT_EQ(*read_keys(checkpoint), nullptr);
  write(32);
  checkpoint.mutable_encryption()->set_key_file(path.string());
  auto keys = read_keys(checkpoint);
  ASSERT_TRUE(keys);
  EXPECT_EQ((*keys)->current().id(), read_key_file(path)->id());
  checkpoint.mutable_encryption()->add_old_key_files((folder.path() / "none").string());
  EXPECT_FALSE(read_keys(checkpoint));
  checkpoint.mutable_encryption()->set_old_key_files(0, path.string());
  EXPECT_TRUE(read_keys(checkpoint));
}

}  // namespace
}  // namespace surefoot::testing
