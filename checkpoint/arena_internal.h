// The one implementation of Arena: a mapped file. Internal to checkpoint/arena*.
#pragma once

#include <utility>

#include "checkpoint/arena.h"
#include "checkpoint/arena_format.h"

namespace surefoot {

class MappedArena final : public Arena {
 public:
  // `base`: the whole file, mapped; unmapped by the destructor.
  MappedArena(std::filesystem::path path, Fd fd, std::byte* base, ArenaSpec spec)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        base_(base),
        spec_(std::move(spec)),
        places_(arena_format::places(spec_.state_bytes)) {}
  ~MappedArena() override;
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  const ArenaSpec& spec() const override { return spec_; }
  void set_training_hash(const Digest& hash) override;
  bool unlinked() const override;
  std::int64_t file_bytes() const override { return places_.file_bytes; }
  SlotInfo slot(int index) const override;
  std::span<std::byte> bytes(int index) override;
  std::span<Digest> chunk_digests(int index) override;
  std::optional<int> newest_ready() const override;
  Result<int> take(Attempt attempt, Step step, int keep) override;
  void prepare_record(int index, const StepRecord& record) override;
  std::optional<StepRecord> prepared_record(int index) const override;
  Status publish(int index, Attempt attempt, Step step, std::int64_t samples, bool pin) override;
  void discard(int index) override;
  void unpin(int index) override;
  bool pin(int index) override;
  Status verify(int index) const override;
  RankLine& line(int local_rank) override;
  const RankLine& line(int local_rank) const override;
  std::atomic<std::uint64_t>& requests() override { return control().requests; }
  bool mark_fault(int index) override;
  bool fault_fired(int index) const override;
  void push(const StepRecord& record) override;
  std::vector<StepRecord> read(std::uint64_t& from) const override;
  void close_to_earlier(Attempt attempt) override;
  void end_below(Attempt attempt) override;
  bool has_ended(Attempt attempt) const override;
  void set_gang(const Gang& gang) override;
  Gang gang() const override;
  std::int64_t last_attempt() const override;
  void set_service(const ProcessId& service) override;
  ProcessId service() const override;
  void service_heartbeat() override;
  Time last_service_heartbeat() const override;
  std::uint32_t arrive(int index, int number, int local_rank) override;
  std::uint32_t arrived(int index, int number) const override;
  bool has_arrived(int index, int number, int local_rank) const override;
  bool await_arrivals(int index, int number, std::uint32_t count, Time deadline) override;
  std::optional<int> await_taken(Attempt attempt, Step step, Time deadline) override;
  bool await_ready(int index, Attempt attempt, Step step, Time deadline) override;
  Result<int> await_take(Attempt attempt, Step step, int keep, Time deadline) override;

 private:
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  arena_format::Control& control() const {
    return *at<arena_format::Control>(arena_format::kControlAt);
  }
  arena_format::SlotHeader& header(int index) const {
    SUREFOOT_CHECK(index >= 0 && index < kSlots);
    return at<arena_format::SlotHeader>(arena_format::kSlotHeadersAt)[index];
  }
  arena_format::Barrier& barrier(int index, int number) const;
  // The slot's word and what it says, consistent with each other.
  std::pair<std::uint64_t, SlotInfo> look(int index) const;
  void raise() const;  // wakes whoever waits for a change
  void push_unreported();

  std::filesystem::path path_;
  Fd fd_;
  std::byte* base_;
  ArenaSpec spec_;
  arena_format::Places places_;
};

}  // namespace surefoot
