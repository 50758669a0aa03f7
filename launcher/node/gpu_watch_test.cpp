// The look at GPUs with the real program, and a driver's library that reports, hangs or crashes.
#include "launcher/node/gpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/test_paths.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GpuWatching : public ::testing::Test {
 protected:
  void with(const char* state) {
    ::setenv("LD_LIBRARY_PATH", (programs_folder() / "fake-nvidia").c_str(), 1);
    ::setenv("SUREFOOT_FAKE_GPU", state, 1);
    ::setenv("SUREFOOT_FAKE_GPUS", "2", 1);
  }
  // What is known within so long, in looks that do not wait.
  std::vector<service::GpuStatus> look(int workers, Duration patience = 5s) {
    const Time until = now() + patience;
    std::vector<service::GpuStatus> found;
    while (found.empty() && now() < until) {
      const Time begin = now();
      found = watch_.look(workers);
      longest_ = std::max<Duration>(longest_, now() - begin);
      ::usleep(10'000);
    }
    return found;
  }
  static config::Resources resources(const std::vector<std::string>& devices) {
    config::Resources out;
    for (const std::string& device : devices) out.add_devices(device);
    return out;
  }
  static int children() {
    int count = 0;
    for (const ProcessId& process : running_processes()) {
      if (has_entry(environment_of(process), "SUREFOOT_FAKE_GPUS=2") && process.pid != ::getpid())
        ++count;
    }
    return count;
  }

  GpuWatch watch_{resources({}), (programs_folder() / "surefoot-node").string()};
  Duration longest_{};
};

TEST_F(GpuWatching, TellsOfTheDevicesOfItsWorkersAndOfNoOthers) {
  with("healthy");
  const auto found = look(1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].device(), "0");
  EXPECT_EQ(found[0].uuid(), "GPU-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(found[0].busy(), 0.97);
  EXPECT_EQ(found[0].watts(), 80.5);
  EXPECT_FALSE(found[0].mig());
  EXPECT_THAT(look(2), SizeIs(2)) << "another worker has come";
  EXPECT_LT(longest_, 500ms);
}

TEST_F(GpuWatching, CountsItsLooksAndTheirAge) {
  with("healthy");
  const auto first = look(1);
  ASSERT_THAT(first, SizeIs(1));
  ::usleep(200'000);
  const auto same = look(1);
  EXPECT_EQ(same[0].sample(), first[0].sample());
  EXPECT_GT(same[0].age_seconds(), 0.19);
  const Time until = now() + 10s;
  while (look(1)[0].sample() == first[0].sample() && now() < until) ::usleep(10'000);
  EXPECT_EQ(look(1)[0].sample(), first[0].sample() + 1);
}

TEST_F(GpuWatching, LeavesNoProcessBehindWhenNobodyWorksAnyMore) {
  with("healthy");
  ASSERT_THAT(look(1), SizeIs(1));
  EXPECT_EQ(children(), 1);
  EXPECT_THAT(watch_.look(0), IsEmpty());
  const Time until = now() + 5s;
  while (children() > 0 && now() < until) (void)watch_.look(0);
  EXPECT_EQ(children(), 0);
}

TEST_F(GpuWatching, IsNotHeldUpByADriverThatHangsOrCrashes) {
  for (const char* state : {"hangs", "crashes"}) {
    with(state);
    EXPECT_THAT(watch_.look(0), IsEmpty());
    EXPECT_THAT(look(2, 1s), IsEmpty()) << state;
    EXPECT_LT(longest_, 500ms) << state;
  }
}

TEST_F(GpuWatching, LooksAtThoseThatABatchSystemShows) {
  with("healthy");
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  const auto found = look(1);
  EXPECT_THAT(look(2, 100ms), IsEmpty()) << "no worker could be launched";
  ::setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000", 1);
  const auto beginning = look(1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].uuid(), "GPU-00000000-0000-0000-0000-000000000001");
  ASSERT_THAT(beginning, SizeIs(1));
  EXPECT_THAT(beginning[0].fault(), HasSubstr("NVML says 6")) << "which of them is not known";
}

TEST_F(GpuWatching, CountsWhatProcessesHoldAsFarAsTheDriverTells) {
  with("healthy");
  const auto fresh = look(1);
  ASSERT_THAT(fresh, SizeIs(1));
  EXPECT_EQ(fresh[0].memory_used_bytes(), 0);
  EXPECT_EQ(fresh[0].memory_bytes(), std::int64_t{141} << 30);
  EXPECT_THAT(watch_.look(0), IsEmpty());
  with("old");
  const auto old = look(1);
  ASSERT_THAT(old, SizeIs(1));
  EXPECT_EQ(old[0].memory_used_bytes(), 512 << 20) << "of which its own is a part";
  EXPECT_THAT(watch_.look(0), IsEmpty());
  with("unified");
  const auto unified = look(1);
  ASSERT_THAT(unified, SizeIs(1));
  EXPECT_EQ(unified[0].fault(), "");
  EXPECT_EQ(unified[0].busy(), 0.97);
}

// Which only a process that loads the library anew would see end.
TEST_F(GpuWatching, AFaultOfAllDevicesEndsTheProgramAndIsTold) {
  with("mismatch");
  const auto found = look(2);
  ASSERT_THAT(found, SizeIs(2));
  const Time until = now() + 5s;
  while (children() > 0 && now() < until) (void)watch_.look(2);
  EXPECT_EQ(children(), 0);
  EXPECT_THAT(watch_.look(2), SizeIs(2));
}

TEST_F(GpuWatching, SaysOfEachDeviceWhyItDoesNotAnswer) {
  with("lost");
  const auto lost = look(2);
  ASSERT_THAT(lost, SizeIs(2));
  EXPECT_THAT(lost[1].fault(), HasSubstr("GPU is lost"));
  EXPECT_THAT(watch_.look(0), IsEmpty());
  with("mismatch");
  const auto none = look(1);
  ASSERT_THAT(none, SizeIs(1));
  EXPECT_THAT(none[0].fault(), HasSubstr("version mismatch"));
}

TEST_F(GpuWatching, TellsOfAnInstanceItsMemoryAndOfItsGpuTheRest) {
  with("split");
  const std::string instance = "MIG-00000000-0000-0000-0000-000000000001";
  GpuWatch watch(resources({instance}), (programs_folder() / "surefoot-node").string());
  const Time until = now() + 5s;
  std::vector<service::GpuStatus> found;
  while (found.empty() && now() < until) found = watch.look(1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].device(), instance);
  EXPECT_EQ(found[0].uuid(), instance);
  EXPECT_EQ(found[0].index(), 1);
  EXPECT_TRUE(found[0].mig());
}

}  // namespace
}  // namespace surefoot
