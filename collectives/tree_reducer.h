// How the reproducible reduction moves (reducer.h says what it promises, docs/reduction.md shows a
// picture).
//
// A bucket passes through: gathered (elements become ready) -> shipped (last local additions done,
// the owners of its ranges told) -> finished (all roots of the own range are here: tree finished,
// sum sent to the other nodes) -> collected (the sums of other owners that this rank needs are
// here). Buckets are finished from the last to the first, since backward goes that way; one shipped
// before its turn waits.
//
// A root goes to an owner on the same node without being copied: the owner reads it where it lies
// (SlotMemory), and the message is empty. It may do so until its closing message, without which no
// rank begins the next step. What was written before a message was sent is seen by who has received
// it: transports order their own buffers by the same barriers. To other owners the message is the
// root.
//
// Memory: gradient_buffers() slots of the vector, and for each root that comes as messages staging
// for the own ranges of kWindow buckets. The next receive into a place of staging is posted when
// its bucket is finished: so staging stays in the cache, and its size does not grow with the model.
// The sum takes the place of this rank's first root. Everything is allocated in the constructor.
#pragma once

#include <memory>
#include <vector>

#include "collectives/aligned_buffer.h"
#include "collectives/closing_exchange.h"
#include "collectives/ranges.h"
#include "collectives/reducer.h"
#include "collectives/reduction_tree.h"
#include "collectives/slot_memory.h"

namespace surefoot {

class TreeReducer final : public Reducer {
 public:
  // `slots` holds gradient_buffers_of(...) slots of Ranges::padded_elements().
  TreeReducer(Communicator& communicator, const ReducerOptions& options, SlotMemory slots);

  [[nodiscard]] const std::vector<ElementRange>& share() const override { return share_; }
  [[nodiscard]] int gradient_buffers() const override { return schedule_.slot_count; }
  [[nodiscard]] std::int64_t buffer_begin() const override { return ranges_.buffer_begin(); }
  void begin_step() override;
  std::span<float> begin_micro_batch() override;
  void ready(ElementRange elements) override;
  void end_micro_batch() override;
  Result<ReducedStep> finish(const ControlWord& mine, std::span<const double> losses,
                             Time deadline) override;
  [[nodiscard]] std::span<const float> sum() const override;

 private:
  // A subtree root of any rank, for the range of elements that this rank owns.
  struct Root {
    int rank = 0;
    int index = 0;  // among the roots of its rank
    int slot = 0;   // in the memory of its rank
    // Where it comes as messages: kWindow places for the own range of a bucket.
    AlignedBuffer staging{0};
  };

  [[nodiscard]] int tag_of_root(int bucket, int index) const { return bucket * max_roots_ + index; }
  [[nodiscard]] int tag_of_sum(int bucket) const {
    return ranges_.bucket_count() * max_roots_ + bucket;
  }
  [[nodiscard]] bool in_last_micro_batch() const;
  [[nodiscard]] const float* operand(const Root& root, int bucket, std::int64_t begin) const;
  [[nodiscard]] std::span<float> sum_slot() const {
    return slots_.slot(schedule_.root_slots.front());
  }
  [[nodiscard]] std::span<const Request> receives_of(int bucket) const;
  [[nodiscard]] std::span<const Request> sends_of(int bucket, int owner) const;
  // Buckets in the order in which they are finished.
  [[nodiscard]] int bucket_at(std::size_t position) const {
    return ranges_.bucket_count() - 1 - static_cast<int>(position);
  }
  [[nodiscard]] std::int64_t staging_offset(int bucket) const;
  void plan_partial_sums();
  void post_receives(std::size_t position);
  void do_additions(const std::vector<Addition>& additions, ElementRange elements);
  void ship(int bucket);
  void advance();
  void finish_range(int bucket);
  void finish_piece(int bucket, ElementRange piece);
  void send_sum(int bucket);
  Status wait_for_sums(Time deadline);

  Communicator& communicator_;
  const Ranges ranges_;
  const TreeNode own_;
  const LocalSchedule schedule_;
  const std::vector<Addition> finishing_;
  std::vector<ElementRange> share_;
  std::vector<int> needed_owners_;  // whose sums this rank needs, itself left out
  std::vector<int> needing_ranks_;  // who needs this rank's sums
  int max_roots_ = 1;               // of any rank
  std::unique_ptr<ClosingExchange> closing_;

  SlotMemory slots_;
  std::vector<bool> clean_;  // by slot: all zeros
  std::vector<Root> roots_;  // of all ranks, from left to right
  int remote_roots_ = 0;
  std::int64_t largest_range_ = 0;      // of this rank, in elements
  std::vector<int> partial_of_;         // by finishing addition: where its sum lies on its way up
  std::vector<AlignedBuffer> partial_;  // pieces, reused, so that they stay in the cache
  std::vector<const float*> operands_;  // by root

  // The step in hand.
  int micro_batch_ = 0;                 // index among the own ones
  std::vector<std::int64_t> missing_;   // by bucket: elements not ready
  std::vector<bool> is_shipped_;        // by bucket
  std::size_t finished_ = 0;            // so many buckets, from the last one on
  std::size_t collecting_ = 0;          // so many pairs (bucket, needed owner) have a receive
  std::vector<Request> root_receives_;  // [bucket][remote root]
  std::vector<Request> root_sends_;     // [bucket][owner][own root]
  std::vector<Request> sum_sends_;
  std::vector<Request> sum_receives_;
};

}  // namespace surefoot
