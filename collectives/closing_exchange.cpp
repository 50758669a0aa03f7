#include "collectives/closing_exchange.h"

#include <algorithm>
#include <bit>

#include "collectives/arithmetic.h"
#include "collectives/reduction_tree.h"

namespace surefoot {
namespace {
// Words of a part: control bits, the two that must match, losses, square sums.
constexpr std::size_t kHeaderWords = 3;
}  // namespace

ClosingExchange::ClosingExchange(Communicator& communicator, const Ranges& ranges,
                                 int micro_batches, int tag)
    : communicator_(communicator), ranges_(ranges), tag_(tag) {
  const int ranks = ranges.ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
    Part& part = parts_.emplace_back();
    part.losses = own.end - own.begin;
    part.words.resize(kHeaderWords +
                      static_cast<std::size_t>(part.losses + ranges.gradient_blocks(rank)));
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    next[static_cast<std::size_t>(rank)] =
        static_cast<std::int64_t>(kHeaderWords) + parts_[static_cast<std::size_t>(rank)].losses;
  }
  for (int bucket = 0; bucket < ranges.bucket_count(); ++bucket) {
    for (int owner = 0; owner < ranks; ++owner) {
      const ElementRange range = ranges.range(bucket, owner);
      for (std::int64_t at = range.begin; at < std::min(range.end, ranges.buffer_begin());
           at += kBlockElements) {
        owner_of_block_.push_back(owner);
        position_of_block_.push_back(next[static_cast<std::size_t>(owner)]++);
      }
    }
  }
  losses_.reserve(static_cast<std::size_t>(micro_batches));
  square_sums_.resize(owner_of_block_.size());
  requests_.reserve(2 * parts_.size());
  receives_.reserve(parts_.size());
}

void ClosingExchange::begin_step() {
  receives_.clear();
  for (int rank = 0; rank < ranges_.ranks(); ++rank) {
    if (rank == communicator_.rank()) continue;
    receives_.push_back(communicator_.receive(
        std::as_writable_bytes(std::span(parts_[static_cast<std::size_t>(rank)].words)), rank,
        tag_));
  }
}

void ClosingExchange::set_square_sum(std::int64_t block_begin, double square_sum) {
  const auto block = static_cast<std::size_t>(block_begin / kBlockElements);
  SUREFOOT_CHECK(owner_of_block_[block] == communicator_.rank());
  parts_[static_cast<std::size_t>(communicator_.rank())]
      .words[static_cast<std::size_t>(position_of_block_[block])] =
      std::bit_cast<std::uint64_t>(square_sum);
}

Result<ReducedStep> ClosingExchange::finish(const ControlWord& mine, std::span<const double> losses,
                                            Time deadline) {
  Part& own = parts_[static_cast<std::size_t>(communicator_.rank())];
  SUREFOOT_CHECK(static_cast<int>(losses.size()) == own.losses);
  own.words[0] = mine.bits;
  std::copy(mine.must_match.begin(), mine.must_match.end(), own.words.begin() + 1);
  std::transform(losses.begin(), losses.end(), own.words.begin() + kHeaderWords,
                 [](double loss) { return std::bit_cast<std::uint64_t>(loss); });
  requests_ = receives_;
  for (int rank = 0; rank < ranges_.ranks(); ++rank) {
    if (rank == communicator_.rank()) continue;
    requests_.push_back(communicator_.send(std::as_bytes(std::span(own.words)), rank, tag_));
  }
  SUREFOOT_TRY(communicator_.wait(requests_, deadline, "the end of the step's reduction"));
  return combine();
}

ReducedStep ClosingExchange::combine() {
  ReducedStep step;
  losses_.clear();
  const Part& first = parts_.front();
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    const Part& part = parts_[rank];
    step.control |= part.words[0];
    for (std::size_t i = 0; i < step.mismatched.size(); ++i) {
      if (part.words[1 + i] != first.words[1 + i])
        step.mismatched[i].push_back(static_cast<int>(rank));
    }
    for (int i = 0; i < part.losses; ++i) {
      losses_.push_back(
          std::bit_cast<double>(part.words[kHeaderWords + static_cast<std::size_t>(i)]));
    }
  }
  for (std::size_t block = 0; block < square_sums_.size(); ++block) {
    const auto& words = parts_[static_cast<std::size_t>(owner_of_block_[block])].words;
    square_sums_[block] =
        std::bit_cast<double>(words[static_cast<std::size_t>(position_of_block_[block])]);
  }
  step.loss_sum = tree_sum(losses_);
  step.square_sum = tree_sum(square_sums_);
  return step;
}

}  // namespace surefoot
