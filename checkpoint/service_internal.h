// The parts of a running service. Internal to checkpoint/service*.cpp.
#pragma once

#include <map>
#include <set>
#include <zmq.hpp>

#include "checkpoint/service.h"
#include "checkpoint/service.pb.h"
#include "checkpoint/service_core.h"
#include "checkpoint/work_thread.h"

namespace surefoot {

// Largest message that is looked at; libzmq cuts connections that announce more than twice as much,
// unread.
inline constexpr std::int64_t kMaxMessageBytes = 4 << 20;

class ServiceImpl final : public Service {
 public:
  explicit ServiceImpl(ServiceSettings settings);
  ~ServiceImpl() override;
  Status open();
  std::string run() override;

 private:
  // A request that is answered later.
  struct Peer {
    std::string identity;
  };
  // What is known of a slot that is being written to the store.
  struct Upload {
    Attempt attempt;
    Step step;
    Time since{};  // first seen
    Time next{};   // not tried before
    int failures = 0;
  };
  struct Ending {
    Peer peer;
    std::vector<ProcessId> processes;
    Time deadline;
  };
  // What hello brings about, worked out on the gang thread.
  struct Welcome {
    Status status;
    service::HelloReply reply;
    std::shared_ptr<Arena> arena;
    service::Memory memory;
    StateLayout layout;
    std::optional<StoreView> store;
    std::string warning;  // the store cannot be used, and training goes on
  };
  struct Finished {
    Step step;
    Digest digest;
    service::FinishReply reply;
  };

  // service.cpp: messages and the loop
  Status bind();
  void receive();
  void take(const std::vector<zmq::message_t>& frames);
  void dispatch(const Peer& peer, const service::Request& request);
  void reply(const Peer& peer, const service::Reply& message);
  void reply(const Peer& peer, const Error& failed);
  void done(const Peer& peer);
  void refuse(const Peer& peer, std::string_view kind, const std::string& message);
  void read_signals();
  void tick();
  service::StatusReply status(const service::Status& request);
  void add_ranks(service::StatusReply& reply) const;
  void add_records(service::StatusReply& reply, std::uint64_t from) const;
  void look_after_folder();
  void write_metrics();
  void remove_folder();

  // service_gang.cpp
  void hello(const Peer& peer, const service::Hello& hello);
  Welcome welcome(const service::Hello& hello, std::shared_ptr<Arena> arena, service::Memory memory,
                  bool damaged);
  Status look_for(HelloFacts& facts, Welcome& result);
  Status make_ready(const HelloDecision& decision, const HelloFacts::Gang& gang,
                    const service::Hello& hello, const service::Memory& memory,
                    std::shared_ptr<Arena> arena, Welcome& result);
  void remember(const HelloDecision& decision, const service::Hello& hello, bool damaged,
                const service::Memory& memory, Welcome& result);
  void welcomed(const Peer& peer, const service::Hello& hello, Welcome welcome);
  void restore(const Peer& peer, const service::Restore& request);
  void restored(const Peer& peer, const service::Restore& request, const Candidate& candidate,
                const Result<StoreSide::Filled>& filled, double took);
  Result<StoreSide::Filled> bring(const Candidate& candidate, int part, int of, Arena& arena);
  void end_gang(const Peer& peer);
  void look_at_endings();
  void open_arena();
  void use(std::shared_ptr<Arena> arena);
  [[nodiscard]] bool workers_alive() const;

  // service_upload.cpp
  void look_at_store();
  void look_at_slots();
  void start_upload(int slot);
  void uploaded(int slot, const Upload& upload, const UploadResult& result);
  void note_stored(const SlotInfo& slot, const UploadResult& result);
  void take_newer_instead(int slot, const Upload& upload);
  void decide_about_checkpoint();
  void decide_about_life();
  void set_durable(Step step, Duration age);
  void distrust(Step step);
  [[nodiscard]] std::optional<CheckpointIdentity> identity_of(const SlotInfo& slot) const;
  [[nodiscard]] bool newest_is_stored() const;
  // Writes the newest READY step to the store; `then` is told on the loop.
  void flush(const std::function<void(const Status&)>& then);
  void finish(const Peer& peer, const service::Finish& request);
  void finish_from_slot(const Peer& peer, int slot, const SlotInfo& info);
  void finish_from_store(const Peer& peer, Step step);
  Result<Exported> store_and_export(const UploadTask& task, UploadResult& stored);
  void exported(const Peer& peer, Step step, const Digest& digest, const Result<Exported>& outcome);
  void shutdown(const Peer& peer, const service::Shutdown& request);
  [[nodiscard]] Control store_control(Duration patience) const;

  ServiceSettings settings_;
  std::optional<FolderLock> lock_;
  zmq::context_t context_{1};
  zmq::socket_t router_;
  std::string ended_;      // not empty: why the loop ends
  bool removing_ = false;  // ... and the folder goes with it

  std::shared_ptr<Arena> arena_;
  bool arena_damaged_ = false;
  bool arena_unlinked_ = false;
  service::Memory memory_;
  std::optional<StateLayout> layout_;  // of memory_.hello

  StoreSide gang_store_;
  StoreSide upload_store_;
  std::map<int, Upload> uploads_;  // by slot
  std::set<int> held_;             // slots pinned by flush or finish
  std::optional<Step> in_hand_;    // being written now
  std::optional<Step> durable_;    // published
  std::optional<Step> verified_;   // ... and read back in this life: what freeing memory relies on
  Time durable_at_{};
  std::optional<Time> newest_checkpoint_;
  bool store_seen_ = false;
  int store_failures_ = 0;
  Time store_not_before_{};
  double upload_rate_ = 0;
  std::string waiting_for_;
  std::optional<Finished> finished_;

  bool supervised_;
  bool drain_asked_ = false;
  bool flush_wanted_ = false;
  int signals_seen_ = 0;
  int flush_failures_ = 0;
  Time flush_not_before_{};
  Time last_visit_;
  Time last_question_{};
  Time last_supervisor_;
  Time gang_expected_until_{};
  std::vector<Ending> endings_;

  std::uint64_t records_from_ = 0;
  std::int64_t refused_ = 0;
  std::set<std::string, std::less<>> refused_kinds_;
  Time next_heartbeat_{};
  Time next_look_{};    // at processes, life and metrics
  Time next_folder_{};  // at the folder

  // Last, so that they end first: their work uses what stands above.
  WorkThread gang_thread_;
  WorkThread store_thread_;
};

}  // namespace surefoot
