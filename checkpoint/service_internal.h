// The parts of a running service. Internal to checkpoint/service*.cpp.
#pragma once

#include <array>
#include <atomic>
#include <map>

#include "checkpoint/deadline.h"
#include "checkpoint/interval.h"
#include "checkpoint/launch_book.h"
#include "checkpoint/service.h"
#include "checkpoint/service.pb.h"
#include "checkpoint/service_core.h"
#include "checkpoint/service_history.h"
#include "checkpoint/service_sockets.h"
#include "checkpoint/slot_holds.h"
#include "checkpoint/throttle.h"
#include "checkpoint/work_thread.h"

namespace surefoot {

// Largest message that is looked at; kMaxFrameBytes is where connections are cut.
inline constexpr std::int64_t kMaxMessageBytes = 4 << 20;

class ServiceImpl final : public Service {
 public:
  explicit ServiceImpl(ServiceSettings settings);
  ~ServiceImpl() override;
  Status open();
  [[nodiscard]] std::string endpoint() const override { return sockets_.endpoint(); }
  std::string run() override;
  bool close(Time deadline) override;

 private:
  // What is known of a slot that is being written to the store.
  struct Upload {
    Attempt attempt;
    Step step;
    Time since{};  // first seen
    Time next{};   // not tried before
    int failures = 0;
    Time begun{};               // first written; the upload's cost counts from here
    Duration slept{};           // of the throttle, before it
    Duration processor_time{};  // of the store thread, so far
    Attempt tried_in;           // the gang at the last try
    bool part_stored = false;   // as far as that is known
    int waits = 0;              // for other nodes' parts
    Time waiting_since{};       // ... the first
  };
  // This machine goes.
  struct Departure {
    Time since = now();
    Time deadline;
    bool everyone = true;
    DeadlineAction action = DeadlineAction::kNothing;
    std::optional<Step> about;
    std::string decision;
    std::string source;  // as in StatusReply.notice
    std::string id;
    std::optional<Step> safe;
    Duration safe_before{};
    std::optional<Step> shared;  // this node's share is stored, others' were still missing
    Time alone_from{};           // ... from then on this node writes the whole of it
  };
  struct Ending {
    std::optional<Peer> peer;  // none: nobody has asked for it
    Attempt below;
    Time deadline;
  };
  // What hello brings about, worked out on the gang thread.
  struct Welcome {
    Status status;
    service::HelloReply reply;
    std::shared_ptr<Arena> arena;
    service::Memory memory;
    StateLayout layout;
    bool made = false;  // the arena, since there was none
    std::optional<StoreView> store;
    std::string warning;  // the store cannot be used, and training goes on
  };
  struct Finished {
    Step step;
    Digest digest;
    service::FinishReply reply;
  };

  // service.cpp: messages and the loop
  void look_at_job_directory();
  [[nodiscard]] bool sees_job_directory() const;
  void take_keys(const Result<ServiceKeys>& keys);
  Status listen_remotely(const ServiceKeys& keys);
  [[nodiscard]] std::array<WorkThread*, 6> threads() {
    return {&gang_thread_,   &store_thread_, &keys_thread_,
            &launch_thread_, &log_thread_,   &check_thread_};
  }
  void receive();
  void take(const Frames& message);
  void dispatch(const Peer& peer, const service::Request& request);
  void reply(const Peer& peer, const service::Reply& message);
  void reply(const Peer& peer, const Error& failed);
  void done(const Peer& peer);
  [[nodiscard]] bool too_much_waits(const service::Request& request) const;
  [[nodiscard]] Status is_last_step(const service::Finish& request) const;
  void refuse(const Peer& peer, std::string_view kind, const std::string& message);
  void read_signals();
  void tick();
  service::StatusReply status(const service::Status& request);
  void add_refused(service::StatusReply& reply) const;
  void add_ranks(service::StatusReply& reply) const;
  void add_records(service::StatusReply& reply, std::uint64_t from) const;
  void look_after_folder();
  void write_metrics();
  void remove_folder();

  // service_gang.cpp
  void hello(const Peer& peer, const service::Hello& hello);
  Welcome welcome(const service::Hello& hello, Attempt ended, std::shared_ptr<Arena> arena,
                  service::Memory memory, bool damaged);
  Status look_for(HelloFacts& facts, Step known, Welcome& result);
  Status make_ready(const HelloDecision& decision, const HelloFacts::Gang& gang,
                    const service::Hello& hello, const service::Memory& memory,
                    std::shared_ptr<Arena> arena, Welcome& result);
  void remember(const HelloDecision& decision, const service::Hello& hello, bool damaged,
                const service::Memory& memory, Welcome& result);
  void welcomed(const Peer& peer, const service::Hello& hello, Time came, Welcome welcome);
  void forget_requests_before(Time hello, Attempt attempt);
  void restore(const Peer& peer, const service::Restore& request);
  void restored(const Peer& peer, const service::Restore& request, const Candidate& candidate,
                const Result<StoreSide::Filled>& filled, double took);
  Result<StoreSide::Filled> bring(const Candidate& candidate, int part, int of, Arena& arena);
  void open_arena();
  void use(std::shared_ptr<Arena> arena);
  [[nodiscard]] bool workers_alive() const;
  [[nodiscard]] bool gang_is_past_restore() const;

  // service_check.cpp
  void check(const Peer& peer, const service::Check& request);
  void read_log(const Peer& peer, const service::ReadLog& request);

  // service_trace.cpp
  void trace(const Peer& peer, const service::Trace& request);

  // service_launch.cpp
  void ask(const Peer& peer, const service::Ask& ask);
  void launch(const Peer& peer, const service::Launch& request);
  void end_gang(const Peer& peer, const service::EndGang& request);
  void begin_ending(Attempt below, const std::optional<Peer>& peer);
  void look_at_endings();
  [[nodiscard]] SessionProcesses processes_below(Attempt attempt);
  [[nodiscard]] Attempt newest_attempt() const;

  // service_when.cpp
  void read_step_times();
  void decide_about_interval();
  void decide_about_checkpoint();
  void notice(const Peer& peer, const service::Notice& notice);
  void depart(Duration left, bool everyone, std::string source = "", std::string id = "");
  void look_at_notices();
  void look_at_gpus();
  void obey(const MachineNotices::Leave& leave);
  [[nodiscard]] bool is_safe_to_go() const;
  [[nodiscard]] DeadlineFacts departure_facts() const;
  void decide_about_departure();
  void flush_ended(const Status& flushed);
  [[nodiscard]] bool keeps_to_memory() const;
  void add_notice(service::StatusReply& reply) const;
  void open_history();
  void save_history();
  void close_history();
  void watch(bool at_work);
  void note_arena(bool made);
  void note_restored_from_store();

  // service_upload.cpp
  void look_at_store();
  void look_at_slots();
  void start_upload(int slot);
  [[nodiscard]] bool is_left_behind(const Upload& upload) const;
  void uploaded(int slot, const Upload& upload, const UploadResult& result);
  void note_stored(const SlotInfo& slot, const UploadResult& result, Time made, Time begun);
  void try_again_later(int slot, Upload& upload, const UploadResult& result);
  void note_cost(const Upload& upload);
  void take_newer_instead(int slot, const Upload& upload);
  void decide_about_life();
  [[nodiscard]] LifeFacts life_facts() const;
  void note_view(const StoreView& view);
  void set_durable(Step step, Duration age);
  void distrust(Step step);
  [[nodiscard]] std::optional<CheckpointIdentity> identity_of(const SlotInfo& slot) const;
  [[nodiscard]] bool newest_is_stored() const;
  // Writes the newest READY step to the store; `then` is told on the loop.
  void flush(const std::function<void(const Status&)>& then);
  [[nodiscard]] bool shares(const SlotInfo& slot) const;
  void note_missing_shares(Step step, Duration took);
  void after_flush(const UploadTask& task, const UploadResult& result, const Status& copy,
                   const std::function<void(const Status&)>& then);
  void let_go(const UploadTask& task, bool stored, bool is_bad);
  void finish(const Peer& peer, const service::Finish& request);
  void finish_from_slot(const Peer& peer, int slot, const SlotInfo& info);
  void finish_from_store(const Peer& peer, Step step);
  Result<Exported> store_and_export(const UploadTask& task, UploadResult& stored);
  void exported(const Peer& peer, Step step, const Digest& digest, const Result<Exported>& outcome);
  void shutdown(const Peer& peer, const service::Shutdown& request);
  [[nodiscard]] Control store_control();
  [[nodiscard]] Control look_control();
  void begin_urgent();
  void end_urgent();

  ServiceSettings settings_;
  std::optional<FolderLock> lock_;
  ServiceSockets sockets_;
  bool complained_of_keys_ = false;
  std::string keys_in_use_;  // as text
  std::string ended_;        // not empty: why the loop ends
  bool removing_ = false;    // ... and the folder goes with it

  std::shared_ptr<Arena> arena_;
  bool arena_damaged_ = false;
  bool arena_unlinked_ = false;
  service::Memory memory_;
  std::optional<StateLayout> layout_;  // of memory_.hello

  StoreSide gang_store_;
  StoreSide upload_store_;
  std::map<int, Upload> uploads_;  // by slot
  SlotHolds held_;                 // by flush or finish
  std::optional<Step> in_hand_;    // being written now
  std::optional<Step> flushing_;   // ... because the memory is to go
  std::optional<Step> durable_;    // published and read back, in this life or an earlier one
  std::optional<Step> verified_;   // ... and read back in this life: what freeing memory relies on
  Time durable_at_{};
  std::optional<Time> newest_checkpoint_;  // when it was made, read back or not
  std::optional<Step> stored_part_;        // newest of which this node's part is in the store
  std::optional<Duration> storing_;        // what the last one took, in all
  double stored_rate_ = 0;                 // of whole checkpoints, read back, not held
  bool store_seen_ = false;
  int store_failures_ = 0;
  Time store_not_before_{};
  double upload_rate_ = 0;
  std::string waiting_for_;
  std::optional<Finished> finished_;

  CostMeter meter_;
  std::uint64_t meter_from_ = 0;
  IntervalDecision interval_;
  IntervalDecision interval_told_;
  std::optional<Departure> departure_;
  MachineNotices notices_;                       // as they stood at the last look
  std::vector<service::GpuStatus> gpus_;         // as they were at the last look
  std::optional<MachineNotices::Leave> obeyed_;  // the last that made it depart
  ServiceHistory history_;
  Time history_saved_{};
  Time watched_until_{};
  bool loss_may_follow_ = false;
  bool complained_of_history_ = false;

  bool supervised_;
  bool drain_asked_ = false;
  Time drain_asked_at_{};      // by a message
  Attempt drain_asked_for_{};  // ... that names a gang, which may still come
  bool flush_wanted_ = false;
  int signals_seen_ = 0;
  int flush_failures_ = 0;
  Time flush_not_before_{};
  Time last_visit_;
  Time last_question_{};
  Time last_supervisor_;
  Time last_step_{};
  Time gang_expected_until_{};
  std::vector<Ending> endings_;
  LaunchBook launches_;
  Attempt newest_hello_;  // that has come, answered or not
  bool shares_directory_ = false;

  std::uint64_t records_from_ = 0;
  std::map<std::string, std::int64_t, std::less<>> refused_;  // messages, by kind
  Time next_heartbeat_{};
  Time next_look_{};    // at processes, life and metrics
  Time next_folder_{};  // at the folder

  // Used by the store thread too.
  Throttle throttle_;
  std::atomic<std::int64_t> uploading_bytes_{0};
  int urgent_ = 0;  // pieces of work in hand that nothing holds back

  // Last, so that they end first: their work uses what stands above.
  WorkThread gang_thread_;
  WorkThread store_thread_;
  WorkThread keys_thread_;    // the job directory may lie on a network disk that hangs
  WorkThread launch_thread_;  // ... and so may folders of logs
  WorkThread log_thread_;     // ... and logs
  WorkThread check_thread_;   // store and connections
};

}  // namespace surefoot
