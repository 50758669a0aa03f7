// Rules over made-up programs, machines that others named, and stores; what findings look like; and
// that checks which hang, crash or throw take nothing else with them.
#include "launcher/doctor/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "checkpoint/store/file/file_store.h"
#include "launcher/doctor/hosts.h"
#include "launcher/doctor/store_check.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// ---- findings ----

TEST(Findings, AreALineEachAndNoTerminalActsOnThem) {
  EXPECT_EQ(line_of(on("0", warn("gpu", "hot\nand\033[2J loud", "cool it"))),
            "warn         gpu 0              hot and [2J loud -> cool it");
  const std::string screen = screen_of({ok("a", "b"), not_checked("c", "d")});
  EXPECT_THAT(screen, HasSubstr("not checked  c                  d\n"));
  EXPECT_THAT(screen, HasSubstr("1 ok, 0 warn, 0 bad, 1 not checked\n"));
}

TEST(Findings, SurviveTheirJsonAndAnythingElseIsRefused) {
  for (const Finding& finding :
       {ok("a", "b"), on("x", warn("a", "b", "c")), bad("a", "b", "c"), not_checked("a", "b")}) {
    const auto back = parse_finding(to_json(finding).dump());
    ASSERT_TRUE(back);
    EXPECT_EQ(line_of(*back), line_of(finding));
  }
  for (const char* text : {"", "{}", "[]", R"({"check":"a","on":"","found":"","cure":""})",
                           R"({"check":1,"on":"","found":"","cure":"","verdict":"ok"})",
                           R"({"check":"a","on":"","found":"","cure":"","verdict":"fine"})"})
    EXPECT_FALSE(parse_finding(text)) << text;
}

TEST(Findings, AreUnusableOnlyWhenOneIsBad) {
  EXPECT_EQ(exit_code_of({}), 0);
  EXPECT_EQ(exit_code_of({ok("a", ""), warn("b", "", ""), not_checked("c", "")}), 0);
  EXPECT_EQ(exit_code_of({ok("a", ""), bad("b", "", "")}), 66);
  EXPECT_EQ(bad_only_if(false, bad("a", "b", "c")).verdict, Verdict::kWarn);
  EXPECT_EQ(bad_only_if(true, bad("a", "b", "c")).verdict, Verdict::kBad);
  const nlohmann::json report = report_of({bad("b", "f", "c")}, "vm", "");
  EXPECT_EQ(report["exit_code"], 66);
  EXPECT_EQ(report["bad"], 1);
  EXPECT_TRUE(report["job"].is_null());
  EXPECT_EQ(report["checks"][0]["verdict"], "bad");
}

// ---- checks in children ----

TEST(Checks, ThatHangCrashOrThrowAreNotCheckedAndTheOthersAre) {
  const Time begin = now();
  const auto findings = run_checks({
      {{"hangs"}, 100ms, [](const Asked&) { ::sleep(1000); }},
      {{"first", "second"},
       100ms,
       [](const Asked& asked) {
         asked.say(ok("first", "was said"));
         ::sleep(1000);
       }},
      {{"crashes"}, 5s, [](const Asked&) { ::raise(SIGKILL); }},
      {{"throws"}, 5s, [](const Asked&) { throw std::runtime_error("a library's"); }},
      {{"is silent"}, 5s, [](const Asked&) {}},
      {{"is well"},
       5s,
       [](const Asked& asked) {
         std::printf("noise of a library\n");
         asked.say(ok("is well", std::string(200'000, 'x') + "\n\xff"));
       }},
  });
  EXPECT_LT(now() - begin, 4s);
  ASSERT_THAT(findings, SizeIs(7));
  EXPECT_EQ(findings[0].verdict, Verdict::kNotChecked);
  EXPECT_THAT(findings[0].found, HasSubstr("no answer within"));
  EXPECT_EQ(findings[1].verdict, Verdict::kOk);
  EXPECT_EQ(findings[2].check, "second");
  EXPECT_EQ(findings[2].verdict, Verdict::kNotChecked);
  EXPECT_THAT(findings[3].found, HasSubstr("ended by Killed"));
  EXPECT_EQ(findings[4].found, "a library's");
  EXPECT_EQ(findings[5].found, "no answer");
  EXPECT_EQ(findings[6].verdict, Verdict::kOk);
  EXPECT_GT(findings[6].found.size(), 200'000u);
}

TEST(Checks, OfAParentThatIsKilledSeeIt) {
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    (void)run_checks({{{"waits"}, 60s, [&](const Asked& asked) {
                         char end;
                         // Nobody ever writes: it can be read when the other end is gone.
                         if (::write(told[1], "r", 1) != 1 ||
                             (::read(asked.stop, &end, 1) == 0 && ::write(told[1], "x", 1) != 1))
                           ::_exit(1);
                       }}});
    ::_exit(0);
  }
  ::close(told[1]);
  char said = 0;
  ASSERT_EQ(::read(told[0], &said, 1), 1);
  EXPECT_EQ(said, 'r') << "until it waits";
  ::kill(parent, SIGKILL);
  EXPECT_EQ(::read(told[0], &said, 1), 1);
  EXPECT_EQ(said, 'x');
  ::close(told[0]);
}

// ---- programs ----

TEST(Programs, ThatAreMissingAreNamed) {
  EXPECT_EQ(check_programs("/bin", {}).verdict, Verdict::kOk);
  const Finding finding = check_programs("/bin", {"surefoot-node", "surefoot-rsh"});
  EXPECT_EQ(finding.verdict, Verdict::kBad);
  EXPECT_EQ(finding.found, "surefoot-node, surefoot-rsh missing from /bin");
}

TEST(Libraries, OfTheWorkerAreReadAndOneThatIsMissingIsBad) {
  auto libraries = parse_libraries(
      "\tlinux-vdso.so.1 (0x00007fff)\n\tlibtorch_cpu.so.1.13 => /lib/libtorch_cpu.so.1.13 (0x1)\n"
      "\tlibmpi.so.40 => /lib/libmpi.so.40 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n");
  ASSERT_THAT(libraries, SizeIs(2));
  EXPECT_EQ(path_of(libraries, "libmpi"), "/lib/libmpi.so.40");
  EXPECT_EQ(path_of(libraries, "libnccl"), "");
  EXPECT_EQ(check_libraries(libraries).verdict, Verdict::kOk);
  EXPECT_THAT(check_libraries(libraries).found, HasSubstr("no GPU in this libtorch"));
  libraries = parse_libraries("\tlibmpi.so.40 => not found\n");
  EXPECT_EQ(check_libraries(libraries).verdict, Verdict::kBad);
  EXPECT_THAT(check_libraries(libraries).found, HasSubstr("does not find libmpi.so.40"));
}

TEST(Libraries, AreThoseOfTheProgramThatAScriptRuns) {
  std::string form = (fs::temp_directory_path() / "surefoot-doctor-XXXXXX").string();
  ASSERT_NE(::mkdtemp(form.data()), nullptr);
  const fs::path script = fs::path(form) / "surefoot-worker";
  std::ofstream(script) << "#!/bin/sh\n[ -n \"$SUREFOOT_LIST_LIBRARIES\" ] || exit 1\n"
                           "LD_TRACE_LOADED_OBJECTS=1 exec /proc/"
                        << ::getpid() << "/exe\n";
  fs::permissions(script, fs::perms::owner_all);
  Asked asked;
  asked.deadline = now() + 20s;
  for (const fs::path& program : {script, fs::canonical("/proc/self/exe")}) {
    const auto libraries = list_libraries(program, asked);
    ASSERT_TRUE(libraries) << libraries.error().message;
    EXPECT_NE(path_of(*libraries, "libprotobuf"), "") << program;
  }
  fs::remove_all(form);
}

TEST(Blas, WhoseKernelIsNotKnownIsAWarning) {
  EXPECT_EQ(check_numerics("libtorch 1.13.0; OpenBLAS 0.3.21 kernel Zen; AVX2").verdict,
            Verdict::kOk);
  EXPECT_EQ(check_numerics("libtorch 1.13.0; BLAS unknown; AVX2").verdict, Verdict::kWarn);
}

MpirunFacts mpirun(const std::string& version) {
  MpirunFacts facts;
  facts.version = version;
  facts.runs = true;
  return facts;
}

TEST(Mpirun, Of41IsWantedAndOthersAreRefusedOrDoubted) {
  EXPECT_EQ(check_mpirun(mpirun("mpirun (Open MPI) 4.1.4")).verdict, Verdict::kOk);
  EXPECT_EQ(check_mpirun(mpirun("mpirun (Open MPI) 4.0.5")).verdict, Verdict::kWarn);
  EXPECT_EQ(check_mpirun(mpirun("mpirun (Open MPI) 5.0.3")).verdict, Verdict::kBad);
  EXPECT_EQ(check_mpirun(mpirun("HYDRA build details:")).verdict, Verdict::kBad);
  MpirunFacts facts = mpirun("mpirun (Open MPI) 4.1.4");
  facts.root = true;
  EXPECT_THAT(check_mpirun(facts).found, HasSubstr("--allow-run-as-root"));
  facts.runs = false;
  facts.run_fault = "no slots";
  EXPECT_EQ(check_mpirun(facts).verdict, Verdict::kBad);
  facts.late = true;
  EXPECT_EQ(check_mpirun(facts).verdict, Verdict::kNotChecked);
  MpirunFacts none;
  none.fault = "mpirun: No such file or directory";
  EXPECT_THAT(check_mpirun(none).cure, HasSubstr("openmpi-bin"));
}

TEST(ReductionOfAMachine, IsAFigureOrAReason) {
  Measured facts;
  facts.ranks = 2;
  facts.bytes = 16 << 20;
  facts.seconds = 0.002;
  EXPECT_THAT(check_reduction(facts).found, HasSubstr("16.0 MiB in 2.00 ms, 8.39 GB/s"));
  facts.unavailable = "not there";
  EXPECT_EQ(check_reduction(facts).verdict, Verdict::kNotChecked);
  facts.unavailable.clear();
  facts.fault = "a rank died";
  EXPECT_EQ(check_reduction(facts).verdict, Verdict::kBad);
}

TEST(Ssh, IsNeededOnlyWhereOthersAreNamed) {
  EXPECT_EQ(check_ssh({false, "", "OpenSSH_9.2p1"}, true).verdict, Verdict::kOk);
  EXPECT_EQ(check_ssh({false, "ssh: not found", ""}, false).verdict, Verdict::kOk);
  EXPECT_EQ(check_ssh({false, "ssh: not found", ""}, true).verdict, Verdict::kBad);
  EXPECT_EQ(check_ssh({true, "no answer in time", ""}, true).verdict, Verdict::kNotChecked);
}

// ---- what a job takes ----

const JobNeeds kNeeds = {
    .state_bytes = 1 * kGiB, .arena_bytes = 3 * kGiB, .worker_bytes = kGiB / 2, .workers = 4};

SharedMemoryFacts shm(std::int64_t free_bytes) {
  SharedMemoryFacts facts;
  facts.folder = "/dev/shm";
  facts.total_bytes = 4 * kGiB;
  facts.free_bytes = free_bytes;
  facts.memory = true;
  return facts;
}

TEST(Needs, AreReadFromTheWorkersWord) {
  const JobNeeds needs = needs_of({{"state_bytes", 10},
                                   {"arena_bytes", 30},
                                   {"gradient_buffer_bytes", 5},
                                   {"receive_bytes", 2},
                                   {"steps", "many"}},
                                  3);
  EXPECT_EQ(needs.arena_bytes, 30);
  EXPECT_EQ(needs.worker_bytes, 7);
  EXPECT_EQ(needs.workers, 3);
}

TEST(Needs, OfTheArenaCountWhatTheJobHoldsAlready) {
  EXPECT_EQ(check_arena(kNeeds, shm(3 * kGiB), 0).verdict, Verdict::kOk);
  const Finding little = check_arena(kNeeds, shm(1 * kGiB), 0);
  EXPECT_EQ(little.verdict, Verdict::kBad);
  EXPECT_THAT(little.found, HasSubstr("three snapshots take 3.0 GiB, /dev/shm has 1.0 GiB"));
  EXPECT_THAT(little.cure, HasSubstr("6.0 GiB at least"));
  EXPECT_EQ(check_arena(kNeeds, shm(1 * kGiB), 2 * kGiB).verdict, Verdict::kOk);
}

TEST(Needs, OfMemoryAreHeldAgainstTheTighterOfMachineAndGroup) {
  MemoryFacts memory;
  memory.available_bytes = 5 * kGiB;
  EXPECT_EQ(check_job_memory(kNeeds, shm(3 * kGiB), 0, memory).verdict, Verdict::kOk);
  memory.cgroup_bytes = 4 * kGiB;
  const Finding held = check_job_memory(kNeeds, shm(3 * kGiB), 0, memory);
  EXPECT_EQ(held.verdict, Verdict::kBad);
  EXPECT_THAT(held.found, HasSubstr("4 workers take 5.0 GiB"));
  EXPECT_THAT(held.cure, HasSubstr("--memory"));
  EXPECT_EQ(check_job_memory(kNeeds, shm(3 * kGiB), 1 * kGiB, memory).verdict, Verdict::kOk);
  SharedMemoryFacts disk = shm(3 * kGiB);
  disk.memory = false;
  EXPECT_EQ(check_job_memory(kNeeds, disk, 0, memory).verdict, Verdict::kOk);
}

TEST(Needs, OfADiskAreOneCheckpointMoreThanAreKept) {
  const auto verdict = [](std::int64_t free_bytes) {
    return check_checkpoint_room(kNeeds, "/mnt", free_bytes, 3, false).verdict;
  };
  EXPECT_EQ(verdict(4 * kGiB), Verdict::kOk);
  EXPECT_EQ(verdict(3 * kGiB), Verdict::kWarn);
  EXPECT_EQ(verdict(kGiB / 2), Verdict::kBad);
  EXPECT_THAT(check_checkpoint_room(kNeeds, "/mnt", 9 * kGiB, 3, true).found,
              HasSubstr("keep_every"));
}

// ---- other machines ----

ProgramEnd ssh_end(int code, const std::string& output, const std::string& errors) {
  ProgramEnd end;
  end.status.code = code;
  end.output = output;
  end.errors = errors;
  return end;
}

TEST(Hosts, ThatAnswerAreOkWithTheirAddressAndWhatTheyLack) {
  const auto finding = [](const std::string& said, bool bundle = false) {
    return check_host(host_facts("gpu-b", "/opt/bin", ssh_end(0, said, ""), 0.25), "/opt/bin",
                      bundle);
  };
  const Finding well = finding("Welcome!\n\nsurefoot-doctor 1 1 10.0.0.2 5000 10.0.0.5 22\n");
  EXPECT_EQ(well.verdict, Verdict::kOk);
  EXPECT_THAT(well.found, HasSubstr("reached in 0.25 s, by its address 10.0.0.5"));
  EXPECT_EQ(finding("surefoot-doctor 0 1 \n").verdict, Verdict::kBad);
  EXPECT_THAT(finding("surefoot-doctor 1 0 \n").cure, HasSubstr("openmpi-bin"));
  EXPECT_EQ(finding("surefoot-doctor 0 0 \n", true).verdict, Verdict::kOk);
}

TEST(Hosts, ThatAreNotReachedSayWhyAndThatHangAreNotChecked) {
  const auto finding = [](const ProgramEnd& end) {
    return check_host(host_facts("gpu-b", "/opt/bin", end, 0.25), "/opt/bin", false);
  };
  const Finding key = finding(ssh_end(255, "", "Host key verification failed.\n"));
  EXPECT_EQ(key.verdict, Verdict::kBad);
  EXPECT_THAT(key.found, HasSubstr("host key is not known"));
  EXPECT_EQ(finding(ssh_end(255, "", "gpu-b: Permission denied (publickey).\n")).verdict,
            Verdict::kBad);
  ProgramEnd hung;
  hung.why = ProgramEnd::Why::kDeadline;
  EXPECT_EQ(finding(hung).verdict, Verdict::kNotChecked);
  EXPECT_EQ(finding(hung).found, "no answer within 5 s");
  EXPECT_THAT(finding(hung).cure, HasSubstr("ssh -o BatchMode=yes gpu-b true"));
}

TEST(Hosts, TheCommandSeesWhatIsThere) {
  std::string form = (fs::temp_directory_path() / "surefoot it's XXXXXX").string();
  ASSERT_NE(::mkdtemp(form.data()), nullptr);
  const fs::path folder = form;
  const auto ask = [&] {
    ProgramRun run;
    run.argv = {"/bin/sh", "-c", host_command(folder.string())};
    run.environment = {"SSH_CONNECTION=10.0.0.2 5000 10.0.0.5 22"};
    run.deadline = now() + 20s;
    return host_facts("h", folder.string(), run_program(run), 0);
  };
  EXPECT_FALSE(ask().has_node);
  fs::copy_file("/bin/true", folder / "surefoot-node");
  const HostFacts facts = ask();
  EXPECT_EQ(facts.fault, "");
  EXPECT_TRUE(facts.has_node);
  EXPECT_EQ(facts.address, "10.0.0.5");
  fs::remove_all(folder);
}

TEST(Hosts, ManyGetMoreTime) {
  EXPECT_EQ(hosts_patience(0), 5s);
  EXPECT_EQ(hosts_patience(64), 5s);
  EXPECT_EQ(hosts_patience(65), 10s);
}

// ---- stores ----

TEST(StoreCheck, IsPutReadRefusedASecondTimeAndRemoved) {
  std::string form = (fs::temp_directory_path() / "surefoot-probe-XXXXXX").string();
  ASSERT_NE(::mkdtemp(form.data()), nullptr);
  const fs::path root = form;
  {
    const MadeFolders made(root / "a/b");
    auto store = FileStore::open(root / "a/b");
    ASSERT_TRUE(store);
    const StoreFacts facts = probe_store(**store, now() + 20s, now() + 20s);
    EXPECT_EQ(facts.fault, "");
    EXPECT_FALSE(facts.twice);
    EXPECT_GT(facts.put_seconds, 0);
    EXPECT_TRUE(fs::is_empty(root / "a/b"));
    EXPECT_EQ(check_store(facts).verdict, Verdict::kOk);
  }
  EXPECT_TRUE(fs::is_empty(root)) << "folders that were made are gone";
  fs::create_directories(root / "kept");
  { const MadeFolders made(root / "kept"); }
  EXPECT_TRUE(fs::exists(root / "kept"));
  fs::remove_all(root);
}

// Takes a second object of the same name, as services do that know no If-None-Match.
class ForgetfulStore : public Store {
 public:
  Status put_if_absent(const std::string&, std::int64_t, const ByteSource& source, Time) override {
    content_.clear();
    for (;;) {
      SUREFOOT_ASSIGN(const auto piece, source());
      if (piece.empty()) return {};
      content_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
  }
  Status read(const std::string&, std::int64_t offset, std::span<std::byte> into, Time) override {
    std::memcpy(into.data(), content_.data() + offset, into.size());
    return {};
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time) override {
    return std::vector<ObjectInfo>{{prefix, static_cast<std::int64_t>(content_.size()), {}}};
  }
  Status remove(const std::string&, Time) override { return {}; }
  [[nodiscard]] std::string url() const override { return "s3://bucket"; }

 private:
  std::string content_;
};

TEST(StoreCheck, ThatIsTakenTwiceIsBad) {
  ForgetfulStore store;
  const StoreFacts facts = probe_store(store, now() + 20s, now() + 20s);
  EXPECT_EQ(facts.fault, "");
  EXPECT_TRUE(facts.twice);
  EXPECT_EQ(check_store(facts).verdict, Verdict::kBad);
  EXPECT_THAT(check_store(facts).cure, HasSubstr("If-None-Match"));
}

TEST(StoreCheck, FaultsAreToldApartByWhatMayPass) {
  StoreFacts facts;
  facts.fault = "cannot connect";
  facts.retry = true;
  EXPECT_THAT(check_store(facts).cure, HasSubstr("try again"));
  facts.retry = false;
  EXPECT_THAT(check_store(facts).cure, HasSubstr("checkpoint.to"));
}

}  // namespace
}  // namespace surefoot::doctor
