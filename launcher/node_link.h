// What the supervisor does with the checkpoint service of one machine, but for watching it.
//
// Blocks; each call until its deadline at the longest. One thread at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/export.h"
#include "checkpoint/service_client.h"
#include "configs/job_directory.h"
#include "launcher/flushing.h"
#include "launcher/nodes/bootstrap.h"
#include "launcher/supervisor.h"

namespace surefoot {

// The object in the store by which machines prove that they see the same one: put by the first that
// is looked over, looked for by all others, removed at the job's end.
class StoreProbe {
 public:
  explicit StoreProbe(std::string name) : name_(std::move(name)) {}
  // For one machine at a time.
  std::unique_lock<std::mutex> turn() { return std::unique_lock(mutex_); }
  [[nodiscard]] const std::string& name() const { return name_; }
  std::string put_by;  // empty: not there yet

 private:
  std::mutex mutex_;
  std::string name_;
};

// Where the finished model is not seen here: brings it (bring_model.h).
using BringModel =
    std::function<Result<Exported>(Step step, const std::string& weights_sha256, Time deadline)>;

// The same for all machines of a job.
struct NodeContext {
  bool alone = true;  // the job runs on this machine only
  std::filesystem::path arena_folder;
  std::string job_id;
  ServiceKeys keys;          // the client's half
  ServiceLaunch service;     // alone
  BootstrapSettings others;  // not alone
  JobDirectory directory;
  std::shared_ptr<StoreProbe> probe;
  BringModel bring_model;
};

class NodeLink {
 public:
  NodeLink(std::shared_ptr<const NodeContext> context, std::string name);

  struct Prepared {
    supervisor::ServiceAnswered answer;  // without the machine's number
    ServiceAddress address;
    NodeAccess access;
    service::StatusReply status;
  };
  // Finds or starts the service, ends what attempts below `spare` have left, and looks the machine
  // over, once in each of its lives. `peers`: ADDRESS:PORT of the others' services.
  [[nodiscard]] Result<Prepared> prepare(Attempt spare, const std::vector<std::string>& peers,
                                         Time deadline);

  Status drain(Attempt attempt);
  Status tell_everyone(Duration left);

  struct Ended {
    bool reached = false;  // else nobody answers
    Status ended;
    std::optional<service::StatusReply> last;  // of after the end
  };
  // `records_from`: as in service::Status.
  [[nodiscard]] Ended end_gang(Attempt attempt, std::uint64_t records_from);

  // Where the ranks of a gang are that hangs, as text.
  [[nodiscard]] Result<std::string> trace(Attempt attempt, Duration patience);

  // The model lies in the job's directory here afterwards.
  [[nodiscard]] Result<service::FinishReply> finish(Step step, Time deadline);
  Status finished_elsewhere(Step step);
  // Has its newest snapshot stored, unless that of step `stored` is newer or the same.
  [[nodiscard]] Flushed flush(Step stored);
  // Ends what still runs there, the service, and removes its memory. On this machine the folder is
  // gone after it, also when its service hung.
  Status free();

  [[nodiscard]] Result<service::StatusReply> status(std::uint64_t records_from, Time deadline);
  [[nodiscard]] Result<service::Reply> call(service::Request request, Time deadline);

 private:
  [[nodiscard]] Result<service::Reply> look_over(const std::vector<std::string>& peers,
                                                 Time deadline);
  Status probe_store(Time deadline);
  void remove_probe();
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
