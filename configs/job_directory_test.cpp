#include "configs/job_directory.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "common/file.h"
#include "configs/job_for_test.h"

namespace surefoot {
namespace {

LoadedJob job_named(const std::string& name) {
  LoadedJob job;
  job.file = "/jobs/a/job.yaml";
  job.job.set_name(name);
  job.job.mutable_checkpoint()->set_to("checkpoints");
  return job;
}

TEST(JobDirectory, LiesBesideTheJobFileOrWhereTheOptionSays) {
  EXPECT_EQ(JobDirectory::of(job_named("x"), "").root, "/jobs/a/runs/x");
  EXPECT_EQ(JobDirectory::of(job_named("x"), "/elsewhere/../d/").root, "/d");
  EXPECT_EQ(JobDirectory::of(job_named("x"), "d").root, std::filesystem::current_path() / "d");
}

TEST(JobDirectory, NamesTheLogsOfAnAttemptSoThatTheySort) {
  const JobDirectory directory{"/d"};
  EXPECT_EQ(directory.attempt_logs(Attempt{3}), "/d/logs/attempt-003");
  EXPECT_EQ(directory.attempt_logs(Attempt{1234}), "/d/logs/attempt-1234");
}

TEST(JobDirectory, PutsCheckpointsUnderTheJobsName) {
  const JobDirectory directory{"/d"};
  LoadedJob job = job_named("x");
  for (const auto& [to, expected] :
       std::vector<std::pair<std::string, std::string>>{{"checkpoints", "/d/checkpoints/x"},
                                                        {"../shared", "/shared/x"},
                                                        {"/scratch", "/scratch/x"},
                                                        {"file:///scratch/", "/scratch/x"},
                                                        {"file://c", "/d/c/x"}}) {
    job.job.mutable_checkpoint()->set_to(to);
    EXPECT_EQ(directory.checkpoints(job.job), expected) << to;
  }
}

class JobId : public testing::Test {
 protected:
  JobFolder folder_;
  JobDirectory directory_{folder_.path() / "runs/x"};
};

TEST_F(JobId, IsMadeOnceAndReadAfterwards) {
  const Result<std::string> id = directory_.job_id("x");
  ASSERT_TRUE(id) << id.error().message;
  EXPECT_EQ(id->size(), 16U);
  EXPECT_EQ(*directory_.job_id("x"), *id);
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.root))
    files.insert(entry.path().filename());
  EXPECT_THAT(files, testing::ElementsAre("job.json"));
}

TEST_F(JobId, IsTheSameForThreadsThatAskAtOnce) {
  std::vector<std::string> ids(16);
  std::vector<std::thread> threads;
  for (std::string& id : ids) {
    threads.emplace_back([&] {
      Result<std::string> got = directory_.job_id("x");
      id = got ? *got : got.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids.front().size(), 16U);
  EXPECT_THAT(ids, testing::Each(ids.front()));
}

TEST_F(JobId, IsTheSameForProcessesThatAskAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Result<std::string> id = directory_.job_id("x");
      const bool is_written =
          id && write_file_atomically(folder_.path() / fmt::format("id-{}", i), *id).has_value();
      ::_exit(is_written ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string id = *directory_.job_id("x");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(*read_file(folder_.path() / fmt::format("id-{}", i)), id);
}

TEST_F(JobId, OfAnotherJobIsRefused) {
  ASSERT_TRUE(directory_.job_id("x"));
  const Result<std::string> id = directory_.job_id("y");
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().code, Code::kInvalid);
}

TEST_F(JobId, ThatCannotBeReadIsNotReplaced) {
  for (const char* text :
       {"", "{}", "[]", "{\"id\": 5, \"name\": \"x\"}", "{\"id\": \"../../etc\", \"name\": \"x\"}",
        "{\"id\": \"0123456789abcdef\"", "\xFF\xFE"}) {
    folder_.write("runs/x/job.json", text);
    const Result<std::string> id = directory_.job_id("x");
    ASSERT_FALSE(id) << text;
    EXPECT_EQ(id.error().code, Code::kCorrupt) << text;
    EXPECT_EQ(*read_file(directory_.root / "job.json"), text);
  }
}

TEST_F(JobId, NeedsAFolderThatCanBeMade) {
  folder_.write("file", "x");
  const Result<std::string> id = JobDirectory{folder_.path() / "file/runs"}.job_id("x");
  ASSERT_FALSE(id);
  EXPECT_THAT(id.error().message, testing::HasSubstr("file"));
}

}  // namespace
}  // namespace surefoot
