// The arena: a node's shared memory that holds the snapshots of one job, and the channel between
// its workers and its service.
//
// One folder per node and job, mode 0700: `<checkpoint.arena or /dev/shm>/surefoot-<job id>/` with
//   arena         this file, mode 0600: header, slot headers, rank lines, records, digest tables,
//                 then three slots of state bytes
//   service.lock  flock held by the running service
//   gang.lock     flock held by local rank 0 of the running gang
//   service.sock  ZeroMQ ipc endpoint of the service
//   launched      what was launched here for the supervisor: launch_book.h
//   attempt-N/    Open MPI's backing files of that attempt
// The byte layout stands in docs/formats-arena.md. It outlives workers and service; only a reboot,
// or its owner, removes it.
//
// Slots: each FREE, WRITING(attempt, step) or READY(attempt, step, digests), and maybe pinned for
// an upload. State words are changed by compare-and-swap. A new snapshot takes the oldest slot that
// is neither pinned nor the newest READY. A READY slot's header carries the digests of all chunks
// and a digest of itself, so any flipped bit in it or in its bytes is found by verify(). What
// stands in shared memory may have been damaged by anyone with the same user id: nothing in it is
// trusted for memory safety.
//
// On CPU the training state *is* in the slots: see snapshot.h.
//
// Processes: the service creates and checks; workers open. All methods may be called from any
// process and thread unless said otherwise; those that wait say so.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/layout.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/ids.h"
#include "common/phase.h"
#include "common/process.h"
#include "common/status.h"

namespace surefoot {

inline constexpr int kSlots = 3;
inline constexpr int kMaxLocalRanks = 256;
inline constexpr int kRecords = 4096;

// What the header's request word says to the workers. Bits of ControlWord::bits too. Shared memory:
// do not renumber.
enum RequestBit : std::uint64_t {
  kRequestCheckpoint = 1 << 0,  // the step in hand becomes a checkpoint
  kRequestDrain = 1 << 1,       // leave after the step in hand
  kUploadBusy = 1 << 2,         // this node still writes the last set: no new checkpoint anywhere
  kStopOnError = 1 << 3,        // a rank cannot go on: all leave after this step
};

// One finished step or one evaluation. Plain bytes in shared memory.
struct StepRecord {
  enum Kind : std::int64_t { kTrain = 0, kEvaluation = 1 };
  std::int64_t kind = kTrain;
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  std::int64_t samples = 0;  // seen up to and including this step
  double loss = 0;           // mean over the global batch, or over the evaluated samples
  double learning_rate = 0;
  double gradient_norm = 0;     // before clipping
  double accuracy = -1;         // evaluation: share of right answers; -1: has none
  std::int64_t checkpoint = 0;  // 1: the step becomes a checkpoint
  std::int64_t finished_ns =
      0;  // monotonic clock of this machine; 0: filled in when the step is published
  double phase_seconds[kPhaseCount] = {};
};

// A rank's line, written by that rank only. Read by the service and, through it, by the supervisor.
struct alignas(64) RankLine {
  ProcessId process;  // registered before the rank writes to any slot
  std::atomic<std::int64_t> attempt{0};
  std::atomic<std::int32_t> rank{-1};
  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<std::int64_t> step{0};        // the step in hand
  std::atomic<std::int64_t> changed_ns{0};  // monotonic time of the last change of phase or step
  std::atomic<std::int32_t> exit_code{-1};  // set before leaving on purpose
  char reason[236] = {};                    // why, one line; set before exit_code
  // Of the last step: in its own forward, backward and update, not waiting for others. Nanoseconds.
  std::atomic<std::int64_t> busy_ns{0};
};

struct ArenaSpec {
  std::string job_id;  // at most 63 bytes
  Digest layout_digest;
  Digest training_hash;
  std::int64_t state_bytes = 0;
};

enum class SlotState : std::uint32_t { kFree = 0, kWriting = 1, kReady = 2 };

struct SlotInfo {
  SlotState state = SlotState::kFree;
  bool pinned = false;
  Attempt attempt;
  Step step;
  std::int64_t samples = 0;
  Digest digest;            // state digest; READY only
  std::int32_t part = 0;    // which part of the checkpoint's set this node writes, of how many:
  std::int32_t of = 1;      // the node's place in the gang that made the slot
  bool checkpoint = false;  // READY and pinned since the ranks agreed on a checkpoint: the service
                            // has to store it
  bool corrupt =
      false;  // its header fails its digest; state is then FREE, as nothing in it can be used
};

// Which slot a new snapshot takes: never a pinned one, the newest READY or `keep`; of the others
// FREE before WRITING before the oldest READY. Pure.
[[nodiscard]] std::optional<int> choose_slot(std::span<const SlotInfo, kSlots> slots, int keep);

class Arena {
 public:
  // Makes the file and takes its space (posix_fallocate, after a look at free space and the memory
  // cgroup's limit) and touches every page once. Blocks for about 3 s per GiB. kNoSpace names what
  // is needed, what there is, and the key to change. A file that stands there already is replaced
  // in one step; who has mapped the old one keeps it. One caller at a time (the service, under
  // service.lock).
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(const std::filesystem::path& folder,
                                                             const ArenaSpec& spec);
  // Maps an existing one. kNotFound: there is none. kCorrupt: its header fails its digest, or
  // version, or size. kInvalid: it belongs to somebody else.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> open(const std::filesystem::path& folder);
  virtual ~Arena() = default;

  [[nodiscard]] virtual const ArenaSpec& spec() const = 0;
  // Whoever went on with changed training keys says so (the service, when no worker runs). Survives
  // a crash at any moment.
  virtual void set_training_hash(const Digest& hash) = 0;
  [[nodiscard]] virtual bool unlinked() const = 0;  // somebody removed the file while it is mapped
  [[nodiscard]] virtual std::int64_t file_bytes() const = 0;

  [[nodiscard]] virtual SlotInfo slot(int index) const = 0;
  [[nodiscard]] virtual std::span<std::byte> bytes(int index) = 0;
  [[nodiscard]] virtual std::span<Digest> chunk_digests(int index) = 0;
  [[nodiscard]] virtual std::optional<int> newest_ready() const = 0;  // by step, then attempt

  // Takes a slot for a snapshot, never `keep` (the slot that is being read; -1: none). kRetry: none
  // is free now (two pinned). The slot is WRITING until publish() or discard(). One taker at a
  // time: the leader of the gang, or the service while the gang waits for a restore; a slot found
  // WRITING was therefore left by a dead process, and is taken first.
  [[nodiscard]] virtual Result<int> take(Attempt attempt, Step step, int keep = -1) = 0;
  // What is pushed as the step's record if whoever publishes it dies between READY and push(): it
  // lies in the slot, under its digest, and set_gang() makes up for it. Between take() and
  // publish().
  virtual void prepare_record(int index, const StepRecord& record) = 0;
  [[nodiscard]] virtual std::optional<StepRecord> prepared_record(int index) const = 0;
  // WRITING -> READY, with the digests now in chunk_digests(index). `pin`: it is a checkpoint,
  // pinned for the service; the request for it is taken back and kUploadBusy set before the next
  // step can see them. kStale: it is not
  // WRITING for this attempt and step.
  virtual Status publish(int index, Attempt attempt, Step step, std::int64_t samples, bool pin) = 0;
  virtual void discard(int index) = 0;  // WRITING or a bad READY -> FREE
  virtual void unpin(int index) = 0;
  // READY -> READY and pinned, so that it stays while it is read. False: it is not READY (any
  // more).
  virtual bool pin(int index) = 0;
  // Digests every byte of a READY slot. kCorrupt says what differs; kNotFound: not READY; kRetry:
  // it was taken meanwhile.
  virtual Status verify(int index) const = 0;

  [[nodiscard]] virtual RankLine& line(int local_rank) = 0;
  [[nodiscard]] virtual const RankLine& line(int local_rank) const = 0;
  [[nodiscard]] virtual std::atomic<std::uint64_t>& requests() = 0;

  // Marks an injected fault as fired; false when it was already. Indexes below kMaxFaults
  // (configs/fault.h).
  virtual bool mark_fault(int index) = 0;
  [[nodiscard]] virtual bool fault_fired(int index) const = 0;

  // Records: a ring. push: one writer at a time. read: those with sequence number >= `from`, as far
  // as still there; sets `from` to the next. A `from` that was never given out (of an arena that is
  // gone) starts anew at 0.
  virtual void push(const StepRecord& record) = 0;
  [[nodiscard]] virtual std::vector<StepRecord> read(std::uint64_t& from) const = 0;

  // The gang on this node: set by the service at hello, read by the workers.
  struct Gang {
    std::int64_t attempt = 0;
    std::int32_t local_size = 0;
    std::int32_t node_index = 0;
    std::int32_t node_count = 1;
  };
  // From now on nobody of an earlier attempt can register any more. First step of a hello;
  // end_earlier_writers and set_gang follow.
  virtual void close_to_earlier(Attempt attempt) = 0;
  // Nobody of an attempt below this one can register any more, also not the gang that runs, and
  // also when it is set anew. The highest ever said counts.
  virtual void end_below(Attempt attempt) = 0;
  [[nodiscard]] virtual bool has_ended(Attempt attempt) const = 0;
  virtual void set_gang(const Gang& gang) = 0;  // clears all rank lines and requests, pushes the
                                                // prepared records that were not
  [[nodiscard]] virtual Gang gang() const = 0;  // local_size is within 0..kMaxLocalRanks
  [[nodiscard]] virtual std::int64_t last_attempt() const = 0;  // highest ever set

  virtual void set_service(const ProcessId& service) = 0;
  [[nodiscard]] virtual ProcessId service() const = 0;
  virtual void service_heartbeat() = 0;
  [[nodiscard]] virtual Time last_service_heartbeat() const = 0;

  // Words for snapshot.h: per slot two barriers, and a futex-style wait. Reset by take(). A local
  // rank arrives once.
  virtual std::uint32_t arrive(
      int index, int barrier, int local_rank) = 0;  // barrier 0 or 1; returns how many have arrived
  [[nodiscard]] virtual std::uint32_t arrived(int index, int barrier) const = 0;
  [[nodiscard]] virtual bool has_arrived(int index, int barrier, int local_rank) const = 0;
  // Blocks until `arrived(index, barrier) >= count` or the deadline (false).
  [[nodiscard]] virtual bool await_arrivals(int index, int barrier, std::uint32_t count,
                                            Time deadline) = 0;
  // Blocks until some slot is WRITING(attempt, step) or READY(attempt, step), and returns it.
  [[nodiscard]] virtual std::optional<int> await_taken(Attempt attempt, Step step,
                                                       Time deadline) = 0;
  [[nodiscard]] virtual bool await_ready(int index, Attempt attempt, Step step, Time deadline) = 0;
  // take(), waiting for a slot to be unpinned until the deadline.
  [[nodiscard]] virtual Result<int> await_take(Attempt attempt, Step step, int keep,
                                               Time deadline) = 0;
};

// Registers the calling process as the writer of `local_rank`: before it writes to any slot.
// kStale: a newer attempt has begun on this node, or this one was ended: leave.
Status register_writer(Arena& arena, Attempt attempt, int local_rank, int rank);
// Safe reads of a line that another process may be writing.
[[nodiscard]] ProcessId registered_process(const RankLine& line);
[[nodiscard]] std::string reason_of(const RankLine& line);
// Leaving on purpose: why (cut to what fits), then the code, which is what readers look at first.
void set_exit(RankLine& line, int exit_code, std::string_view reason);
// Phase and step in hand, with the time.
void set_phase(RankLine& line, Phase phase, Step step);

// Ends (SIGKILL, waited for) every process that has registered in the arena and is not of
// `attempt`. Nobody writes late after it. Attempt{0}: all of them. Never the caller itself.
// kRestart names those that do not end in time.
Status end_earlier_writers(Arena& arena, Attempt attempt, Time deadline);

// `<base>/surefoot-<job id>`; base: checkpoint.arena or /dev/shm.
[[nodiscard]] std::filesystem::path arena_folder(const std::string& base,
                                                 const std::string& job_id);

// An exclusive flock on `folder/name`, held until destroyed or until the process ends. kStale:
// somebody holds it; the message names the pid written in it.
class FolderLock {
 public:
  [[nodiscard]] static Result<FolderLock> take(const std::filesystem::path& folder,
                                               const std::string& name);

 private:
  explicit FolderLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace surefoot
