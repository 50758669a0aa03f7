// `surefoot doctor` as a process: on this machine as it is, for a job with a worker that is a
// script, with hosts behind an ssh that hangs, and with GPUs that a library makes up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/file.h"
#include "common/test_paths.h"
#include "launcher/nodes/run_program.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

constexpr const char* kJob = R"(
name: patient
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, samples: 100, shape: [4], classes: 2}
train: {max_steps: 3, global_batch_size: 8, micro_batch_size: 2, optimizer: {kind: sgd, lr: 0.1}}
resources: {workers_per_node: 2}
)";

struct Ran {
  int code = -1;
  std::string output;
  std::string errors;
  json report;
  double seconds = 0;

  [[nodiscard]] json check(const std::string& name) const {
    for (const json& one : report["checks"]) {
      if (one["check"] == name) return one;
    }
    return {{"verdict", "none"}, {"found", output + errors}};
  }
};

class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    std::string form = (fs::temp_directory_path() / "surefoot-visit-XXXXXX").string();
    EXPECT_NE(::mkdtemp(form.data()), nullptr);
    root_ = form;
    const fs::path bin = programs_folder();
    fs::create_directories(root_ / "bin");
    // Copies, since a program finds its sisters in the folder of its real file.
    for (const char* name : {"surefoot", "surefoot-node", "surefoot-rsh"})
      fs::copy_file(bin / name, root_ / "bin" / name);
    worker(1000);
    write("job.yaml", kJob);
  }
  ~Doctor() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  }
  void script(const std::string& name, const std::string& text) {
    write(name, "#!/bin/sh\n" + text);
    fs::permissions(root_ / name, fs::perms::owner_all);
  }
  // Says of each job that its state has so many bytes.
  void worker(std::int64_t bytes) {
    script("bin/surefoot-worker",
           fmt::format("echo noise; echo '{{\"state_bytes\": {}, \"arena_bytes\": {}, "
                       "\"numerics_id\": \"libtorch 0; OpenBLAS kernel Zen\"}}'\n",
                       bytes, 3 * bytes));
  }
  [[nodiscard]] Ran run(std::vector<std::string> words,
                        const std::vector<std::string>& environment = {}) const {
    ProgramRun run;
    run.argv = {(root_ / "bin/surefoot").string(), "doctor"};
    run.argv.insert(run.argv.end(), words.begin(), words.end());
    run.environment = environment;
    run.directory = root_.string();
    run.deadline = now() + 100s;
    const Time begin = now();
    const auto end = run_program(run);
    EXPECT_TRUE(end);
    Ran ran;
    ran.code = end->status.code;
    ran.output = end->output;
    ran.errors = end->errors;
    ran.report = json::parse(ran.output, nullptr, false);
    ran.seconds = seconds(now() - begin);
    return ran;
  }
  fs::path root_;
};

TEST_F(Doctor, LooksAtThisMachineAndItsCodeFollowsItsFindings) {
  const Ran ran = run({"--json"});
  ASSERT_TRUE(ran.report.is_object()) << ran.output << ran.errors;
  std::set<std::string> names;
  for (const json& one : ran.report["checks"]) names.insert(one["check"]);
  EXPECT_THAT(names, IsSupersetOf({"processors",    "memory",      "shared memory", "open files",
                                   "locked memory", "core files",  "logind",        "gpu driver",
                                   "xid",           "cuda driver", "cuda runtime",  "nccl",
                                   "rdma",          "network",     "programs",      "libraries",
                                   "mpirun",        "ssh",         "blas",          "reduction",
                                   "peer bandwidth"}));
  EXPECT_EQ(ran.code, ran.report["bad"] == 0 ? 0 : 66);
  EXPECT_EQ(ran.report["exit_code"], ran.code);
  EXPECT_TRUE(ran.report["job"].is_null());
  EXPECT_EQ(ran.check("programs")["verdict"], "ok");
  EXPECT_EQ(ran.check("blas")["found"], "libtorch 0; OpenBLAS kernel Zen");
}

TEST_F(Doctor, PrintsALineForEachCheckWithoutJson) {
  const Ran ran = run({"job.yaml"});
  EXPECT_THAT(ran.output, HasSubstr("\nok           store              file://"));
  EXPECT_THAT(ran.output, HasSubstr("three snapshots take 2.9 KiB"));
  EXPECT_THAT(ran.output, HasSubstr(" bad, "));
}

TEST_F(Doctor, OfAJobLeavesNothingBehind) {
  const Ran ran = run({"job.yaml", "--json"});
  EXPECT_EQ(ran.report["job"], "patient");
  for (const char* name :
       {"arena", "job memory", "checkpoint room", "data", "store", "processors", "network"})
    EXPECT_NE(ran.check(name)["verdict"], "none") << name;
  EXPECT_EQ(ran.check("store")["verdict"], "ok") << ran.check("store");
  EXPECT_FALSE(fs::exists(root_ / "runs")) << "neither a job directory nor its checkpoints";
}

TEST_F(Doctor, OfAJobFileWithAFaultLeavesWith64) {
  write("bad.yaml", std::string(kJob) + "resourses: {}\n");
  const Ran ran = run({"bad.yaml", "--json"});
  EXPECT_EQ(ran.code, 64);
  EXPECT_THAT(ran.errors, HasSubstr("resourses"));
  EXPECT_EQ(ran.report["valid"], false);
  EXPECT_EQ(run({"none.yaml"}).code, 64);
  EXPECT_EQ(run({"--nonsense"}).code, 64);
}

TEST_F(Doctor, OfAStateThatDoesNotFitAndAStoreThatCannotBeWrittenLeavesWith66) {
  worker(std::int64_t{1} << 50);
  write("file", "is no folder");
  const Ran ran =
      run({"job.yaml", "--json", "--set", "checkpoint.to=" + (root_ / "file/below").string()});
  EXPECT_EQ(ran.code, 66);
  EXPECT_EQ(ran.check("store")["verdict"], "bad");
  EXPECT_THAT(ran.check("store")["cure"].get<std::string>(), HasSubstr("checkpoint.to"));
  EXPECT_EQ(ran.check("arena")["verdict"], "bad");
  EXPECT_EQ(ran.check("job memory")["verdict"], "bad");
}

TEST_F(Doctor, OfDataThatIsMissingLeavesWith66) {
  write("text.yaml", R"(
name: patient
model: {kind: gpt}
data: {kind: text, path: not-there.txt}
train: {max_steps: 3, global_batch_size: 8, micro_batch_size: 2, optimizer: {kind: sgd, lr: 0.1}}
)");
  const Ran ran = run({"text.yaml", "--json"});
  EXPECT_EQ(ran.code, 66) << ran.errors;
  EXPECT_EQ(ran.check("data")["verdict"], "bad");
  EXPECT_THAT(ran.check("data")["found"].get<std::string>(), HasSubstr("not-there.txt"));
}

TEST_F(Doctor, AWorkerThatRefusesTheJobIsBad) {
  script("bin/surefoot-worker", "echo 'no such module' >&2; exit 64\n");
  const Ran ran = run({"job.yaml", "--json"});
  EXPECT_EQ(ran.code, 66);
  EXPECT_THAT(ran.check("blas")["found"].get<std::string>(), HasSubstr("no such module"));
  EXPECT_EQ(ran.check("arena")["verdict"], "not checked");
}

TEST_F(Doctor, AnSshThatHangsEndsInTimeAndIsNotChecked) {
  script("ssh", "echo $$ >> " + (root_ / "pids").string() + "; exec sleep 1000\n");
  const Ran ran = run({"job.yaml", "--json", "--set", "resources.hosts=[gpu-a, gpu-b]", "--set",
                       "resources.ssh=" + (root_ / "ssh").string()});
  EXPECT_LT(ran.seconds, 30);
  int hung = 0;
  for (const json& one : ran.report["checks"]) {
    if (one["check"] != "host") continue;
    EXPECT_EQ(one["verdict"], "not checked");
    EXPECT_EQ(one["found"], "no answer within 5 s");
    ++hung;
  }
  EXPECT_EQ(hung, 2);
  std::ifstream pids(root_ / "pids");
  int started = 0;
  for (pid_t pid; pids >> pid; ++started) {
    // Nobody may have waited for it yet.
    const auto process = process_of(pid);
    EXPECT_FALSE(process && is_alive(*process)) << "it is left behind";
  }
  EXPECT_GE(started, 2);
}

TEST_F(Doctor, HostsAreAskedByTheJobsSsh) {
  // Runs the command here: the last word.
  script("ssh", "for last; do :; done; exec sh -c \"$last\"\n");
  const Ran ran = run({"job.yaml", "--json", "--set", "resources.hosts=[gpu-a]", "--set",
                       "resources.ssh=" + (root_ / "ssh").string()});
  EXPECT_THAT(ran.check("host")["found"].get<std::string>(), HasSubstr("reached in"));
  EXPECT_EQ(ran.check("host")["on"], "gpu-a");
}

// ---- GPUs, by a library of the driver's name ----

class DoctorOfGpus : public Doctor {
 protected:
  [[nodiscard]] Ran with(const std::string& state) const {
    return run({"--json"}, {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
                            "SUREFOOT_FAKE_GPU=" + state});
  }
};

TEST_F(DoctorOfGpus, HealthyAreOkWithTheFiguresOfTheLibrary) {
  const Ran ran = with("healthy");
  EXPECT_EQ(ran.check("gpu driver")["found"], "580.82.07, 1 GPU");
  EXPECT_EQ(ran.check("gpu")["found"], "Fake H200 at 00000000:65:00.0, 141.0 GiB, PCIe x16");
  EXPECT_EQ(ran.check("gpu clocks")["found"], "1980 of 1980 MHz, 41 C, 80 of 700 W");
  EXPECT_EQ(ran.check("nvlink")["found"], "18 of 18 links up");
  for (const char* name : {"gpu driver", "gpu", "gpu memory", "gpu clocks", "nvlink"})
    EXPECT_EQ(ran.check(name)["verdict"], "ok") << name;
}

TEST_F(DoctorOfGpus, ThrottledWithMemoryErrorsOrLostAreBad) {
  EXPECT_EQ(with("throttled").check("gpu clocks")["verdict"], "bad");
  const Ran ecc = with("ecc");
  EXPECT_EQ(ecc.code, 66);
  EXPECT_THAT(ecc.check("gpu memory")["found"].get<std::string>(),
              HasSubstr("2 uncorrected errors since the driver was loaded, 7 uncorrected ever"));
  EXPECT_EQ(with("lost").check("gpu")["verdict"], "bad");
  EXPECT_THAT(with("mismatch").check("gpu driver")["cure"].get<std::string>(), HasSubstr("reboot"));
}

TEST_F(DoctorOfGpus, OfAJobAreThoseThatItTakes) {
  const std::vector<std::string> words = {"job.yaml", "--json", "--set", "resources.device=cuda"};
  const auto bad = [&](const std::string& devices, const std::string& gpus) {
    std::vector<std::string> with_devices = words;
    if (!devices.empty())
      with_devices.insert(with_devices.end(), {"--set", "resources.devices=" + devices});
    const Ran ran =
        run(with_devices, {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
                           "SUREFOOT_FAKE_GPU=healthy", "SUREFOOT_FAKE_GPUS=" + gpus});
    std::vector<std::string> found;
    for (const json& one : ran.report["checks"]) {
      if (one["check"] == "gpu" && one["verdict"] == "bad") found.push_back(one["found"]);
    }
    return found;
  };
  EXPECT_THAT(bad("", "2"), IsEmpty());
  EXPECT_THAT(bad("", "1"), ElementsAre("1 GPU for 2 workers, of which each takes one"));
  EXPECT_THAT(bad("[0]", "1"), IsEmpty()) << "shared";
  EXPECT_THAT(bad("[GPU-00000000-0000-0000-0000-000000000001, 5]", "2"),
              ElementsAre("resources.devices names 5, and this machine has 2 GPUs, 0 to 1"));
}

TEST_F(DoctorOfGpus, ThatLetNobodyOrOneAtATimeInAreSaid) {
  const Ran prohibited = with("prohibited");
  EXPECT_EQ(prohibited.check("gpu")["verdict"], "bad");
  EXPECT_EQ(prohibited.check("gpu")["cure"], "nvidia-smi -i 0 -c DEFAULT");
  const Ran shared = run(
      {"job.yaml", "--json", "--set", "resources.device=cuda", "--set", "resources.devices=[0]"},
      {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
       "SUREFOOT_FAKE_GPU=exclusive"});
  EXPECT_EQ(shared.check("gpu")["verdict"], "warn");
  EXPECT_THAT(shared.check("gpu")["found"].get<std::string>(), HasSubstr("workers share it"));
}

// Programs of the name that would measure, on ranks that mpirun starts.
class DoctorOfPeers : public DoctorOfGpus {
 protected:
  // The first rank says it.
  void measures(const std::string& line) {
    script("bin/surefoot-gpu-links",
           "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER >> " + (root_ / "seen").string() +
               "\n[ $OMPI_COMM_WORLD_RANK = 1 ] || echo '" + line + "'\n");
  }
  [[nodiscard]] json peers(const std::string& state, std::vector<std::string> words = {},
                           const std::string& gpus = "2") const {
    words.emplace_back("--json");
    const Ran ran = run(words, {"LD_LIBRARY_PATH=" + (programs_folder() / "fake-nvidia").string(),
                                "SUREFOOT_FAKE_GPU=" + state, "SUREFOOT_FAKE_GPUS=" + gpus});
    return ran.check("peer bandwidth");
  }
  static constexpr const char* kFast =
      R"({"ranks": 2, "bytes": 67108864, "seconds": 0.000177, "bus_bandwidth": 3.8e11})";
};

TEST_F(DoctorOfPeers, MeasuresThemAndSaysWhenTheyAreFarBelowTheirLinks) {
  measures(kFast);
  json found = peers("healthy");
  EXPECT_EQ(found["found"], "2 GPUs, all-reduce of 64.0 MiB: 380 GB/s bus bandwidth");
  EXPECT_EQ(found["verdict"], "ok");
  const auto seen = read_file(root_ / "seen");
  ASSERT_TRUE(seen);
  EXPECT_EQ(*seen, "0,1 PCI_BUS_ID\n0,1 PCI_BUS_ID\n");
  measures(R"({"ranks": 2, "bytes": 67108864, "seconds": 0.0067, "bus_bandwidth": 1e10})");
  found = peers("healthy");
  EXPECT_EQ(found["verdict"], "warn");
  EXPECT_THAT(found["found"].get<std::string>(), HasSubstr("their NVLink carries 450 each way"));
  EXPECT_THAT(found["cure"].get<std::string>(), HasSubstr("NCCL_DEBUG=INFO"));
  EXPECT_EQ(peers("apart")["verdict"], "ok") << "it is what PCIe carries";
}

TEST_F(DoctorOfPeers, OfAJobAreThoseThatItTakes) {
  measures(kFast);
  const std::vector<std::string> job = {"job.yaml", "--set", "resources.device=cuda", "--set",
                                        "resources.devices=[3, 1]"};
  EXPECT_EQ(peers("healthy", job, "4")["verdict"], "ok");
  EXPECT_THAT(*read_file(root_ / "seen"), HasSubstr("1,3 PCI_BUS_ID\n"));
  EXPECT_EQ(peers("healthy", {"job.yaml"})["found"], "the job does not run on GPUs");
}

TEST_F(DoctorOfPeers, AreLeftAloneWhereSomebodyComputesOrThereIsNothingToMeasure) {
  measures(kFast);
  const json busy = peers("busy");
  EXPECT_EQ(busy["verdict"], "not checked");
  EXPECT_THAT(busy["found"].get<std::string>(), HasSubstr("GPU 0 is in use (1 process"));
  for (const auto& [state, gpus] : {std::pair{"healthy", "1"}, {"split", "2"}, {"lost", "2"}})
    EXPECT_EQ(peers(state, {}, gpus)["verdict"], "not checked") << state;
  EXPECT_FALSE(fs::exists(root_ / "seen")) << "it was started";
  fs::remove(root_ / "bin/surefoot-gpu-links");
  const json none = peers("healthy");
  EXPECT_EQ(none["verdict"], "not checked");
  EXPECT_THAT(none["found"].get<std::string>(), HasSubstr("which measures it, is not there"));
}

TEST_F(DoctorOfPeers, WhoseProgramFailsOrPrintsNonsenseAreBad) {
  script("bin/surefoot-gpu-links",
         "[ $OMPI_COMM_WORLD_RANK = 1 ] || exec sleep 100\n"
         "echo 'surefoot-gpu-links: NCCL: ncclSend: unhandled cuda error' >&2; exit 1\n");
  json found = peers("healthy");
  EXPECT_EQ(found["verdict"], "bad");
  EXPECT_THAT(found["found"].get<std::string>(), HasSubstr(": NCCL: ncclSend: unhandled cuda"));
  script("bin/surefoot-gpu-links", "kill -SEGV $$\n");
  EXPECT_EQ(peers("healthy")["verdict"], "bad");
  for (const char* nonsense :
       {"fast", R"({"ranks": 8, "bytes": 1, "seconds": 1, "bus_bandwidth": 1e12})",
        R"({"ranks": 2, "bytes": 1, "seconds": "1", "bus_bandwidth": 1e12})",
        R"({"ranks": 2, "bytes": 1, "seconds": 1})"}) {
    measures(nonsense);
    EXPECT_EQ(peers("healthy")["verdict"], "bad") << nonsense;
  }
}

TEST_F(DoctorOfGpus, ADriverThatHangsOrCrashesIsNotCheckedAndAllElseIs) {
  const Ran hung = with("hangs");
  EXPECT_LT(hung.seconds, 45);
  EXPECT_EQ(hung.check("gpu driver")["verdict"], "not checked");
  EXPECT_EQ(hung.check("gpu driver")["found"], "no answer within 20 s");
  EXPECT_EQ(hung.check("memory")["verdict"], "ok");
  const Ran crashed = with("crashes");
  EXPECT_EQ(crashed.check("gpu driver")["found"], "the check was ended by Aborted");
  EXPECT_EQ(crashed.check("network")["verdict"], "ok");
}

}  // namespace
}  // namespace surefoot
