// What the supervisor does with the checkpoint service of one machine, but for watching it.
//
// Blocks; each call until its deadline at the longest. One thread at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/export.h"
#include "checkpoint/service_client.h"
#include "common/file.h"
#include "configs/job_directory.h"
#include "launcher/flushing.h"
#include "launcher/nodes/bootstrap.h"
#include "launcher/store_probe.h"
#include "launcher/supervisor.h"

namespace surefoot {

// Where the finished model is not seen here: brings it (bring_model.h).
using BringModel =
    std::function<Result<Exported>(Step step, const std::string& weights_sha256, Time deadline)>;

// The same for all machines of a job.
struct NodeContext {
  bool alone = true;      // the job runs on this machine only
  bool has_gpus = false;  // and the job is on them
  std::filesystem::path arena_folder;
  std::string job_id;
  ServiceKeys keys;          // the client's half
  ServiceLaunch service;     // alone
  BootstrapSettings others;  // not alone
  JobDirectory directory;
  std::shared_ptr<StoreProbe> probe;  // not alone
  BringModel bring_model;
  Fd stop;  // readable: nothing is to be started on machines any more
};

class NodeLink {
 public:
  // `known`: what an earlier look at the machine has found, in the life that it names.
  NodeLink(std::shared_ptr<const NodeContext> context, std::string name,
           supervisor::NodeFacts known = {});

  struct Prepared {
    supervisor::ServiceAnswered answer;  // without the machine's number
    ServiceAddress address;
    NodeAccess access;
    service::StatusReply status;
    // Of the look over, when there was one.
    std::vector<std::string> warnings = {};
    double flops_per_sample = 0;  // 0: not known
  };
  struct Wanted {
    Attempt spare;                        // what attempts below it have left is ended
    int workers = 1;                      // that it may have
    bool at_work = false;                 // the attempt in hand runs on it
    std::vector<std::string> peers = {};  // ADDRESS:PORT of the others' services
  };
  // Finds or starts the service, and looks the machine over: once in each of its lives, and where
  // the job has GPUs each time that nothing of it runs there.
  [[nodiscard]] Result<Prepared> prepare(const Wanted& wanted, Time deadline);

  Status drain(Attempt attempt);  // blocks for 1 s at the longest
  // All machines of the job go, this one then. Blocks for half of the time until then at the
  // longest, for 1 s to 10 s.
  Status tell_everyone(Time leaves);

  struct Ended {
    bool reached = false;  // else nobody answers
    Status ended;
    std::optional<service::StatusReply> last;  // of after the end
  };
  // `records_from`: as in service::Status. Blocks for 6 s at the longest.
  [[nodiscard]] Ended end_gang(Attempt attempt, std::uint64_t records_from);

  // Where the ranks of a gang are that hangs, as text.
  [[nodiscard]] Result<std::string> trace(Attempt attempt, Duration patience);

  // The model lies in the job's directory here afterwards.
  [[nodiscard]] Result<service::FinishReply> finish(Step step, Time deadline);
  Status finished_elsewhere(Step step);
  // Has its newest snapshot stored, unless that of step `stored` is newer or the same. Blocks for 4
  // minutes at the longest.
  [[nodiscard]] Flushed flush(Step stored);
  // Ends what still runs there, the service, and removes its memory. On this machine the folder is
  // gone after it, also when its service hung. Blocks for 12 s at the longest.
  Status free();
  // Of the store's probe, if it is there; blocks for 1 s at the longest.
  void remove_probe();

  [[nodiscard]] Result<service::StatusReply> status(std::uint64_t records_from, Time deadline);
  [[nodiscard]] Result<service::Reply> call(service::Request request, Time deadline);

 private:
  [[nodiscard]] Result<service::Reply> look_over(const std::vector<std::string>& peers, int workers,
                                                 Time deadline);
  Status probe_store(Time deadline);
  Status shut_down(bool flush, bool remove, Duration patience);
  Status free_folder();

  std::shared_ptr<const NodeContext> context_;
  std::string name_;
  bool here_ = true;
  bool shares_directory_ = true;
  std::optional<ServiceClient> client_;
  std::string checked_boot_;  // in this life it was looked over
  supervisor::NodeFacts facts_;
};

}  // namespace surefoot
