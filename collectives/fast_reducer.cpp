// `reduction: fast`: each rank adds up its micro-batches in order, the library adds up the ranks.
// Bits depend on P and on the library.
#include <algorithm>
#include <cstring>

#include "collectives/aligned_buffer.h"
#include "collectives/arithmetic.h"
#include "collectives/closing_exchange.h"
#include "collectives/ranges.h"
#include "collectives/reducer.h"
#include "collectives/reduction_tree.h"

namespace surefoot {
namespace {

class FastReducer final : public Reducer {
 public:
  FastReducer(Communicator& communicator, const ReducerOptions& options)
      : communicator_(communicator),
        ranges_(options),
        own_(micro_batches_of(communicator.rank(), communicator.size(), options.micro_batches)),
        share_(ranges_.share(communicator.rank())),
        closing_(communicator, ranges_, options.micro_batches, 0) {
    SUREFOOT_CHECK(ranges_.ranks() == communicator.size());
    SUREFOOT_CHECK(options.communicate_in == NumberFormat::kFp32);
    buffers_.emplace_back(ranges_.padded_elements());
    if (own_.end - own_.begin > 1) buffers_.emplace_back(ranges_.padded_elements());
  }

  [[nodiscard]] const std::vector<ElementRange>& share() const override { return share_; }
  [[nodiscard]] int gradient_buffers() const override { return static_cast<int>(buffers_.size()); }
  [[nodiscard]] std::int64_t buffer_begin() const override { return ranges_.buffer_begin(); }

  void begin_step() override {
    micro_batch_ = 0;
    closing_.begin_step();
  }

  std::span<float> begin_micro_batch() override {
    SUREFOOT_CHECK(micro_batch_ < own_.end - own_.begin);
    // The second buffer is cleared as it is added to the first.
    const auto buffer = buffers_[micro_batch_ == 0 ? 0 : 1].span();
    if (micro_batch_ == 0) std::memset(buffer.data(), 0, buffer.size_bytes());
    return buffer.first(static_cast<std::size_t>(ranges_.elements()));
  }

  void ready(ElementRange) override {}

  void end_micro_batch() override {
    if (micro_batch_ > 0)
      add_and_clear(buffers_[0].data(), buffers_[1].data(), buffers_[0].span().size());
    ++micro_batch_;
  }

  Result<ReducedStep> finish(const ControlWord& mine, std::span<const double> losses,
                             Time deadline) override {
    SUREFOOT_CHECK(micro_batch_ == own_.end - own_.begin);
    if (ranges_.ranks() > 1 && ranges_.elements() > 0) {
      SUREFOOT_TRY(communicator_.all_reduce_sum(buffers_[0].span(), deadline));
    }
    for (int bucket = 0; bucket < ranges_.bucket_count(); ++bucket) {
      const ElementRange range = ranges_.range(bucket, communicator_.rank());
      for (std::int64_t at = range.begin; at < std::min(range.end, ranges_.buffer_begin());
           at += kBlockElements) {
        closing_.set_square_sum(at, block_square_sum(buffers_[0].data() + at, kBlockElements));
      }
    }
    return closing_.finish(mine, losses, deadline);
  }

  [[nodiscard]] std::span<const float> sum() const override {
    return std::span<const float>(buffers_[0].span())
        .first(static_cast<std::size_t>(ranges_.elements()));
  }

 private:
  Communicator& communicator_;
  const Ranges ranges_;
  const TreeNode own_;
  const std::vector<ElementRange> share_;
  ClosingExchange closing_;
  std::vector<AlignedBuffer> buffers_;  // the sum of the own micro-batches; the one in hand
  int micro_batch_ = 0;
};

}  // namespace

std::unique_ptr<Reducer> make_fast_reducer(Communicator& communicator,
                                           const ReducerOptions& options) {
  return std::make_unique<FastReducer>(communicator, options);
}

}  // namespace surefoot
