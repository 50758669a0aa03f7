// What can be tested of machines without having any: a command that runs here takes ssh's place.
// Real machines: tests/e2e/ssh_launch_test.cpp.
#include "launcher/nodes/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "common/test_paths.h"
#include "configs/job_directory.h"
#include "launcher/nodes/bundle.h"
#include "launcher/nodes/network.h"
#include "launcher/nodes/node_list.h"
#include "launcher/nodes/start_request.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;
constexpr Duration kPatience = 30s;

// ---- pure ----

TEST(Addresses, AreThoseOfTheNetworkOrOfTheWayByWhichSshCame) {
  const std::vector<InterfaceAddress> own = {{"lo", "127.0.0.1"},
                                             {"eth0", "fe80::1"},
                                             {"eth0", "fd00::5"},
                                             {"eth0", "10.0.3.4"},
                                             {"ib0", "192.168.7.1"}};
  EXPECT_EQ(*choose_address("10.0.0.0/16", "", own), "10.0.3.4");
  EXPECT_EQ(*choose_address("eth0", "", own), "10.0.3.4");
  EXPECT_EQ(*choose_address("fd00::/8", "", own), "fd00::5");
  EXPECT_EQ(*choose_address("", "10.0.9.9 5000 10.0.3.4 22", own), "10.0.3.4");
  EXPECT_EQ(*choose_address("", "", own), "127.0.0.1");
  EXPECT_EQ(*choose_address("", "UNKNOWN", own), "127.0.0.1");
  EXPECT_EQ(*choose_address("", "fe80::9%eth0 5000 fe80::1%eth0 22", own), "127.0.0.1")
      << "says nothing without its interface, of which each machine has others";
  EXPECT_THAT(choose_address("ib1", "", own).error().message, HasSubstr("ib0 192.168.7.1"));
}

TEST(MpiNetwork, IsTheSmallestThatHoldsAllUnlessOneIsGiven) {
  EXPECT_EQ(mpi_network("", {"10.77.0.1", "10.77.0.2", "10.77.0.3"}), "10.77.0.0/30");
  EXPECT_EQ(mpi_network("", {"10.0.255.1", "10.1.0.1"}), "10.0.0.0/15");
  EXPECT_EQ(mpi_network("", {"10.0.0.1"}), "10.0.0.1/32");
  EXPECT_EQ(mpi_network("", {"127.0.0.1", "10.0.0.1", "10.0.0.3"}), "10.0.0.0/30");
  EXPECT_EQ(mpi_network("", {"127.0.0.1"}), "");
  EXPECT_EQ(mpi_network("", {"10.0.0.1", "192.168.0.1"}), "");
  EXPECT_EQ(mpi_network("", {"10.0.0.1", "fd00::1"}), "");
  EXPECT_EQ(mpi_network("ib0", {"10.0.0.1"}), "ib0");
  EXPECT_EQ(mpi_network("", {}), "");
}

TEST(Endpoints, NameTheirAddress) {
  EXPECT_EQ(address_of_endpoint("tcp://10.0.0.5:4000"), "10.0.0.5");
  EXPECT_EQ(address_of_endpoint("tcp://[fd00::5]:4000"), "fd00::5");
  for (const char* text : {"", "tcp://", "ipc:///x:1", "tcp://:5", "tcp://gpu-1:5", "tcp://::1:5"})
    EXPECT_EQ(address_of_endpoint(text), "") << text;
}

TEST(Loopback, IsNotWhatOnlyLooksLikeIt) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1"}) EXPECT_TRUE(is_loopback(address));
  for (const char* address : {"", "10.0.0.127", "127.evil", "fe80::1", "12.7.0.1"})
    EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(AddressTowards, IsTheLoopbackOnTheWayToOurselves) {
  EXPECT_EQ(*address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_towards("host").error().code, Code::kInvalid);
}

TEST(Names, ThatMeanThisMachineAreKnownWithoutAsking) {
  for (const std::string& name :
       {std::string(), std::string("localhost"), std::string("127.0.0.1"), host_name()})
    EXPECT_TRUE(is_this_machine(name)) << name;
  for (const char* name : {"me@localhost", "gpu-1.invalid", "192.0.2.1"})
    EXPECT_FALSE(is_this_machine(name)) << name;
}

TEST(NodeLists, ComeBackAsTheyWereWrittenAndOthersAreRefused) {
  const NodeList list{Attempt{3},
                      "0123456789abcdef",
                      "/d/service.keys",
                      "/d/logs",
                      {{"10.0.0.5", "tcp://10.0.0.5:1"}}};
  const auto back = parse_node_list(to_text(list));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_text(*back), to_text(list));
  const std::string text = to_text(list);
  for (std::size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_FALSE(parse_node_list(text.substr(0, size)));
  EXPECT_FALSE(parse_node_list("[1]"));
  EXPECT_FALSE(parse_node_list("{}"));
}

TEST(LaunchedCommand, IsWhatMpirunSaysWithoutTheProfile) {
  EXPECT_EQ(launched_command({" orted", "-mca", "x", "\"a b\""}), "exec orted -mca x \"a b\"");
  EXPECT_EQ(launched_command({"( test ! -r ./.profile || . ./.profile;", "", "orted", "-mca", "x",
                              "\"^y\"", ")"}),
            "exec orted -mca x \"^y\" ");
  EXPECT_EQ(launched_command({"", " "}), "");
}

ProgramEnd ended(int code, const std::string& errors) {
  ProgramEnd end;
  end.status.code = code;
  end.errors = errors;
  return end;
}

constexpr const char* kOldSystem =
    "/opt/surefoot-node: /lib/libc.so.6: version `GLIBC_2.36' not found (required by "
    "/opt/surefoot-node)\n";

TEST(Failures, OfSshAreNamedWithWhatTheUserCanDo) {
  struct Case {
    ProgramEnd end;
    Code code;
    const char* says;
    const char* bundle = "";
  };
  ProgramEnd late;
  late.why = ProgramEnd::Why::kDeadline;
  const Case cases[] = {
      {ended(255, "Host key verification failed.\r\n"), Code::kInvalid, "host key is not known"},
      {ended(255, "banner\nme@a: Permission denied (publickey).\r\n"), Code::kInvalid,
       "without a password"},
      {ended(255, "ssh: connect to host a port 22: No route to host\r\n"), Code::kRetry,
       "No route to host"},
      {ended(255, "ssh: connect to host a port 22: Connection timed out\r\n"), Code::kRetry,
       "timed out"},
      {ended(255, ""), Code::kRetry, "ssh failed"},
      {ended(127, "sh: 1: exec: /opt/surefoot-node: not found\n"), Code::kInvalid,
       "has no /opt/surefoot-node"},
      {ended(127, "/opt/surefoot-node: error while loading shared libraries: libzmq.so.5: ...\n"),
       Code::kInvalid, "libzmq.so.5: ... (resources.bundle brings"},
      {ended(1, kOldSystem), Code::kInvalid, "(resources.bundle brings"},
      {ended(1, kOldSystem), Code::kInvalid, "newer than this machine's", "/b.tgz"},
      {ended(127, "sh: 1: exec: bin/surefoot-node: not found\n"), Code::kInvalid, "/b.tgz must be",
       "/b.tgz"},
      {ended(126, "Permission denied\n"), Code::kInvalid, "has no"},
      {ended(64, "has Surefoot 0.0.9, and 0.1.0 is asked for\n"), Code::kInvalid, "0.0.9"},
      {ended(66, "no space\n"), Code::kRetry, "a: no space"},
      {late, Code::kRetry, "did not come back"},
  };
  for (const Case& one : cases) {
    const Error found = reason_of_failure("a", "/opt/surefoot-node", one.end, one.bundle);
    EXPECT_EQ(found.code, one.code) << found.message;
    EXPECT_THAT(found.message, HasSubstr(one.says));
    EXPECT_EQ(found.message.rfind("a: ", 0), 0u) << found.message;
  }
}

// ---- a machine that is this one ----

const std::string kJob = R"(
name: there
model: {kind: mlp, hidden: [8]}
data: {kind: synthetic, samples: 10}
train: {max_steps: 10, global_batch_size: 4, micro_batch_size: 2, optimizer: {kind: sgd, lr: 0.1}}
checkpoint: {arena: {arena}, to: {arena}/store, arena_ttl: 30s}
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

class FakeSsh : public testing::Test {
 protected:
  FakeSsh() {
    std::string form = (fs::temp_directory_path() / "surefoot-ssh-XXXXXX").string();
    EXPECT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
    fs::create_directories(root_ / "dir");
    settings_.job_id = make_job_id();
    settings_.job = replaced(kJob, "{arena}", (root_ / "shm").string());
    settings_.keys = *make_service_keys(root_ / "service.keys");
    settings_.directory = root_ / "there" / "run";
    settings_.arena_folder = arena_folder((root_ / "shm").string(), settings_.job_id);
    settings_.programs = programs_folder();
    ::unsetenv("SSH_CONNECTION");
    // Notes its arguments and environment, then runs the last argument as sshd would.
    settings_.ssh = ssh("shift $(($# - 1)); exec /bin/sh -c \"$1\"");
  }
  ~FakeSsh() override {
    const auto lock = read_file(settings_.arena_folder / "service.lock");
    const auto process = process_of(lock ? std::atoi(lock->c_str()) : 0);
    EXPECT_TRUE(!process || end_processes({*process}, now() + kPatience));
    fs::remove_all(root_);
  }
  std::string ssh(const std::string& rest) {
    const fs::path script = root_ / "ssh";
    std::ofstream(script) << "#!/bin/sh\nprintf '%s\\n' \"$@\" >> " << (root_ / "seen").string()
                          << "\nenv >> " << (root_ / "seen").string() << "\n"
                          << rest << "\n";
    fs::permissions(script, fs::perms::owner_all);
    return shell_quoted(script.string());
  }
  Result<NodeAccess> start() { return bootstrap("gpu-1", settings_, now() + kPatience); }
  Result<service::Reply> ask(const std::string& endpoint) {
    service::Request request;
    request.mutable_status();
    ServiceClient client(ServiceAddress::elsewhere(endpoint, client_half(settings_.keys)),
                         settings_.job_id);
    return client.call(request, now() + kPatience);
  }

  fs::path root_;
  BootstrapSettings settings_;
};

TEST_F(FakeSsh, StartsAServiceThatStaysAndTellsHowItIsReached) {
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  EXPECT_EQ(access->address, "127.0.0.1");
  EXPECT_EQ(access->host, host_name());
  EXPECT_TRUE(access->local) << "another name for this very machine";
  const auto reply = ask(access->endpoint);
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->status().endpoint(), access->endpoint);
  // What a later life of the service, and the workers, find there.
  EXPECT_EQ(*read_file(node_job_file(settings_.arena_folder)), settings_.job);
  EXPECT_EQ(fs::canonical(node_programs(settings_.arena_folder)),
            fs::canonical(settings_.programs));
  struct stat info {};
  for (const fs::path& file :
       {node_keys(settings_.arena_folder), node_job_file(settings_.arena_folder)}) {
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file;
  }
  EXPECT_EQ(*JobDirectory{settings_.directory}.job_id("there"), settings_.job_id);
}

TEST_F(FakeSsh, FindsTheServiceThatRunsAlready) {
  const auto first = start();
  ASSERT_TRUE(first) << first.error().message;
  const auto second = start();
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(first->endpoint, second->endpoint);
  EXPECT_EQ(ask(first->endpoint)->status().pid(), ask(second->endpoint)->status().pid());
}

TEST_F(FakeSsh, ItsNextLifeHasTheSameKeysWhoeverStartsIt) {
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  const auto process = process_of(ask(access->endpoint)->status().pid());
  ASSERT_TRUE(process && end_processes({*process}, now() + kPatience));
  // As a worker does.
  ServiceClient client(settings_.arena_folder, settings_.job_id);
  ServiceLaunch launch{settings_.programs / "surefoot-node",
                       node_job_file(settings_.arena_folder),
                       settings_.directory,
                       {},
                       true};
  ASSERT_TRUE(ensure_service(client, launch, now() + kPatience));
  const auto again = start();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(ask(again->endpoint));
}

// A machine to which ssh does not tell by which address it came in.
TEST_F(FakeSsh, OneThatListensOnItsLoopbackOnlyIsNamed) {
  const std::string run = "shift $(($# - 1)); unset SSH_CONNECTION; /bin/sh -c \"$1\"";
  settings_.ssh = ssh(run + " | sed 's/\"boot\":[0-9]*/\"boot\":1/'");
  const auto access = start();
  ASSERT_FALSE(access);
  EXPECT_EQ(access.error().code, Code::kInvalid);
  EXPECT_THAT(access.error().message, HasSubstr("gpu-1: its service listens on 127.0.0.1 only"));
  EXPECT_THAT(access.error().message, HasSubstr("set resources.network"));
}

TEST_F(FakeSsh, OnceANetworkIsGivenTheServiceMovesThereFromTheLoopback) {
  const auto own = interface_addresses();
  const auto outer = std::find_if(own.begin(), own.end(), [](const InterfaceAddress& one) {
    return !is_loopback(one.address) && one.address.find(':') == std::string::npos;
  });
  if (outer == own.end()) GTEST_SKIP() << "this machine has a loopback only";
  const auto before = start();
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_EQ(before->address, "127.0.0.1");
  settings_.job += "resources: {network: " + outer->address + "/32}\n";
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  EXPECT_EQ(access->address, outer->address);
  EXPECT_TRUE(ask(access->endpoint));
  EXPECT_EQ(ask(start()->endpoint)->status().pid(), ask(access->endpoint)->status().pid());
}

// As logind does at log-out.
TEST_F(FakeSsh, WhatItHasPlacedComesAgainWithAFolderThatSomebodyRemoved) {
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  const std::string keys = *read_file(node_keys(settings_.arena_folder));
  const std::string listen = *read_file(node_listen(settings_.arena_folder));
  // As the next bootstrap would; the service runs on.
  settings_.job += "# changed\n";
  ASSERT_TRUE(start());
  std::this_thread::sleep_for(1500ms);  // it looks once a second
  fs::remove_all(settings_.arena_folder);
  for (const Time late = now() + kPatience; now() < late; std::this_thread::sleep_for(5ms)) {
    if (fs::exists(settings_.arena_folder / "service.sock")) break;
  }
  EXPECT_TRUE(ask(access->endpoint));
  EXPECT_EQ(*read_file(node_job_file(settings_.arena_folder)), settings_.job);
  EXPECT_EQ(*read_file(node_keys(settings_.arena_folder)), keys);
  EXPECT_EQ(*read_file(node_listen(settings_.arena_folder)), listen);
  struct stat info {};
  ASSERT_EQ(::stat(node_keys(settings_.arena_folder).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  // What a launch over several machines begins there.
  service::Request request;
  request.mutable_launch()->set_attempt(1);
  request.mutable_launch()->set_command(
      "cd " + shell_quoted(root_.string()) + " && " +
      shell_quoted((node_programs(settings_.arena_folder) / "surefoot-node").string()) +
      " 2> said.new; mv said.new said");
  request.mutable_launch()->set_log_folder((settings_.directory / "logs" / "attempt-001").string());
  ServiceClient client(ServiceAddress::elsewhere(access->endpoint, client_half(settings_.keys)),
                       settings_.job_id);
  const auto launched = client.call(request, now() + kPatience);
  ASSERT_TRUE(launched) << launched.error().message;
  for (const Time late = now() + kPatience; now() < late; std::this_thread::sleep_for(5ms)) {
    if (fs::exists(root_ / "said")) break;
  }
  EXPECT_THAT(*read_file(root_ / "said"), HasSubstr("usage: surefoot-node"));
}

TEST_F(FakeSsh, ListensOnOneOfThePortsThatAreAllowed) {
  settings_.job += "resources: {network: lo, ports: 42100-42199}\n";
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  const int port = std::atoi(access->endpoint.substr(access->endpoint.rfind(':') + 1).c_str());
  EXPECT_GE(port, 42100);
  EXPECT_LE(port, 42199);
}

TEST_F(FakeSsh, SaysNothingSecretInArgumentsOrEnvironment) {
  ASSERT_TRUE(start());
  const std::string seen = *read_file(root_ / "seen");
  EXPECT_THAT(seen, HasSubstr("BatchMode=yes"));
  EXPECT_THAT(seen, HasSubstr("gpu-1\nexec /bin/sh -c '")) << "for any log-in shell";
  for (const std::string& key :
       {settings_.keys.server_secret, settings_.keys.client_secret, settings_.keys.client_public})
    EXPECT_THAT(seen, Not(HasSubstr(key)));
  for (const auto& entry : fs::recursive_directory_iterator(root_ / "there")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_THAT(*read_file(entry.path()), Not(HasSubstr(settings_.keys.server_secret)))
        << entry.path();
  }
  EXPECT_THAT(*read_file(node_keys(settings_.arena_folder)),
              Not(HasSubstr(settings_.keys.client_secret)));
}

TEST_F(FakeSsh, ALoginThatTalksDoesNotMatter) {
  settings_.ssh =
      ssh("shift $(($# - 1)); echo welcome; echo motd >&2; /bin/sh -c \"$1\"; echo bye");
  const auto access = start();
  EXPECT_TRUE(access) << access.error().message;
}

TEST_F(FakeSsh, AProgramThatIsNotThereAJobOfAnotherVersionAndAFolderThatCannotBeMadeAreNamed) {
  const fs::path programs = settings_.programs;
  settings_.programs = root_ / "nowhere";
  EXPECT_THAT(start().error().message, HasSubstr("gpu-1: has no "));
  settings_.programs = programs;
  settings_.ssh =
      ssh("shift $(($# - 1)); sed 's/\"version\":\"[^\"]*\"/\"version\":\"0.0.9\"/' | /bin/sh -c "
          "\"$1\"");
  const auto other = start();
  EXPECT_EQ(other.error().code, Code::kInvalid);
  EXPECT_THAT(other.error().message, HasSubstr("and 0.0.9 is asked for"));
  settings_.ssh = ssh("shift $(($# - 1)); exec /bin/sh -c \"$1\"");
  settings_.directory = "/proc/none/run";
  EXPECT_THAT(start().error().message,
              HasSubstr("gpu-1: cannot create the job directory /proc/none/run"));
}

TEST_F(FakeSsh, OneThatHangsIsGivenUpAtTheDeadlineOrWhenAskedTo) {
  settings_.ssh = ssh("exec sleep 1000");
  const auto late = bootstrap("gpu-1", settings_, now() + 100ms);
  EXPECT_EQ(late.error().code, Code::kRetry);
  EXPECT_THAT(late.error().message, HasSubstr("in time"));
  const Fd stop(::eventfd(1, EFD_CLOEXEC));  // can be read
  const Time begun = now();
  const auto stopped = bootstrap("gpu-1", settings_, begun + 1h, stop.get());
  EXPECT_EQ(stopped.error().code, Code::kRetry);
  EXPECT_LT(now() - begun, kPatience);
}

TEST_F(FakeSsh, ABundleIsBroughtOnceAndIsWhatRunsThere) {
  const auto pack = [this](const std::string& mark) {
    fs::create_directories(root_ / "bundle" / "bin");
    std::ofstream(root_ / "bundle" / "bin" / "surefoot-node")
        << "#!/bin/sh\n# " << mark << "\nexec "
        << shell_quoted((settings_.programs / "surefoot-node").string()) << " \"$@\"\n";
    fs::permissions(root_ / "bundle" / "bin" / "surefoot-node", fs::perms::owner_all);
    ProgramRun tar;
    tar.argv = {"tar", "-C", (root_ / "bundle").string(), "-czf", (root_ / "b.tgz").string(),
                "bin"};
    tar.deadline = now() + kPatience;
    EXPECT_TRUE(run_program(tar)->succeeded());
  };
  const fs::path cache = root_ / "a cache" / "surefoot";
  const auto kept = [&] { return std::distance(fs::directory_iterator(cache), {}); };
  settings_.ssh =
      ssh("shift $(($# - 1)); export XDG_CACHE_HOME=" + shell_quoted((root_ / "a cache").string()) +
          "; exec /bin/sh -c \"$1\"");
  settings_.bundle = root_ / "b.tgz";
  EXPECT_THAT(start().error().message, HasSubstr("cannot read resources.bundle"));
  pack("one");
  const auto access = start();
  ASSERT_TRUE(access) << access.error().message;
  EXPECT_TRUE(ask(access->endpoint));
  EXPECT_EQ(kept(), 1);
  EXPECT_TRUE(start());
  const std::string seen = *read_file(root_ / "seen");
  EXPECT_EQ(seen.find("tar -xzf"), seen.rfind("tar -xzf")) << "sent once";
  pack("two");
  EXPECT_TRUE(start());
  EXPECT_EQ(kept(), 2) << "another content, another folder, and nothing half done";
  // There, but it lacks a library: not sent again and again.
  pack("three\necho 'x: error while loading shared libraries: libx.so: none' >&2; exit 127");
  EXPECT_THAT(start().error().message, HasSubstr("libx.so"));
  const auto sends = [this] {
    const std::string all = *read_file(root_ / "seen");
    std::size_t count = 0;
    for (auto at = all.find("tar -xzf"); at != all.npos; at = all.find("tar -xzf", at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(sends(), 3u);
  EXPECT_THAT(start().error().message, HasSubstr("or lacks a library"));
  EXPECT_EQ(sends(), 3u);
  EXPECT_EQ(kept(), 3);
  // Cut off on its way.
  fs::resize_file(root_ / "b.tgz", 100);
  const auto cut = start();
  ASSERT_FALSE(cut);
  EXPECT_EQ(kept(), 3);
}

TEST_F(FakeSsh, AnArenaFolderThatIsOpenToOthersIsRefused) {
  fs::create_directories(settings_.arena_folder);
  fs::permissions(settings_.arena_folder, fs::perms(0755));
  EXPECT_THAT(start().error().message, HasSubstr("open to others"));
}

TEST(StartReplies, AreFoundInWhatALoginSaysAndNameAHost) {
  const StartReply reply{"tcp://10.0.0.5:4000", "gpu-1", 7};
  const auto back = parse_start_reply("welcome\n" + to_text(reply) + "bye\n");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_text(*back), to_text(reply));
  // A log is named by it.
  for (const char* host : {"", "../../x", "a/b", "a b", "a\nb", "\x1b[2J"})
    EXPECT_EQ(parse_start_reply(to_text(StartReply{reply.endpoint, host, 7})).error().code,
              Code::kInvalid)
        << host;
  EXPECT_FALSE(parse_start_reply("x" + to_text(reply)));
  EXPECT_FALSE(parse_start_reply(to_text(StartReply{"tcp://:1", "gpu-1", 7})));
}

TEST(StartRequests, ThatAreCutOrChangedAreRefusedAndNeverRepeated) {
  std::string form = (fs::temp_directory_path() / "surefoot-request-XXXXXX").string();
  ASSERT_NE(::mkdtemp(form.data()), nullptr);
  const ServiceKeys keys = *make_service_keys(fs::path(form) / "keys");
  fs::remove_all(form);
  const std::string text = to_text(StartRequest{"0123456789abcdef", "/d", "/dev/shm/x", "name: a\n",
                                                to_text(server_half(keys))});
  ASSERT_TRUE(parse_start_request(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    const auto cut = parse_start_request(text.substr(0, size));
    ASSERT_FALSE(cut);
    EXPECT_THAT(cut.error().message, Not(HasSubstr(keys.server_secret)));
  }
  EXPECT_FALSE(parse_start_request(replaced(text, "/dev/shm", "shm")));
  EXPECT_FALSE(parse_start_request(replaced(text, keys.server_secret, "x")));
}

}  // namespace
}  // namespace surefoot
