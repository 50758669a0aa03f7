#include <fmt/format.h>
#include <gmock/gmock.h>

#include "configs/job_for_test.h"

namespace surefoot {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Identity : public testing::Test {
 protected:
  TrainingIdentity of(const std::vector<std::string>& sets) {
    const LoadOutcome outcome = folder_.load(kRightJob, sets);
    EXPECT_THAT(outcome.faults, IsEmpty()) << texts(outcome.faults);
    Result<TrainingIdentity> identity = training_identity(outcome.job.job);
    EXPECT_TRUE(identity);
    return std::move(identity).value();
  }
  JobFolder folder_;
};

TEST_F(Identity, HasALineForEachTrainingKeyThatApplies) {
  const TrainingIdentity identity = of({});
  EXPECT_THAT(identity.lines, Contains("train.seed: 1"));
  EXPECT_THAT(identity.lines, Contains("model.kind: gpt"));
  EXPECT_THAT(identity.lines, Contains("train.optimizer.betas: [0.9, 0.999]"));
  EXPECT_THAT(identity.lines, Contains("resources.threads_per_worker: 1"));
  EXPECT_THAT(identity.lines, Contains(StartsWith("data.path: 1000 bytes, xxh3 ")));
  for (const char* other :
       {"name", "model.hidden", "train.eval_every", "resources.workers_per_node", "checkpoint",
        "recovery", "data.eval_path"}) {
    EXPECT_THAT(identity.lines, Not(Contains(StartsWith(other)))) << other;
  }
}

TEST_F(Identity, IsTheSameForOtherOperationalKeys) {
  const TrainingIdentity identity = of({});
  for (const char* set : {"name=other", "resources.workers_per_node=1:4", "checkpoint.interval=1m",
                          "recovery.max_failures=9", "train.eval_every=5", "train.bucket_size=1MiB",
                          "train.on_nan=rollback"}) {
    EXPECT_EQ(of({set}).hash, identity.hash) << set;
  }
}

TEST_F(Identity, ChangesWithEveryTrainingKey) {
  const TrainingIdentity identity = of({});
  for (const char* set :
       {"model.n_layer=3", "model.dropout=0.1", "train.global_batch_size=64",
        "train.micro_batch_size=8", "train.optimizer.lr=2e-3", "train.optimizer.betas=[0.9, 0.95]",
        "train.grad_clip=1", "train.seed=2", "train.reduction=fast",
        "resources.threads_per_worker=2", "data.holdout=0.1", "data.path=tokens.bin"}) {
    EXPECT_NE(of({set}).hash, identity.hash) << set;
  }
}

TEST_F(Identity, KnowsDataByTheirBytesNotByTheirPlace) {
  const TrainingIdentity identity = of({});
  folder_.write("copy/data.txt", std::string(1000, 'a'));
  EXPECT_EQ(of({"data.path=copy/data.txt"}).hash, identity.hash);
  std::string changed(1000, 'a');
  changed[999] = 'b';
  folder_.write("copy/data.txt", changed);
  EXPECT_NE(of({"data.path=copy/data.txt"}).hash, identity.hash);
}

TEST_F(Identity, HoldsMaxStepsOnlyWhereTheScheduleDependsOnIt) {
  EXPECT_NE(of({"train.max_steps=400"}).hash, of({}).hash);
  EXPECT_EQ(of({"train.schedule={}", "train.max_steps=400"}).hash, of({"train.schedule={}"}).hash);
}

TEST_F(Identity, HoldsTheFormatOfTheGradientsOnlyWhereItIsNotFp32SoThatOlderJobsGoOn) {
  EXPECT_EQ(of({"train.communicate_in=fp32"}).hash, of({}).hash);
  EXPECT_THAT(of({}).lines, Not(Contains(StartsWith("train.communicate_in"))));
  EXPECT_THAT(of({"resources.device=cuda", "train.communicate_in=bf16"}).lines,
              Contains("train.communicate_in: bf16"));
}

TEST_F(Identity, HoldsThePrecisionAndNotTheDevice) {
  EXPECT_EQ(of({"resources.device=cuda"}).hash, of({}).hash);
  EXPECT_EQ(of({"resources.device=cuda", "resources.devices=[1, 0]"}).hash, of({}).hash);
  for (const char* precision : {"tf32", "bf16"})
    EXPECT_NE(of({"resources.device=cuda", fmt::format("train.precision={}", precision)}).hash,
              of({}).hash);
}

TEST_F(Identity, TakesAHeldOutFileAsNothingHeldOutOfTheOther) {
  EXPECT_EQ(of({"data.eval_path=tokens.bin"}).hash, of({"data.holdout=0"}).hash);
  EXPECT_NE(of({"data.eval_path=tokens.bin"}).hash, of({}).hash);
}

TEST_F(Identity, SeesAChangeInTheFirstAndTheLastBlockOfALargeFile) {
  const std::int64_t size = (1LL << 30) + 12'345'678;
  const auto large = [&](std::int64_t at) {
    const std::filesystem::path path = folder_.write("large.txt", "");
    std::filesystem::resize_file(path,
                                 static_cast<std::uintmax_t>(size));  // a hole: takes no space
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    if (at >= 0) {
      file.seekp(at);
      file.put('x');
    }
    file.close();
    return of({"data.path=large.txt"}).hash;
  };
  const Digest untouched = large(-1);
  EXPECT_EQ(large(-1), untouched);
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{65535}, size - 65536, size - 1})
    EXPECT_NE(large(at), untouched) << at;
}

TEST_F(Identity, NamesAFileThatCannotBeRead) {
  const LoadOutcome outcome = folder_.load(kRightJob);
  std::filesystem::remove(folder_.path() / "data.txt");
  const Result<TrainingIdentity> identity = training_identity(outcome.job.job);
  ASSERT_FALSE(identity);
  EXPECT_EQ(identity.error().code, Code::kInvalid);
  EXPECT_THAT(identity.error().message, testing::HasSubstr("data.txt"));
}

TEST(Differences, SayWhatWasAndWhatIs) {
  const std::vector<std::string> was = {"train.seed: 1", "model.n_layer: 2", "train.max_steps: 5"};
  EXPECT_THAT(differences(was, was), IsEmpty());
  EXPECT_THAT(differences(was, {"train.seed: 2", "model.n_layer: 2", "model.width: 3"}),
              ElementsAre("train.seed: was 1, is 2", "train.max_steps: was 5, is not set",
                          "model.width: was not set, is 3"));
}

}  // namespace
}  // namespace surefoot
