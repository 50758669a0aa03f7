// The service under fire: killed at any moment, spoken to by strangers, with a store that fails.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <thread>
#include <zmq.hpp>

#include "checkpoint/service_test_util.h"

namespace surefoot {
namespace {

// --- strangers ---

class Stranger {
 public:
  explicit Stranger(const std::filesystem::path& arena)
      : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.connect("ipc://" + (arena / "service.sock").string());
  }
  void send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const auto flags = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      socket_.send(zmq::buffer(frames[i]), flags);
    }
  }
  // The error it is answered with; nothing: no answer.
  std::optional<service::Error> answer() {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, 10s);
    zmq::message_t frame;
    service::Reply reply;
    bool more = (item.revents & ZMQ_POLLIN) != 0;
    while (more && socket_.recv(frame, zmq::recv_flags::dontwait)) more = frame.more();
    if (!reply.ParseFromArray(frame.data(), static_cast<int>(frame.size())) || !reply.has_error())
      return std::nullopt;
    return reply.error();
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

service::Request good_request(const char* job_id) {
  service::Request request;
  request.set_protocol(kProtocol);
  request.set_job_id(job_id);
  request.mutable_status();
  return request;
}

TEST_F(ServiceTest, RefusesAndCountsWhatIsNotARequest) {
  start();
  ASSERT_TRUE(say_hello(3));
  Stranger stranger(arena_);
  service::Request wrong_protocol = good_request(kJobId);
  wrong_protocol.set_protocol(kProtocol + 1);
  service::Request wrong_job = good_request("feedfeedfeedfeed");
  service::Request empty = good_request(kJobId);
  empty.clear_what();
  const std::string good = good_request(kJobId).SerializeAsString();
  const std::vector<std::vector<std::string>> bad = {
      {"", wrong_protocol.SerializeAsString()},
      {"", wrong_job.SerializeAsString()},
      {"", empty.SerializeAsString()},
      {"", ""},
      {"", good.substr(0, good.size() - 1)},
      {"", std::string(100, '\xFF')},
      {"", std::string((4 << 20) + 1, 'x')},
      {good},
      {"x", good},
      {"", good, good},
      std::vector<std::string>(1000, "frame"),
  };
  std::int64_t refused = 0;
  for (const auto& frames : bad) {
    stranger.send(frames);
    const auto answered = stranger.answer();
    ASSERT_TRUE(answered) << refused;
    EXPECT_EQ(answered->code(), static_cast<int>(Code::kInvalid)) << refused;
    EXPECT_EQ(status().refused_messages(), ++refused);
  }
  service::Hello stale = hello_of(2, layout_);
  EXPECT_EQ(say(stale).error().code, Code::kStale);
  EXPECT_EQ(status().refused_messages(), ++refused);
}

// What is asked while memory is made for a gang, which takes long, is asked of that gang.
TEST_F(ServiceTest, RemembersADrainThatComesWhileAHelloIsInHand) {
  start();
  const auto ask_beside = [&](const service::Hello& hello, const service::Request& question) {
    service::Request first = good_request(kJobId);
    *first.mutable_hello() = hello;
    service::Request second = question;
    second.set_protocol(kProtocol);
    second.set_job_id(kJobId);
    Stranger peer(arena_);
    peer.send({"", first.SerializeAsString()});
    peer.send({"", second.SerializeAsString()});
    EXPECT_FALSE(peer.answer());
    EXPECT_FALSE(peer.answer());
    join(hello.attempt());
    return mapped_->requests().load() & kRequestDrain;
  };
  service::Request notice;
  notice.mutable_notice()->set_deadline_seconds(600);
  EXPECT_NE(ask_beside(hello_of(1, layout_), notice), 0u);
  EXPECT_TRUE(status().has_notice());
  // The same gang, now with a number that all nodes know.
  service::Hello again = hello_of(2, layout_);
  again.set_again(true);
  ASSERT_TRUE(say(again));
  EXPECT_NE(mapped_->requests().load() & kRequestDrain, 0u);
  EXPECT_TRUE(status().has_notice());
  // Another one, for which it was not meant.
  ASSERT_TRUE(say_hello(3));
  EXPECT_EQ(mapped_->requests().load() & kRequestDrain, 0u);
  EXPECT_FALSE(status().has_notice());
  service::Request drain;
  drain.mutable_ask()->set_drain(true);
  EXPECT_NE(ask_beside(hello_of(4, layout_), drain), 0u);
}

TEST_F(ServiceTest, TakesOnOnlySoMuchWorkFromWhoAsksWithoutWaiting) {
  max_steps_ = 1;
  launch_.supervised = true;
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  service::Request request = good_request(kJobId);
  request.mutable_finish()->set_step(1);
  Stranger greedy(arena_);
  for (int i = 0; i < 60; ++i) greedy.send({"", request.SerializeAsString()});
  int busy = 0;
  for (int i = 0; i < 60; ++i) {
    const auto refused = greedy.answer();
    if (!refused) continue;
    EXPECT_EQ(refused->code(), static_cast<int>(Code::kRetry)) << refused->message();
    ++busy;
  }
  EXPECT_GT(busy, 0);
  EXPECT_EQ(status().refused().at("busy"), busy);
  EXPECT_TRUE(finish(1));
}

// The slot that it writes is what a restore would take.
TEST_F(ServiceTest, BringsNothingToAGangThatIsAtWork) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  ASSERT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  const auto offered = say(hello_of(1, layout_));
  ASSERT_TRUE(offered);
  service::Request request;
  for (const auto& candidate : offered->candidates()) {
    if (candidate.source() == service::Candidate::STORE)
      *request.mutable_restore()->mutable_candidate() = candidate;
  }
  ASSERT_TRUE(request.has_restore());
  for (int slot = 0; slot < kSlots; ++slot) mapped_->discard(slot);
  const pid_t worker = fork_child([&]() -> int {
    if (!register_writer(*mapped_, Attempt{1}, 0, 0)) return 1;
    set_phase(mapped_->line(0), Phase::kForwardBackward, Step{2});
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] {
    const auto reply = status();
    return reply.ranks_size() == 1 && reply.ranks(0).phase() == "forward_backward";
  }));
  EXPECT_EQ(client_->call(request, now() + kPatience).error().code, Code::kStale);
  set_phase(mapped_->line(0), Phase::kRestoring, Step{2});
  request.mutable_restore()->set_attempt(7);
  EXPECT_EQ(client_->call(request, now() + kPatience).error().code, Code::kStale);
  EXPECT_FALSE(mapped_->newest_ready());
  request.mutable_restore()->set_attempt(1);
  EXPECT_TRUE(client_->call(request, now() + kPatience));
  ::kill(worker, SIGKILL);
  wait_for(worker);
}

TEST_F(ServiceTest, SurvivesSeededGarbageAndGoesOnAnswering) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  std::mt19937_64 random(11);
  service::Request base = good_request(kJobId);
  *base.mutable_hello() = hello_of(1, layout_);
  const std::string good = base.SerializeAsString();
  {
    Stranger stranger(arena_);
    for (int i = 0; i < 500; ++i) {
      std::string bad = good;
      for (std::uint64_t n = random() % 4 + 1; n > 0; --n)
        bad[random() % bad.size()] = static_cast<char>(random());
      if (random() % 3 == 0) bad.resize(random() % bad.size());
      stranger.send({"", bad});
    }
  }
  EXPECT_EQ(status().ready_step(), 0);
  ASSERT_TRUE(service_process());
}

TEST_F(ServiceTest, RefusesAHelloThatMakesNoSense) {
  start();
  service::Hello hello = hello_of(1, layout_);
  hello.set_local_size(100000);
  EXPECT_EQ(say(hello).error().code, Code::kInvalid);
  hello = hello_of(1, layout_);
  hello.set_node_index(1);
  EXPECT_EQ(say(hello).error().code, Code::kInvalid);
  hello = hello_of(1, layout_);
  hello.set_layout("{\"bytes\":1e300}");
  EXPECT_EQ(say(hello).error().code, Code::kInvalid);
  hello = hello_of(1, layout_);
  hello.set_training_hash("xyz");
  EXPECT_EQ(say(hello).error().code, Code::kInvalid);
  EXPECT_TRUE(say_hello(1));
}

TEST_F(ServiceTest, ShowsWhateverStandsInALineWithoutStumbling) {
  start();
  ASSERT_TRUE(say_hello(1));
  RankLine& line = mapped_->line(7);
  std::memset(static_cast<void*>(&line), 0xEE, sizeof line);
  const auto reply = status();
  ASSERT_EQ(reply.ranks_size(), 1);
  EXPECT_FALSE(reply.ranks(0).alive());
}

// --- killed ---

TEST_F(ServiceTest, FinishesAPinnedCheckpointInItsNextLife) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  kill_service();
  ASSERT_TRUE(make_step(1));  // training does not need the service
  for (std::int64_t step = 2; step < 20; ++step) make_step(step);
  start();
  EXPECT_TRUE(eventually([&] { return stored_steps() == std::vector<std::int64_t>{1}; }));
  EXPECT_TRUE(eventually([&] { return status().durable_step() == 1; }));
  EXPECT_TRUE(eventually([&] { return (mapped_->requests().load() & kUploadBusy) == 0; }));
  EXPECT_EQ(status().ready_step(), 19);
}

TEST_F(ServiceTest, IsAskedAgainByAClientThatWaitsWhileItIsStartedAnew) {
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  make_step(1);
  for (int round = 0; round < 5; ++round) {
    kill_service();
    std::thread caller([&] {
      auto reply = say(hello_of(2, layout_));
      EXPECT_TRUE(reply) << reply.error().message;
    });
    ServiceClient other(arena_, kJobId);
    EXPECT_TRUE(ensure_service(other, launch_, now() + kPatience));
    caller.join();
  }
}

// Kills the service at seeded moments while a gang trains, checkpoints, and starts anew. Whatever
// happens, the newest finished step is there and the newest published one loads.
TEST_F(ServiceTest, LosesNothingWheneverItIsKilled) {
  write_job("interval: 100ms, keep: 1, cpu_limit: unlimited");
  std::mt19937_64 random(5);
  start();
  auto reply = say_hello(1);
  ASSERT_TRUE(reply);
  make_step(0);
  std::int64_t step = 0;
  std::int64_t newest_stored = 0;
  int between = 0;
  for (std::int64_t round = 1; round <= 25; ++round) {
    const Time until = now() + std::chrono::milliseconds(random() % 250);
    while (now() < until) {
      make_step(++step);
      ::usleep(1000);
    }
    kill_service();
    make_step(++step);
    const auto stored = stored_steps();
    if (!stored.empty()) {
      EXPECT_GE(stored.front(), newest_stored);
      between += stored.front() > newest_stored ? 1 : 0;
      newest_stored = stored.front();
    }
    start();
    if (round % 5 != 0) continue;
    auto again = say_hello(round);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->known_step(), step);
    ASSERT_GE(again->candidates_size(), 1);
    service::Candidate best = again->candidates(0);
    for (const auto& candidate : again->candidates()) {
      if (candidate.step() > best.step()) best = candidate;
    }
    EXPECT_EQ(best.step(), step);
    auto restored = restore(best);
    ASSERT_TRUE(restored) << restored.error().message;
    EXPECT_TRUE(holds(restored->slot(), step));
  }
  EXPECT_GT(between, 1);
  EXPECT_TRUE(eventually([&] { return status().storing_step() < 0; }));
  // No half-written thing stays: the newest, and nothing but whole sets.
  EXPECT_TRUE(eventually([&] { return stored_steps().size() == 1; }));
}

TEST_F(ServiceTest, ExportsTheSameWhenItIsKilledWhileItFinishes) {
  max_steps_ = 3;
  launch_.supervised = true;
  std::mt19937_64 random(6);
  start();
  ASSERT_TRUE(say_hello(1));
  for (std::int64_t step = 0; step <= 3; ++step) make_step(step);
  std::set<std::string> weights;
  for (int round = 0; round < 8; ++round) {
    const auto pause = static_cast<useconds_t>(random() % 60000);
    std::thread caller([&] {
      auto reply = finish(3);
      EXPECT_TRUE(reply) << reply.error().message;
      if (reply) weights.insert(reply->weights_sha256());
    });
    ::usleep(pause);
    kill_service();
    ServiceClient other(arena_, kJobId);
    EXPECT_TRUE(ensure_service(other, launch_, now() + kPatience));
    caller.join();
  }
  EXPECT_EQ(weights.size(), 1u);
  EXPECT_EQ(*sha256_of_file(launch_.job_directory / "final" / "model.safetensors"),
            *weights.begin());
}

TEST_F(ServiceTest, IsStartedByAClientThatHasToSeeToItItself) {
  start();
  ASSERT_TRUE(say_hello(1));
  kill_service();
  client_->when_missing([&] {
    ServiceClient other(arena_, kJobId);
    EXPECT_TRUE(ensure_service(other, launch_, now() + kPatience));
  });
  EXPECT_TRUE(say_hello(2));
}

// Training does not wait for a service that does not start, nor start one with every step.
TEST_F(ServiceTest, IsStartedAtMostOnceInAWhileByWhoMayNotWait) {
  const auto marks = folder_.path() / "marks";
  launch_.program = folder_.path() / "ends-at-once";
  std::ofstream(launch_.program) << "#!/bin/sh\necho here >> " << marks.string() << "\n";
  std::filesystem::permissions(launch_.program, std::filesystem::perms::owner_all);
  const auto count = [&] {
    const auto text = read_file(marks);
    return text ? std::count(text->begin(), text->end(), '\n') : 0;
  };
  ServiceStarter starter(arena_, launch_);
  // When it is looked, and how many have been started by then: pauses of 2, 4, 8 s.
  struct Look {
    Duration after;
    std::int64_t started;
  };
  const Time begun = now();
  for (const Look look :
       {Look{0s, 1}, {1s, 1}, {1999ms, 1}, {2s, 2}, {5s, 2}, {6s, 3}, {13s, 3}, {14s, 4}}) {
    // The one before has ended, so that only time is in the way.
    ASSERT_TRUE(
        eventually([&] { return starter.look(begun + look.after) && count() >= look.started; }));
    EXPECT_EQ(count(), look.started) << seconds(look.after);
  }
}

TEST_F(ServiceTest, IsWaitedForByAClientThatGetsSignals) {
  start();
  struct sigaction nothing {};
  struct sigaction before {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &nothing, &before), 0);
  const auto process = *service_process();
  ASSERT_TRUE(send_signal(process, SIGSTOP));
  const pthread_t caller = ::pthread_self();
  std::thread disturber([&] {
    for (int i = 0; i < 20; ++i) {
      ::usleep(5000);
      ::pthread_kill(caller, SIGUSR1);
    }
    (void)send_signal(process, SIGCONT);
  });
  service::Request request;
  request.mutable_status();
  const auto reply = client_->call(request, now() + kPatience);
  disturber.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_TRUE(reply) << reply.error().message;
}

TEST_F(ServiceTest, TellsWhyAServiceCannotStart) {
  std::ofstream(launch_.job_file) << "name: 3\n";
  const Status started = ensure_service(*client_, launch_, now() + kPatience);
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().message.find("job.yaml"), std::string::npos) << started.error().message;
}

// --- a store that fails ---

TEST_F(ServiceTest, RefusesToStartAJobWhoseStoreCannotBeUsed) {
  std::ofstream(launch_.job_directory / "checkpoints") << "a file where the folder should be";
  start();
  auto reply = say(hello_of(1, layout_));
  ASSERT_FALSE(reply);
  EXPECT_NE(reply.error().message.find("checkpoints"), std::string::npos) << reply.error().message;
}

TEST_F(ServiceTest, TrainsOnWhileTheStoreFailsAndStoresTheNewestWhenItIsBack) {
  write_job("interval: 100ms");
  start();
  ASSERT_TRUE(say_hello(1));
  make_step(0);
  ASSERT_TRUE(eventually([&] { return (mapped_->requests().load() & kRequestCheckpoint) != 0; }));
  std::filesystem::remove_all(launch_.job_directory / "checkpoints");
  std::ofstream(launch_.job_directory / "checkpoints") << "in the way";
  std::int64_t step = 0;
  const Time until = now() + 2500ms;
  while (now() < until) {
    make_step(++step);  // never waits for the store: that would be for ever
    ::usleep(1000);
  }
  auto failing = status();
  EXPECT_NE(failing.waiting_for(), "");
  EXPECT_EQ(failing.durable_step(), -1);
  EXPECT_EQ(failing.ready_step(), step);
  std::filesystem::remove(launch_.job_directory / "checkpoints");
  ASSERT_TRUE(eventually([&] { return status().durable_step() > 0; }));
  EXPECT_GT(status().durable_step(), 1) << "the newest step is stored, not the first that failed";
  EXPECT_EQ(status().waiting_for(), "");
  // A new gang can go on from memory even with the store away.
  std::filesystem::remove_all(launch_.job_directory / "checkpoints");
  std::ofstream(launch_.job_directory / "checkpoints") << "in the way";
  auto reply = say_hello(2);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_GE(reply->candidates_size(), 1);
}

TEST_F(ServiceTest, SaysSoWhenTheDiskIsFullAndTrainsOn) {
  std::filesystem::create_directories(launch_.job_directory / "checkpoints");
  const auto disk = launch_.job_directory / "checkpoints";
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "skipped: mounting a tmpfs is not allowed here";
  max_steps_ = 29;
  start();
  const auto reply = say_hello(1);
  EXPECT_TRUE(reply);
  if (reply) {
    make_step(0);
    make_step(1);
    EXPECT_TRUE(eventually([&] { return !status().waiting_for().empty(); }));
    EXPECT_NE(status().waiting_for().find("No space left"), std::string::npos)
        << status().waiting_for();
    for (std::int64_t step = 2; step < 30; ++step) make_step(step);
    EXPECT_EQ(status().ready_step(), 29);
    EXPECT_EQ(finish(29).error().code, Code::kRetry);
  }
  kill_service();
  ::umount(disk.c_str());
}

// A pipe to which nothing is written stands for a file on a disk that does not answer.
TEST_F(ServiceTest, EndsThoughAThreadHangsOnADisk) {
  start();
  const auto process = service_process();
  ASSERT_TRUE(process);
  const auto pipe = launch_.job_directory / "job.json";
  ASSERT_TRUE(std::filesystem::remove(pipe));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Fd held;  // open once the thread that looks at the job directory reads
  ASSERT_TRUE(eventually([&] {
    held = Fd(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return static_cast<bool>(held);
  }));
  ASSERT_TRUE(shut_down(false, false));
  EXPECT_TRUE(eventually([&] { return !is_alive(*process); }));
  EXPECT_TRUE(logged("hangs"));
}

TEST_F(ServiceTest, NamesAnArenaFolderThatIsTooSmall) {
  const auto disk = folder_.path() / "shm";
  std::filesystem::create_directories(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=8m") != 0)
    GTEST_SKIP() << "skipped: mounting a tmpfs is not allowed here";
  start();
  auto reply = say(hello_of(1, layout_));
  EXPECT_FALSE(reply);
  if (!reply) {
    EXPECT_EQ(reply.error().code, Code::kNoSpace);
    EXPECT_NE(reply.error().message.find("checkpoint.arena"), std::string::npos);
  }
  kill_service();
  ::umount(disk.c_str());
}

}  // namespace
}  // namespace surefoot
