// surefoot-worker: one MPI rank that trains. `mpirun -np 4 surefoot-worker job.yaml` works without
// a supervisor, and resumes by itself when run again.
//
// Exit codes: 0 done; 64 job file, 65 data or model, 66 machine (memory, disk, ports): the user has
// to act; 75 drained, resumable; 76 this attempt cannot go on (a peer is missing, another gang is
// newer): start the next.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "checkpoint/arena_space.h"
#include "collectives/collectives.h"
#include "collectives/device_stream.h"
#include "collectives/mpi/mpi_communicator.h"
#include "common/log.h"
#include "configs/job_directory.h"
#include "configs/machines.h"
#include "worker/crash_report.h"
#include "worker/describe.h"
#include "worker/float_mode.h"
#include "worker/numerics.h"
#include "worker/options.h"
#include "worker/trainer.h"

namespace surefoot {
namespace {

enum ExitCode {
  kExitDone = 0,
  kExitJobFile = 64,
  kExitData = 65,
  kExitMachine = 66,
  kExitDrained = 75,
  kExitRestart = 76
};

int exit_code_of(Code code) {
  switch (code) {
    case Code::kInvalid:
    case Code::kNotFound:
      return kExitData;
    case Code::kNoSpace:
      return kExitMachine;
    default:
      return kExitRestart;
  }
}

// Everything a worker holds, in the order it comes to life.
struct Worker {
  WorkerOptions options;
  LoadedJob job;
  JobDirectory directory;
  JoinRequest request;
  std::unique_ptr<MpiCommunicator> communicator;
  std::unique_ptr<Device> device;  // null: the processor
  std::unique_ptr<DeviceStream> device_stream;
  std::unique_ptr<Dataset> dataset;
  std::unique_ptr<Model> model;
  std::optional<Session> session;
};

// The last words of a rank stand in its line of the arena header, where the supervisor finds them,
// and in its log.
void record_exit(Worker& worker, int code, const std::string& reason) {
  if (!worker.session || !worker.session->arena) return;
  set_exit(worker.session->arena->line(worker.session->place.local_rank), code, reason);
}

// Leaves without a word to MPI: peers may be gone or stuck, and nothing here may wait for them.
[[noreturn]] void leave(Worker& worker, const Error& failed) {
  const int code = exit_code_of(failed.code);
  record_exit(worker, code, failed.message);
  spdlog::error("{}", failed.message);
  // Where nobody reads arena or journal yet, standard error is all there is.
  std::fflush(nullptr);
  ::_exit(code);
}

void redirect_output(const WorkerOptions& options) {
  if (options.log_directory.empty()) return;
  const std::string path = fmt::format("{}/rank-{}.log", options.log_directory, options.rank);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::close(fd);
}

void load(Worker& worker) {
  LoadOutcome outcome = load_job(worker.options.job_file, {.sets = worker.options.sets});
  if (!outcome.faults.empty()) {
    if (worker.options.rank == 0) {
      for (const Fault& fault : outcome.faults) std::fprintf(stderr, "%s\n", fault.text().c_str());
    }
    std::exit(kExitJobFile);
  }
  worker.job = std::move(outcome.job);
  worker.directory = JobDirectory::of(worker.job, worker.options.directory);
  worker.request.job = &worker.job.job;
  worker.request.attempt = worker.options.attempt;
  worker.request.accept_changes = worker.options.accept_changes;
  worker.request.supervised = worker.options.supervised();
  worker.request.known_step = worker.options.known_step;
}

Time startup_deadline(const Worker& worker) {
  return now() + std::chrono::milliseconds(worker.job.job.recovery().startup_timeout());
}

ServiceLaunch launch_of(const Worker& worker) {
  ServiceLaunch launch;
  launch.program = std::filesystem::path(program_directory()) / "surefoot-node";
  launch.job_file = worker.job.file;
  launch.job_directory = worker.directory.root;
  launch.sets = worker.options.sets;
  launch.supervised = worker.options.supervised();
  return launch;
}

Status start_service(Worker& worker, Time deadline) {
  // The supervisor has looked before it launched.
  if (!worker.options.supervised()) {
    SUREFOOT_TRY(check_arena_base(worker.job.job.checkpoint().arena(), worker.options.world_size));
  }
  SUREFOOT_ASSIGN(worker.request.job_id, worker.directory.job_id(worker.job.job.name()));
  ServiceClient client(arena_folder(worker.job.job.checkpoint().arena(), worker.request.job_id),
                       worker.request.job_id);
  return ensure_service(client, launch_of(worker), deadline);
}

Status build_model(Worker& worker) {
  set_float_mode();
  SUREFOOT_TRY(check_float_mode());
  SUREFOOT_TRY(set_up_numerics(worker.job.job.resources().threads_per_worker()));
  if (worker.device && worker.device->facts().is_cuda)
    set_up_gpu_numerics(worker.job.job.train().precision() != config::Train::fp32);
  worker.request.numerics_id = numerics_id(worker.device.get());
  SUREFOOT_ASSIGN(worker.dataset, open_dataset(worker.job.job));
  SUREFOOT_ASSIGN(worker.model, make_model(worker.job.job, *worker.dataset, worker.device.get()));
  worker.request.layout = worker.model->layout();
  SUREFOOT_ASSIGN(worker.request.identity, training_identity(worker.job.job));
  return {};
}

Status connect_devices(Worker& worker, Time deadline) {
  if (!worker.device) return {};
  // NCCL reads it on this thread. What the user has set stays.
  if (const auto names = nccl_interfaces(worker.options.network, interface_addresses());
      !names.empty())
    ::setenv("NCCL_SOCKET_IFNAME", names.c_str(), 0);
  // From any thread, the network's or the driver's state unknown: nothing is waited for.
  const auto failed = [&worker](const std::string& reason) {
    leave(worker, error(Code::kRestart, "{}", reason));
  };
  auto stream =
      worker.device->connect(*worker.communicator, worker.session->place, failed, deadline);
  SUREFOOT_TRY(agree(*worker.communicator, stream ? Status() : Status(stream.error()), deadline,
                     "the network between the devices"));
  worker.device_stream = std::move(*stream);
  return {};
}

// A node that does not see the others' job directory would make a job of its own in it.
Status same_job_everywhere(Worker& worker, Time deadline) {
  auto id = worker.directory.job_id(worker.job.job.name());
  const Status mine = id ? Status() : Status(id.error());
  SUREFOOT_TRY(agree(*worker.communicator, mine, deadline, "the job directory"));
  worker.request.job_id = *id;
  constexpr std::string_view kWhat = "the comparison of job directories";
  SUREFOOT_ASSIGN(const auto ids, all_gather(*worker.communicator, *id, deadline, kWhat));
  SUREFOOT_ASSIGN(const auto hosts, all_gather(*worker.communicator, host_name(), deadline, kWhat));
  for (std::size_t rank = 1; rank < ids.size(); ++rank) {
    if (ids[rank] == ids[0]) continue;
    return error(Code::kInvalid,
                 "the job directory {} is not shared between {} (rank 0) and {} (rank {}): put it "
                 "where all nodes see it",
                 worker.directory.root.string(), hosts[0], hosts[rank], rank);
  }
  return {};
}

// All ranks must compute the same thing, or the promise of equal bits is empty.
Status compare_with_rank_zero(Worker& worker, Time deadline) {
  Communicator& communicator = *worker.communicator;
  const std::int64_t micro_batches =
      worker.job.job.train().global_batch_size() / worker.job.job.train().micro_batch_size();
  if (communicator.size() > micro_batches) {
    return error(
        Code::kInvalid,
        "{} workers, but a step has only {} micro-batches (global_batch_size / micro_batch_size)",
        communicator.size(), micro_batches);
  }
  const std::string mine = worker.request.identity.hash.hex() + " " + worker.request.numerics_id;
  SUREFOOT_ASSIGN(const auto all, all_gather(communicator, mine, deadline,
                                             "the comparison of data and processors"));
  for (int rank = 1; rank < communicator.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return error(Code::kInvalid,
                 "rank {} has other data or another processor than rank 0: {} against {}", rank,
                 all[rank], all[0]);
  }
  return {};
}

Result<Outcome> train(Worker& worker) {
  const Time deadline = startup_deadline(worker);
  SUREFOOT_TRY(agree(*worker.communicator, build_model(worker), deadline, "building the model"));
  SUREFOOT_TRY(compare_with_rank_zero(worker, deadline));
  SUREFOOT_ASSIGN(worker.session, join(*worker.communicator, worker.request, deadline));
  Session& session = *worker.session;
  init_log(
      fmt::format("worker {}/{}@{}", session.attempt, worker.communicator->rank(), host_name()));
  if (worker.device) spdlog::info("device: {}", worker.device->facts().numerics);
  SUREFOOT_TRY(connect_devices(worker, deadline));
  std::vector<InjectedFault> faults;
  if (!worker.options.faults.empty()) {
    SUREFOOT_ASSIGN(
        faults, parse_faults({worker.options.faults},
                             {worker.job.job.train().max_steps(), worker.communicator->size()}));
  }
  FaultTrigger trigger(*session.arena, std::move(faults), worker.communicator->rank(),
                       worker.communicator->size(), worker.options.supervisor);
  ServiceStarter starter(session.arena_path, launch_of(worker));
  Trainer trainer({*worker.communicator, worker.request, session, *worker.model, *worker.dataset,
                   trigger, worker.device.get(), worker.device_stream.get(), [&worker, &starter] {
                     if (worker.options.supervised()) return;  // the supervisor sees to it
                     const Status started = starter.look(now());
                     if (!started)
                       spdlog::warn("no checkpoint service: {}; training goes on",
                                    started.error().message);
                   }});
  return trainer.run();
}

int run(int argc, char** argv) {
  auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "%s\n", options.error().message.c_str());
    return kExitJobFile;
  }
  Worker worker;
  worker.options = std::move(*options);
  redirect_output(worker.options);
  init_log(
      fmt::format("worker {}/{}@{}", worker.options.attempt, worker.options.rank, host_name()));
  // Without mpirun (a world of one) the parent is whoever typed the command.
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr && !die_with_parent()) return kExitRestart;
  install_crash_report();
  install_drain_signals();
  export_standard_variables(worker.options);
  load(worker);
  // Whoever asks for a GPU has to get one, or hear why not before anything starts.
  auto device = open_device(worker.job.job, worker.options.local_rank, worker.options.local_size);
  // The supervisor has looked before the job began: what has gone since may come back, or another
  // machine take the place of this one.
  if (!device && worker.options.supervised())
    leave(worker, error(Code::kRestart, "{}", device.error().message));
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return kExitJobFile;
  }
  worker.device = std::move(*device);
  if (worker.options.describe) {
    if (auto built = build_model(worker); !built) leave(worker, built.error());
    const std::string text = describe(worker.job.job, *worker.model, *worker.dataset,
                                      worker.request.identity, worker.request.numerics_id);
    std::printf("%s\n", text.c_str());
    return kExitDone;
  }

  // The service is started before MPI, whose library leaves descriptors and handlers behind that no
  // other process should get.
  Status started;
  if (worker.options.local_rank == 0) started = start_service(worker, startup_deadline(worker));
  // Without room for MPI's own files the others could not even be told.
  if (!started && started.error().code == Code::kNoSpace) leave(worker, started.error());
  auto communicator = MpiCommunicator::open(startup_deadline(worker));
  if (!communicator) leave(worker, communicator.error());
  worker.communicator = std::move(*communicator);
  if (worker.communicator->size() != worker.options.world_size) {
    leave(worker, error(Code::kRestart, "MPI made a world of {}, asked for was {}",
                        worker.communicator->size(), worker.options.world_size));
  }
  if (auto all =
          agree(*worker.communicator, started, startup_deadline(worker), "the checkpoint services");
      !all) {
    leave(worker, all.error());
  }
  // Only now has every node a job directory with the id in it.
  if (auto same = same_job_everywhere(worker, startup_deadline(worker)); !same)
    leave(worker, same.error());

  auto outcome = train(worker);
  if (!outcome) leave(worker, outcome.error());
  // All have come to the end: that the others leave is no failure any more.
  worker.device_stream.reset();
  const bool done = *outcome == Outcome::kDone;
  const int code = done ? kExitDone : kExitDrained;
  record_exit(worker, code,
              done ? "done" : fmt::format("drained after step {}", worker.session->step));
  if (!done) spdlog::info("drained after step {}", worker.session->step);
  // Waits for all: mpirun ends those that are still here when one has left with a code.
  if (auto closed = worker.communicator->close(startup_deadline(worker)); !closed)
    leave(worker, closed.error());
  std::fflush(nullptr);
  // libtorch's static destructors take a tenth of a second and free what the kernel frees anyway.
  ::_exit(code);
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  return surefoot::run(argc, argv);
}
