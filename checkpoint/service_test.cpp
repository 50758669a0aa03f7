// The service as a real process: a gang's life, checkpoints, restore, finish, its own end.
#include <sys/stat.h>

#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

TEST_F(ServiceTest, GivesANewJobAnArenaAndTheFirstAttempt) {
  start();
  EXPECT_EQ(status().ready_step(), -1);
  auto reply = say_hello(0);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->attempt(), 1);
  EXPECT_EQ(reply->known_step(), 0);
  EXPECT_EQ(reply->candidates_size(), 0);
  EXPECT_EQ(reply->arena_folder(), arena_.string());
  EXPECT_EQ(mapped_->spec().state_bytes, layout_.bytes);
  EXPECT_EQ(mapped_->service(), *service_process());
  struct stat info {};
  ASSERT_EQ(::stat((arena_ / "service.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto beat = mapped_->last_service_heartbeat();
  EXPECT_TRUE(eventually([&] { return mapped_->last_service_heartbeat() > beat; }));
}

TEST_F(ServiceTest, WritesTheFirstStepToTheStoreAndTrainingGoesOn) {
  start();
  ASSERT_TRUE(say_hello(0));
  EXPECT_FALSE(make_step(0));
  EXPECT_TRUE(make_step(1));
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  EXPECT_EQ(stored_steps(), std::vector<std::int64_t>{1});
  EXPECT_TRUE(eventually([&] { return (mapped_->requests().load() & kUploadBusy) == 0; }));
  for (int slot = 0; slot < kSlots; ++slot) EXPECT_FALSE(mapped_->slot(slot).pinned);
  for (std::int64_t step = 2; step < 50; ++step) EXPECT_FALSE(make_step(step));
  const auto reply = status();
  EXPECT_EQ(reply.ready_step(), 49);
  EXPECT_EQ(reply.waiting_for(), "");
  EXPECT_EQ(reply.records_size(), 50);
  EXPECT_EQ(reply.records_next(), 50u);
}

TEST_F(ServiceTest, MakesACheckpointEveryIntervalAndKeepsTheNewest) {
  write_job("interval: 100ms, keep: 2");
  start();
  ASSERT_TRUE(say_hello(0));
  std::int64_t step = 0;
  int checkpoints = 0;
  while (checkpoints < 5) {
    checkpoints += make_step(step++) ? 1 : 0;
    ::usleep(2000);
  }
  ASSERT_TRUE(
      eventually([&] { return stored_steps().size() == 2 && status().durable_step() > 0; }));
  ASSERT_TRUE(eventually([&] { return status().storing_step() < 0; }));
  EXPECT_EQ(stored_steps().front(), status().durable_step());
}

TEST_F(ServiceTest, RestoresTheNewestStepFromMemoryForTheNextAttempt) {
  start();
  ASSERT_TRUE(say_hello(0));
  for (std::int64_t step = 0; step <= 7; ++step) make_step(step);
  auto reply = say_hello(0);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->attempt(), 2);
  EXPECT_EQ(reply->known_step(), 7);
  const service::Candidate* newest = nullptr;
  for (const auto& candidate : reply->candidates()) {
    if (candidate.source() == service::Candidate::ARENA && candidate.step() == 7)
      newest = &candidate;
  }
  ASSERT_NE(newest, nullptr);
  auto restored = restore(*newest);
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(restored->step(), 7);
  EXPECT_EQ(restored->samples(), 56);
  EXPECT_TRUE(holds(restored->slot(), 7));
}

TEST_F(ServiceTest, RefusesABadCopyInMemoryAndFillsASlotFromTheStore) {
  start();
  ASSERT_TRUE(say_hello(0));
  make_step(0);
  make_step(1);
  make_step(2);
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  const std::int64_t stored = 1;
  // Every copy in memory goes bad.
  for (int slot = 0; slot < kSlots; ++slot) mapped_->bytes(slot)[12345] ^= std::byte{4};
  auto reply = say_hello(0);
  ASSERT_TRUE(reply);
  int refused = 0;
  std::optional<service::RestoreReply> restored;
  for (const auto& candidate : reply->candidates()) {
    auto result = restore(candidate);
    const bool from_store = candidate.source() == service::Candidate::STORE;
    ASSERT_EQ(result.has_value(), from_store);
    if (from_store) {
      restored = *result;
      EXPECT_EQ(candidate.step(), stored);
    } else {
      EXPECT_EQ(result.error().code, Code::kCorrupt);
      ++refused;
    }
  }
  EXPECT_GE(refused, 2);
  ASSERT_TRUE(restored);
  EXPECT_TRUE(holds(restored->slot(), stored));
  EXPECT_TRUE(mapped_->verify(restored->slot()));
  EXPECT_EQ(mapped_->newest_ready(), restored->slot());
}

TEST_F(ServiceTest, RestoresFromTheStoreWhenTheMemoryIsGone) {
  start();
  ASSERT_TRUE(say_hello(0));
  make_step(0);
  make_step(1);
  ASSERT_TRUE(shut_down(true, true));
  ASSERT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
  EXPECT_EQ(stored_steps().front(), 1);
  start();
  auto reply = say_hello(0);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->attempt(), 2);
  EXPECT_EQ(reply->known_step(), 1);
  ASSERT_GE(reply->candidates_size(), 1);
  auto restored = restore(reply->candidates(0));
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(restored->step(), 1);
  EXPECT_EQ(restored->samples(), 8);
  EXPECT_TRUE(holds(restored->slot(), 1));
}

TEST_F(ServiceTest, SaysCorruptForACheckpointThatIsDamagedOnDisk) {
  start();
  ASSERT_TRUE(say_hello(0));
  make_step(0);
  make_step(1);
  ASSERT_TRUE(shut_down(true, true));
  ASSERT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store_folder())) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100000);
    file.put('\x55');
  }
  start();
  auto reply = say_hello(0);
  ASSERT_TRUE(reply);
  ASSERT_GE(reply->candidates_size(), 1);
  for (const auto& candidate : reply->candidates()) {
    auto restored = restore(candidate);
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, Code::kCorrupt);
  }
  EXPECT_EQ(reply->known_step(), 1);
  EXPECT_FALSE(mapped_->newest_ready());
  // Begun again, the same step is stored anew in its place.
  make_step(0);
  ASSERT_TRUE(make_step(1));
  EXPECT_TRUE(eventually([&] { return stored_steps() == std::vector<std::int64_t>{1}; }));
}

TEST_F(ServiceTest, NeverForgetsThatTheJobHasBeenFurther) {
  start();
  ASSERT_TRUE(say_hello(0));
  for (std::int64_t step = 0; step <= 3; ++step) make_step(step);
  kill_service();
  // The header of the arena goes bad, and the store is emptied by somebody.
  {
    std::fstream file(arena_ / "arena", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(50);
    file.put('\x7F');
  }
  std::filesystem::remove_all(store_folder());
  start();
  for (int again = 0; again < 2; ++again) {
    auto reply = say_hello(0);
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->candidates_size(), 0);
    EXPECT_GE(reply->known_step(), 1);
    if (again == 0) {
      kill_service();
      start();
    }
  }
}

TEST_F(ServiceTest, EndsTheWorkersOfEarlierAttemptsBeforeItAnswersHello) {
  start();
  ASSERT_TRUE(say_hello(5));
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{5}, 0, 0)) return 1;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] {
    const auto reply = status();
    return reply.ranks_size() == 1 && reply.ranks(0).alive() && reply.ranks(0).pid() == worker;
  }));
  auto reply = say_hello(6);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(wait_for(worker), -SIGKILL);
  EXPECT_EQ(status().ranks_size(), 0);
}

TEST_F(ServiceTest, EndsTheGangOnRequest) {
  start();
  ASSERT_TRUE(say_hello(1));
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return status().ranks_size() == 1; }));
  service::Request request;
  request.mutable_end_gang();
  ASSERT_TRUE(client_->call(request, now() + kPatience));
  EXPECT_EQ(wait_for(worker), -SIGKILL);
  const auto reply = status();
  ASSERT_EQ(reply.ranks_size(), 1);
  EXPECT_FALSE(reply.ranks(0).alive());
  EXPECT_EQ(reply.ranks(0).exit_code(), -1);
}

TEST_F(ServiceTest, KeepsTheLinesOfAGangThatSaysHelloAgain) {
  start();
  ASSERT_TRUE(say_hello(1));
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return status().ranks_size() == 1; }));
  ASSERT_TRUE(say_hello(1));
  EXPECT_EQ(status().ranks_size(), 1);
  EXPECT_TRUE(is_alive(*process_of(worker)));
  ::kill(worker, SIGKILL);
  wait_for(worker);
}

TEST_F(ServiceTest, RefusesAnOlderAttempt) {
  start();
  ASSERT_TRUE(say_hello(5));
  auto reply = say(hello_of(4, layout_));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kStale);
  EXPECT_EQ(status().refused_messages(), 1);
}

TEST_F(ServiceTest, RefusesChangedTrainingKeysUntilTheyAreAccepted) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  service::Hello changed = hello_of(2, layout_, "train.seed: 2");
  auto refused = say(changed);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message.find("train.seed: was 1, is 2"), std::string::npos)
      << refused.error().message;
  changed.set_accept_changes(true);
  auto accepted = say(changed);
  ASSERT_TRUE(accepted) << accepted.error().message;
  EXPECT_EQ(accepted->known_step(), 1);
  EXPECT_GE(accepted->candidates_size(), 1);
  // From now on the new keys are this job's.
  changed.set_accept_changes(false);
  changed.set_attempt(3);
  EXPECT_TRUE(say(changed));
}

TEST_F(ServiceTest, RefusesAnotherModelWhereAFinishedStepWouldBeLost) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  StateLayout other;
  other.add_section("parameters", DType::kF32, {{"w", {10}, 0}});
  // Only initial weights: nothing is lost with them.
  EXPECT_TRUE(say(hello_of(2, other)));
  ASSERT_TRUE(say_hello(3));
  make_step(0);
  make_step(1);
  auto late = say(hello_of(4, other));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kInvalid);
  EXPECT_TRUE(say_hello(5));
}

// --- finish ---

TEST_F(ServiceTest, RefusesToFinishBeforeTheLastStep) {
  max_steps_ = 4;
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 3; ++step) make_step(step);
  EXPECT_EQ(finish(3).error().code, Code::kInvalid);
  service::Request request;
  request.mutable_finish()->set_step(3);
  request.mutable_finish()->set_elsewhere(true);
  EXPECT_EQ(client_->call(request, now() + kPatience).error().code, Code::kInvalid);
  EXPECT_FALSE(status().finished());
  make_step(4);
  EXPECT_TRUE(finish(4));
}

TEST_F(ServiceTest, FinishStoresTheLastStepAndExportsTheModel) {
  max_steps_ = 4;
  launch_.supervised = true;  // who then ends the service
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 4; ++step) make_step(step);
  auto reply = finish(4);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->folder(), (launch_.job_directory / "final").string());
  auto sum = sha256_of_file(launch_.job_directory / "final" / "model.safetensors");
  ASSERT_TRUE(sum);
  EXPECT_EQ(reply->weights_sha256(), *sum);
  EXPECT_EQ(reply->state_sha256(), sha256(mapped_->bytes(*mapped_->newest_ready())));
  EXPECT_EQ(stored_steps().front(), 4);
  // Repeatable, also by the next life of the service.
  const std::string weights = reply->weights_sha256();
  EXPECT_EQ(finish(4)->weights_sha256(), weights);
  EXPECT_TRUE(status().finished());
}

TEST_F(ServiceTest, FinishWorksFromTheStoreWhenTheMemoryIsGone) {
  max_steps_ = 4;
  write_job("interval: 1h");
  launch_.supervised = true;  // who then ends the service
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 4; ++step) make_step(step);
  auto first = finish(4);
  ASSERT_TRUE(first);
  kill_service();
  std::filesystem::remove_all(arena_);
  std::filesystem::remove_all(launch_.job_directory / "final");
  start();
  auto second = finish(4);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->weights_sha256(), first->weights_sha256());
  EXPECT_EQ(second->state_sha256(), first->state_sha256());
}

TEST_F(ServiceTest, FinishFreesEverythingOnceTheWorkersAreGone) {
  max_steps_ = 1;
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  const auto process = service_process();
  ASSERT_TRUE(finish(1));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
  EXPECT_TRUE(eventually([&] { return !is_alive(*process); }));
  // Without a supervisor the steps are in metrics/.
  auto lines = read_file(launch_.job_directory / "metrics" / "metrics.jsonl");
  ASSERT_TRUE(lines);
  EXPECT_NE(lines->find("\"step\":1"), std::string::npos) << *lines;
}

// --- its own end ---

TEST_F(ServiceTest, EndsWhenNobodyComesAndLeavesTheNewestStepInTheStore) {
  write_job("interval: 1h, arena_ttl: 1s");
  launch_.supervised = true;
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 3; ++step) make_step(step);
  // A worker comes and dies: from then on nobody is expected.
  const pid_t worker = fork_child([&]() -> int {
    return register_writer(*mapped_, Attempt{1}, 0, 0) ? (::usleep(300000), 0) : 1;
  });
  ASSERT_EQ(wait_for(worker), 0);
  const auto process = service_process();
  ASSERT_TRUE(process);
  EXPECT_TRUE(eventually([&] { return !is_alive(*process); }));
  EXPECT_FALSE(std::filesystem::exists(arena_));
  ASSERT_FALSE(stored_steps().empty());
  EXPECT_EQ(stored_steps().front(), 3);
  EXPECT_TRUE(logged("nobody has come for arena_ttl"));
}

TEST_F(ServiceTest, DrainsWhenTheSupervisorIsNotHeard) {
  write_job("interval: 1h", "supervisor_timeout: 1s");
  launch_.supervised = true;
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
    for (;;) ::usleep(1000);
  });
  // Who asks without its key is not the supervisor.
  EXPECT_TRUE(eventually([&] {
    (void)status();
    return (mapped_->requests().load() & kRequestDrain) != 0;
  }));
  make_step(1);
  ::kill(worker, SIGKILL);
  wait_for(worker);
  EXPECT_TRUE(eventually([&] {
    const auto steps = stored_steps();
    return !steps.empty() && steps.front() == 1;
  }));
  EXPECT_TRUE(service_process());
}

TEST_F(ServiceTest, TakesSigtermAsADrain) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  ASSERT_TRUE(send_signal(*service_process(), SIGTERM));
  EXPECT_TRUE(eventually([&] { return (mapped_->requests().load() & kRequestDrain) != 0; }));
  ASSERT_TRUE(service_process());
  const auto process = *service_process();
  // A gang that comes later does not count as asked, nor the signal as the first of two.
  ASSERT_TRUE(say_hello(2));
  EXPECT_EQ(mapped_->requests().load() & kRequestDrain, 0u);
  ASSERT_TRUE(send_signal(process, SIGTERM));
  EXPECT_TRUE(eventually([&] { return (mapped_->requests().load() & kRequestDrain) != 0; }));
  ASSERT_TRUE(send_signal(process, SIGHUP));
  EXPECT_TRUE(status().has_notice());
  ASSERT_TRUE(send_signal(process, SIGTERM));
  EXPECT_TRUE(eventually([&] { return !is_alive(process); }));
  EXPECT_TRUE(std::filesystem::exists(arena_ / "arena"));
}

TEST_F(ServiceTest, DoesNotTakeASignalForAWordThatOtherNodesStay) {
  start();
  service::Hello hello = hello_of(1, layout_);
  hello.set_node_count(2);
  ASSERT_TRUE(say(hello));
  ASSERT_TRUE(send_signal(*service_process(), SIGTERM));
  ASSERT_TRUE(eventually([&] { return status().has_notice(); }));
  EXPECT_TRUE(status().notice().everyone());
}

TEST_F(ServiceTest, RemovesNothingWhileWorkersLive) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return status().ranks_size() == 1; }));
  EXPECT_EQ(shut_down(false, true).error().code, Code::kRetry);
  ::kill(worker, SIGKILL);
  wait_for(worker);
  EXPECT_TRUE(shut_down(false, true));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(arena_); }));
}

TEST_F(ServiceTest, ASecondOneFindsTheFirstAndLeaves) {
  start();
  const auto first = service_process();
  SpawnOptions second;
  second.argv = {launch_.program.string(), launch_.job_file.string(), "--dir",
                 launch_.job_directory.string()};
  second.output = (folder_.path() / "second.log").string();
  auto child = spawn(second);
  ASSERT_TRUE(child);
  std::optional<ExitStatus> left;
  ASSERT_TRUE(eventually([&] { return (left = poll_exit(*child)).has_value(); }));
  EXPECT_EQ(left->code, 0);
  const std::string said = *read_file(folder_.path() / "second.log");
  EXPECT_NE(said.find(std::to_string(first->pid)), std::string::npos) << said;
  EXPECT_EQ(service_process(), first);
  EXPECT_EQ(status().pid(), first->pid);
}

TEST_F(ServiceTest, GivesTheNextGangNewMemoryWhenTheFileWasRemoved) {
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 6; ++step) make_step(step);
  ASSERT_TRUE(mapped_->mark_fault(3));
  std::filesystem::remove_all(arena_);  // as logind does at log-out
  ASSERT_TRUE(eventually([&] { return logged("was removed by somebody"); }));
  make_step(7);  // the gang goes on in the memory it has mapped
  auto reply = say_hello(2);
  ASSERT_TRUE(reply) << reply.error().message;
  ASSERT_TRUE(mapped_->newest_ready());
  EXPECT_EQ(mapped_->slot(*mapped_->newest_ready()).step, Step{7});
  EXPECT_TRUE(holds(*mapped_->newest_ready(), 7));
  EXPECT_TRUE(mapped_->verify(*mapped_->newest_ready()));
  EXPECT_TRUE(mapped_->fault_fired(3));
  make_step(8);
}

}  // namespace
}  // namespace surefoot
