// The contract suite over each store, and what is special about files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/store/file/file_store.h"
#include "checkpoint/store/store_contract.h"
#include "checkpoint/testing/memory_file_ops.h"
#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/temporary_folder.h"

namespace surefoot::testing {
namespace {

class MemoryPlace : public StorePlace {
 public:
  std::unique_ptr<Store> open() override { return std::make_unique<Forwarding>(store_); }

 private:
  class Forwarding : public Store {
   public:
    explicit Forwarding(MemoryStore& store) : store_(store) {}
    Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                         Time deadline) override {
      return store_.put_if_absent(name, bytes, source, deadline);
    }
    Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
                Time deadline) override {
      return store_.read(name, offset, into, deadline);
    }
    Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override {
      return store_.list(prefix, deadline);
    }
    Status remove(const std::string& name, Time deadline) override {
      return store_.remove(name, deadline);
    }
    [[nodiscard]] std::string url() const override { return store_.url(); }

   private:
    MemoryStore& store_;
  };
  MemoryStore store_;
};

class DiskPlace : public StorePlace {
 public:
  std::unique_ptr<Store> open() override {
    return FileStore::open(folder_.path() / "to" / "job").value();
  }

 private:
  TemporaryFolder folder_;
};

class MemoryFilePlace : public StorePlace {
 public:
  std::unique_ptr<Store> open() override { return FileStore::open("/to/job", ops_).value(); }

 private:
  MemoryFileOps ops_;
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreContract,
    ::testing::Values(StoreFixture{"Memory", [] { return std::make_unique<MemoryPlace>(); }, false},
                      StoreFixture{"File", [] { return std::make_unique<DiskPlace>(); }},
                      StoreFixture{"FileOnMemory",
                                   [] { return std::make_unique<MemoryFilePlace>(); }, false}),
    [](const auto& info) { return info.param.name; });

const Time kLater = Time::max();

TEST(FileStore, MakesItsFolderWithParents) {
  const TemporaryFolder folder;
  ASSERT_TRUE(FileStore::open(folder.path() / "a" / "b" / "c"));
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() / "a" / "b" / "c"));
}

TEST(FileStore, LooksWithoutMakingAnything) {
  const TemporaryFolder folder;
  const auto nothing = FileStore::open(folder.path() / "job", true);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "job"));
  auto writer = FileStore::open(folder.path() / "job");
  ASSERT_TRUE(put_if_absent(**writer, "a", "text", kLater));
  auto reader = FileStore::open(folder.path() / "job", true);
  ASSERT_TRUE(reader);
  EXPECT_EQ(*read_object(**reader, "a", 10, kLater), "text");
  EXPECT_EQ(put_if_absent(**reader, "b", "text", kLater).error().code, Code::kInvalid);
  EXPECT_EQ((*reader)->remove("a", kLater).error().code, Code::kInvalid);
}

TEST(FileStore, RemovesOldTemporariesAndLeavesYoungOnes) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "step-1");
  const auto old = folder.path() / "step-1" / ".tmp-old";
  const auto young = folder.path() / "step-1" / ".tmp-young";
  for (const auto& path : {old, young}) std::ofstream(path) << "half";
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(11));
  auto store = FileStore::open(folder.path());
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(young));
  EXPECT_TRUE((*store)->list("", kLater)->empty());
}

TEST(FileStore, LeavesNoTemporaryBehind) {
  const TemporaryFolder folder;
  auto store = FileStore::open(folder.path());
  ASSERT_TRUE(put_if_absent(**store, "a", "text", kLater));
  EXPECT_FALSE(put_if_absent(**store, "a", "other", kLater));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1);
}

struct ErrnoCase {
  int number;
  Code code;
};

TEST(FileStore, WritesNothingWhereTheObjectIsThere) {
  TemporaryFolder folder;
  const auto store = FileStore::open(folder.path());
  ASSERT_TRUE(store);
  const Time later = now() + std::chrono::minutes(1);
  ASSERT_TRUE(put_if_absent(**store, "a/b", "content", later));
  int asked = 0;
  const auto source = [&]() -> Result<std::span<const std::byte>> {
    ++asked;
    return std::span<const std::byte>();
  };
  EXPECT_EQ((*store)->put_if_absent("a/b", 0, source, later).error().code, Code::kExists);
  EXPECT_EQ(asked, 0);
}

TEST(FileStore, SaysWhatTheUserCanDoAboutEachError) {
  for (const ErrnoCase& row : {ErrnoCase{ENOSPC, Code::kNoSpace}, ErrnoCase{EDQUOT, Code::kNoSpace},
                               ErrnoCase{EROFS, Code::kInvalid}, ErrnoCase{EACCES, Code::kInvalid},
                               ErrnoCase{EIO, Code::kRetry}}) {
    // Each operation of a put, up to the link.
    for (int operation = 1; operation < 100; ++operation) {
      MemoryFileOps ops;
      auto store = FileStore::open("/to/job", ops);
      ops.fail_at(operation, MemoryFileOps::Fault::kError, row.number);
      const auto outcome = put_if_absent(**store, "step-1/a", "text", kLater);
      if (!ops.fired()) break;
      if (outcome) continue;  // the removal of the temporary failed
      if (outcome.error().code != Code::kOutcomeUnknown) {
        EXPECT_EQ(outcome.error().code, row.code) << operation;
      }
      EXPECT_NE(outcome.error().message.find("/to/job"), std::string::npos);
    }
  }
}

TEST(FileStore, SaysThatAFileSystemHasNoHardLinks) {
  class NoLinks : public MemoryFileOps {
   public:
    std::int64_t link(const std::string&, const std::string&) override { return -EPERM; }
  };
  NoLinks ops;
  auto store = FileStore::open("/to/job", ops);
  const auto outcome = put_if_absent(**store, "a", "text", kLater);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kInvalid);
}

TEST(FileStore, FailsClearlyWhereItMayNotWrite) {
  const TemporaryFolder folder;
  std::filesystem::permissions(
      folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec |
                         std::filesystem::perms::others_read | std::filesystem::perms::others_exec);
  // Root may write everywhere: be somebody else for a moment.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const auto store = FileStore::open(folder.path() / "job");
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kInvalid);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

TEST(FileStore, FailsClearlyWhenThereIsAFileInTheWay) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "job") << "a file";
  const auto store = FileStore::open(folder.path() / "job" / "deeper");
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kInvalid);
}

TEST(FileStore, ReturnsOnlyWhatSurvivesACrash) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    MemoryFileOps ops;
    auto store = FileStore::open("/to/job", ops);
    ASSERT_TRUE(put_if_absent(**store, "step-1/a", "kept", kLater));
    ASSERT_TRUE(put_if_absent(**store, "step-1/b", "removed", kLater));
    ASSERT_TRUE((*store)->remove("step-1/b", kLater));
    ops.reboot(seed);
    auto after = FileStore::open("/to/job", ops);
    EXPECT_EQ(*read_object(**after, "step-1/a", 10, kLater), "kept");
    EXPECT_EQ((*after)->list("", kLater)->size(), 1U);
  }
}

// Every put, cut off anywhere, leaves the whole object or none.
TEST(FileStore, IsWholeOrAbsentAfterACrashAnywhere) {
  int whole = 0;
  int absent = 0;
  for (int operation = 1;; ++operation) {
    bool fired = false;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      MemoryFileOps ops;
      auto store = FileStore::open("/to", ops);
      ops.fail_at(operation, MemoryFileOps::Fault::kCrash);
      const bool done = put_if_absent(**store, "step-1/a", "content", kLater).has_value();
      fired = ops.fired();
      ops.reboot(seed);
      auto after = FileStore::open("/to", ops);
      const auto content = read_object(**after, "step-1/a", 10, kLater);
      if (content) {
        EXPECT_EQ(*content, "content");
      } else {
        EXPECT_EQ(content.error().code, Code::kNotFound);
        EXPECT_FALSE(done);
      }
      ++(content ? whole : absent);
    }
    if (!fired) break;
  }
  EXPECT_GT(whole, 10);
  EXPECT_GT(absent, 10);
}

TEST(FileStore, GoesOnAfterShortWritesAndReads) {
  for (int operation = 1; operation < 40; ++operation) {
    MemoryFileOps ops;
    auto store = FileStore::open("/to", ops);
    ops.fail_at(operation, MemoryFileOps::Fault::kShort);
    ASSERT_TRUE(put_if_absent(**store, "step-1/a", "content", kLater));
    EXPECT_EQ(*read_object(**store, "step-1/a", 10, kLater), "content");
  }
}

TEST(FileStore, ClosesEveryFile) {
  MemoryFileOps ops;
  {
    auto store = FileStore::open("/to", ops);
    for (int operation = 1; operation < 30; ++operation) {
      ops.fail_at(operation, MemoryFileOps::Fault::kError);
      (void)put_if_absent(**store, "a" + std::to_string(operation), "content", kLater);
      (void)read_object(**store, "a1", 10, kLater);
      (void)(*store)->remove("a1", kLater);
    }
  }
  EXPECT_EQ(ops.open_files(), 0);
}

}  // namespace
}  // namespace surefoot::testing
