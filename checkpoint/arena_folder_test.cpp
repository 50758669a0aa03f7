// The folder of an arena: its locks, and whether there is room in it.
#include <sys/mount.h>

#include <fstream>

#include "checkpoint/arena_space.h"
#include "checkpoint/arena_test_util.h"

namespace surefoot {
namespace {

TEST(FolderLock, IsHeldByOneProcessAndFreedByItsDeath) {
  TemporaryFolder folder;
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const pid_t holder = fork_child([&]() -> int {
    auto lock = FolderLock::take(folder.path(), "gang.lock");
    const char told = lock ? 'y' : 'n';
    if (::write(pipe_fds[1], &told, 1) != 1) return 1;
    for (;;) ::pause();
  });
  char told = 0;
  ASSERT_EQ(::read(pipe_fds[0], &told, 1), 1);
  ASSERT_EQ(told, 'y');
  auto second = FolderLock::take(folder.path(), "gang.lock");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kStale);
  EXPECT_NE(second.error().message.find(std::to_string(holder)), std::string::npos);
  ::kill(holder, SIGKILL);
  wait_for(holder);
  EXPECT_TRUE(FolderLock::take(folder.path(), "gang.lock"));
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

// --- room ---

TEST(CheckSpace, NamesWhatIsNeededWhatThereIsAndTheKey) {
  SpaceFacts roomy{1 << 30, true, 1 << 30, -1};
  EXPECT_TRUE(check_space(1 << 20, "/dev/shm", roomy));
  SpaceFacts tight = roomy;
  tight.free_bytes = 1 << 19;
  const Status status = check_space(1 << 20, "/dev/shm", tight);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  for (const char* word : {"/dev/shm", "1.0 MiB", "0.5 MiB", "checkpoint.arena"})
    EXPECT_NE(status.error().message.find(word), std::string::npos) << word;
  tight = roomy;
  tight.memory_bytes = 1000;
  EXPECT_FALSE(check_space(1 << 20, "/dev/shm", tight));
  tight = roomy;
  tight.cgroup_bytes = 0;
  EXPECT_FALSE(check_space(1 << 20, "/dev/shm", tight));
  tight.memory = false;  // a disk: memory limits do not count
  EXPECT_TRUE(check_space(1 << 20, "/data", tight));
}

void put(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(CgroupRoom, IsTheTightestOfAllLevelsOfVersionTwo) {
  TemporaryFolder root;
  put(root.path() / "proc/self/cgroup", "0::/a/b\n");
  const auto groups = root.path() / "sys/fs/cgroup";
  put(groups / "a/b/memory.max", "max\n");
  put(groups / "a/b/memory.current", "500\n");
  put(groups / "a/memory.max", "10000\n");
  put(groups / "a/memory.current", "7000\n");
  put(groups / "a/memory.stat", "anon 4000\ninactive_file 1000\nactive_file 500\n");
  EXPECT_EQ(cgroup_room(root.path()), 4500);
  put(groups / "a/b/memory.max", "600\n");
  EXPECT_EQ(cgroup_room(root.path()), 100);
}

TEST(CgroupRoom, ReadsVersionOneAndKnowsWhenThereIsNoLimit) {
  TemporaryFolder root;
  put(root.path() / "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/x\n0::/\n");
  const auto groups = root.path() / "sys/fs/cgroup/memory";
  put(groups / "memory.limit_in_bytes", "9223372036854771712\n");
  put(groups / "memory.usage_in_bytes", "5\n");
  EXPECT_EQ(cgroup_room(root.path()), -1);
  put(groups / "x/memory.limit_in_bytes", "2000\n");
  put(groups / "x/memory.usage_in_bytes", "1500\n");
  put(groups / "x/memory.stat", "total_inactive_file 100\n");
  EXPECT_EQ(cgroup_room(root.path()), 600);
}

TEST(CreateArena, SaysWhenTheFileSystemIsTooSmall) {
  TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "skipped: mounting a tmpfs is not allowed here";
  auto made = Arena::create(folder.path() / "surefoot-x", test_spec(4 << 20));
  EXPECT_FALSE(made);
  if (!made) {
    EXPECT_EQ(made.error().code, Code::kNoSpace);
    EXPECT_NE(made.error().message.find("checkpoint.arena"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "surefoot-x"));
  // It fits: three slots of 512 KiB and the fixed part.
  EXPECT_TRUE(Arena::create(folder.path() / "surefoot-x", test_spec(512 << 10)));
  ::umount(folder.path().c_str());
}

TEST(CreateArena, SaysWhenTheFolderCannotBeMade) {
  auto made = Arena::create("/proc/surefoot-x", test_spec(4096));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kNoSpace);
  EXPECT_NE(made.error().message.find("checkpoint.arena"), std::string::npos);
}

TEST(CreateArena, ReplacesTheLeftOverOfOneThatWasKilled) {
  TemporaryFolder folder;
  put(folder.path() / "surefoot-x/arena.new", "half");
  EXPECT_TRUE(Arena::create(folder.path() / "surefoot-x", test_spec(4096)));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "surefoot-x/arena.new"));
}

}  // namespace
}  // namespace surefoot
