#include "collectives/tree_reducer.h"

#include <algorithm>
#include <cstring>

#include "collectives/arithmetic.h"

namespace surefoot {
namespace {

// So many buckets can be on their way at once. With the default buckets, two to four megabytes from
// each peer, more than a fast network holds; and still less than a processor's last cache.
constexpr int kWindow = 4;
constexpr std::string_view kWhat = "the gradients of the step";
static_assert(kPieceElements == kBlockElements,
              "finish_piece takes a piece for a block of the norm");

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

std::int64_t size(ElementRange range) {
  return range.end - range.begin;
}

}  // namespace

TreeReducer::TreeReducer(Communicator& communicator, const ReducerOptions& options,
                         SlotMemory slots)
    : communicator_(communicator),
      ranges_(options),
      own_(micro_batches_of(communicator.rank(), communicator.size(), options.micro_batches)),
      schedule_(local_schedule(own_.begin, own_.end, options.micro_batches)),
      finishing_(finishing_schedule(communicator.size(), options.micro_batches)),
      share_(ranges_.share(communicator.rank())),
      slots_(std::move(slots)) {
  const int ranks = communicator.size();
  const int me = communicator.rank();
  SUREFOOT_CHECK(ranges_.ranks() == ranks);
  SUREFOOT_CHECK(options.communicate_in == NumberFormat::kFp32);
  for (int bucket = 0; bucket < ranges_.bucket_count(); ++bucket) {
    largest_range_ = std::max(largest_range_, size(ranges_.range(bucket, me)));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != me && ranges_.needs(me, rank)) needed_owners_.push_back(rank);
    if (rank != me && ranges_.needs(rank, me)) needing_ranks_.push_back(rank);
    const TreeNode theirs = micro_batches_of(rank, ranks, options.micro_batches);
    const LocalSchedule schedule = local_schedule(theirs.begin, theirs.end, options.micro_batches);
    const auto count = static_cast<int>(schedule.root_slots.size());
    max_roots_ = std::max(max_roots_, count);
    const bool is_message = rank != me && !slots_.sees(rank);
    for (int i = 0; i < count; ++i) {
      roots_.push_back({rank, i, schedule.root_slots[index(i)],
                        AlignedBuffer(is_message ? kWindow * largest_range_ : 0)});
      remote_roots_ += rank != me ? 1 : 0;
    }
  }
  clean_.assign(index(schedule_.slot_count), true);
  plan_partial_sums();
  operands_.resize(roots_.size());

  const int closing_tag = tag_of_sum(ranges_.bucket_count());
  SUREFOOT_CHECK(closing_tag < kFirstReservedTag);
  closing_ =
      std::make_unique<ClosingExchange>(communicator, ranges_, options.micro_batches, closing_tag);
  const std::size_t buckets = index(ranges_.bucket_count());
  missing_.resize(buckets);
  is_shipped_.resize(buckets);
  root_receives_.resize(buckets * index(remote_roots_));
  root_sends_.resize(buckets * index(ranks) * schedule_.root_slots.size());
  sum_sends_.reserve(buckets * needing_ranks_.size());
  sum_receives_.reserve(buckets * needed_owners_.size());
}

void TreeReducer::plan_partial_sums() {
  // By root: where the sum that took its place lies; -1 while it is the root itself.
  std::vector<int> place(roots_.size(), -1);
  std::vector<int> free;
  int count = 0;
  for (const Addition& addition : finishing_) {
    for (int operand : {addition.left, addition.right}) {
      if (place[index(operand)] >= 0) free.push_back(place[index(operand)]);
    }
    if (free.empty()) free.push_back(count++);
    // Over one of its own operands, where that is a sum: element by element this is safe.
    place[index(addition.left)] = free.back();
    partial_of_.push_back(free.back());
    free.pop_back();
  }
  for (int i = 0; i < count; ++i) partial_.emplace_back(static_cast<std::int64_t>(kPieceElements));
}

bool TreeReducer::in_last_micro_batch() const {
  return micro_batch_ == own_.end - own_.begin - 1;
}

std::span<const Request> TreeReducer::receives_of(int bucket) const {
  return std::span(root_receives_)
      .subspan(index(bucket) * index(remote_roots_), index(remote_roots_));
}

std::span<const Request> TreeReducer::sends_of(int bucket, int owner) const {
  const std::size_t own_roots = schedule_.root_slots.size();
  return std::span(root_sends_)
      .subspan((index(bucket) * index(ranges_.ranks()) + index(owner)) * own_roots, own_roots);
}

std::int64_t TreeReducer::staging_offset(int bucket) const {
  return bucket % kWindow * largest_range_;
}

void TreeReducer::begin_step() {
  micro_batch_ = 0;
  finished_ = 0;
  collecting_ = 0;
  sum_sends_.clear();
  sum_receives_.clear();
  std::fill(is_shipped_.begin(), is_shipped_.end(), false);
  std::fill(root_receives_.begin(), root_receives_.end(), Request{});
  std::fill(root_sends_.begin(), root_sends_.end(), Request{});
  closing_->begin_step();
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    missing_[i] = ranges_.real_elements(ranges_.bucket(static_cast<int>(i)));
    if (i < static_cast<std::size_t>(kWindow)) post_receives(i);
  }
}

void TreeReducer::post_receives(std::size_t position) {
  const int bucket = bucket_at(position);
  const std::int64_t elements = size(ranges_.range(bucket, communicator_.rank()));
  if (elements == 0) return;
  std::size_t at = index(bucket) * index(remote_roots_);
  for (const Root& root : roots_) {
    if (root.rank == communicator_.rank()) continue;
    std::span<float> into;
    if (!slots_.sees(root.rank)) {
      into = root.staging.span().subspan(index(staging_offset(bucket)), index(elements));
    } else if (root.index > 0) {
      continue;  // one empty message tells of all roots of a rank whose memory this one sees
    }
    root_receives_[at++] = communicator_.receive(std::as_writable_bytes(into), root.rank,
                                                 tag_of_root(bucket, root.index));
  }
}

std::span<float> TreeReducer::begin_micro_batch() {
  SUREFOOT_CHECK(micro_batch_ < own_.end - own_.begin);
  const std::size_t slot = index(schedule_.slots[index(micro_batch_)]);
  const std::span<float> buffer = slots_.slot(static_cast<int>(slot));
  if (!clean_[slot]) std::memset(buffer.data(), 0, buffer.size_bytes());
  clean_[slot] = false;
  return buffer.first(index(ranges_.elements()));
}

void TreeReducer::ready(ElementRange elements) {
  if (!in_last_micro_batch()) {
    communicator_.progress();
    return;
  }
  elements.end = std::min(elements.end, ranges_.elements());
  while (elements.begin < elements.end) {
    const int bucket = ranges_.bucket_of(elements.begin);
    const ElementRange here{elements.begin, std::min(elements.end, ranges_.bucket(bucket).end)};
    std::int64_t& missing = missing_[index(bucket)];
    const std::int64_t real = ranges_.real_elements(here);
    SUREFOOT_CHECK(real <= missing);
    missing -= real;
    if (real > 0 && missing == 0) ship(bucket);
    elements.begin = here.end;
  }
  advance();
}

void TreeReducer::end_micro_batch() {
  if (in_last_micro_batch()) {
    for (int bucket = ranges_.bucket_count() - 1; bucket >= 0; --bucket) {
      if (missing_[index(bucket)] == 0) continue;
      missing_[index(bucket)] = 0;
      ship(bucket);
      advance();
    }
  } else {
    do_additions(schedule_.additions[index(micro_batch_)], {0, ranges_.padded_elements()});
  }
  for (const Addition& addition : schedule_.additions[index(micro_batch_)])
    clean_[index(addition.right)] = true;
  ++micro_batch_;
}

void TreeReducer::do_additions(const std::vector<Addition>& additions, ElementRange elements) {
  // Piece by piece through the whole chain: the sum of one addition is the operand of the next
  // while it is in the cache.
  for (std::int64_t at = elements.begin; at < elements.end;
       at += static_cast<std::int64_t>(kPieceElements)) {
    const std::size_t count = std::min(kPieceElements, index(elements.end - at));
    for (const Addition& addition : additions) {
      add_and_clear(slots_.slot(addition.left).data() + at, slots_.slot(addition.right).data() + at,
                    count);
    }
  }
}

void TreeReducer::ship(int bucket) {
  do_additions(schedule_.additions.back(), ranges_.bucket(bucket));
  const std::size_t own_roots = schedule_.root_slots.size();
  for (int step = 1; step < ranges_.ranks(); ++step) {
    // Each rank starts with its neighbour, so that not all send to rank 0 first.
    const int owner = (communicator_.rank() + step) % ranges_.ranks();
    const ElementRange range = ranges_.range(bucket, owner);
    if (size(range) == 0) continue;
    std::size_t at = (index(bucket) * index(ranges_.ranks()) + index(owner)) * own_roots;
    if (slots_.is_seen_by(owner)) {
      root_sends_[at] = communicator_.send({}, owner, tag_of_root(bucket, 0));
      continue;
    }
    for (std::size_t i = 0; i < own_roots; ++i) {
      const auto part =
          slots_.slot(schedule_.root_slots[i]).subspan(index(range.begin), index(size(range)));
      root_sends_[at++] =
          communicator_.send(std::as_bytes(part), owner, tag_of_root(bucket, static_cast<int>(i)));
    }
  }
  is_shipped_[index(bucket)] = true;
}

void TreeReducer::advance() {
  const auto is_shipped = [this](std::size_t position) {
    return position < is_shipped_.size() && is_shipped_[index(bucket_at(position))];
  };
  while (is_shipped(finished_) && communicator_.test(receives_of(bucket_at(finished_)))) {
    const int bucket = bucket_at(finished_);
    finish_range(bucket);
    send_sum(bucket);
    if (finished_ + kWindow < is_shipped_.size()) post_receives(finished_ + kWindow);
    ++finished_;
  }
  const std::size_t owners = needed_owners_.size();
  for (; owners > 0 && is_shipped(collecting_ / owners); ++collecting_) {
    const int bucket = bucket_at(collecting_ / owners);
    const int owner = needed_owners_[collecting_ % owners];
    // The sum goes where this rank's own root lies: not before its owner has taken the root.
    if (!communicator_.test(sends_of(bucket, owner))) break;
    const ElementRange range = ranges_.range(bucket, owner);
    if (size(range) == 0) continue;
    const auto into = sum_slot().subspan(index(range.begin), index(size(range)));
    sum_receives_.push_back(
        communicator_.receive(std::as_writable_bytes(into), owner, tag_of_sum(bucket)));
  }
}

void TreeReducer::finish_range(int bucket) {
  const ElementRange range = ranges_.range(bucket, communicator_.rank());
  for (std::int64_t at = range.begin; at < range.end; at += kBlockElements)
    finish_piece(bucket, {at, at + kBlockElements});
}

const float* TreeReducer::operand(const Root& root, int bucket, std::int64_t begin) const {
  if (root.rank == communicator_.rank()) return slots_.slot(root.slot).data() + begin;
  if (slots_.sees(root.rank)) return slots_.slot_of(root.rank, root.slot) + begin;
  return root.staging.data() + staging_offset(bucket) + begin -
         ranges_.range(bucket, communicator_.rank()).begin;
}

void TreeReducer::finish_piece(int bucket, ElementRange piece) {
  for (std::size_t i = 0; i < roots_.size(); ++i)
    operands_[i] = operand(roots_[i], bucket, piece.begin);
  float* const sum = sum_slot().data() + piece.begin;
  for (std::size_t i = 0; i < finishing_.size(); ++i) {
    const Addition& addition = finishing_[i];
    // Sums on their way stay in the cache; only the last one goes to memory, over an operand that
    // nobody needs any more.
    float* const to = i + 1 == finishing_.size() ? sum : partial_[index(partial_of_[i])].data();
    add(operands_[index(addition.left)], operands_[index(addition.right)], to, kPieceElements);
    operands_[index(addition.left)] = to;
  }
  if (piece.begin < ranges_.buffer_begin())
    closing_->set_square_sum(piece.begin, block_square_sum(sum, kPieceElements));
}

void TreeReducer::send_sum(int bucket) {
  const ElementRange range = ranges_.range(bucket, communicator_.rank());
  if (size(range) == 0) return;
  const auto part = sum_slot().subspan(index(range.begin), index(size(range)));
  for (int rank : needing_ranks_)
    sum_sends_.push_back(communicator_.send(std::as_bytes(part), rank, tag_of_sum(bucket)));
}

Status TreeReducer::wait_for_sums(Time deadline) {
  for (advance(); finished_ < is_shipped_.size(); advance()) {
    SUREFOOT_TRY(communicator_.wait(receives_of(bucket_at(finished_)), deadline, kWhat));
  }
  SUREFOOT_TRY(communicator_.wait(root_receives_, deadline, kWhat));
  SUREFOOT_TRY(communicator_.wait(root_sends_, deadline, kWhat));
  advance();
  SUREFOOT_TRY(communicator_.wait(sum_receives_, deadline, kWhat));
  return communicator_.wait(sum_sends_, deadline, kWhat);
}

Result<ReducedStep> TreeReducer::finish(const ControlWord& mine, std::span<const double> losses,
                                        Time deadline) {
  SUREFOOT_CHECK(micro_batch_ == own_.end - own_.begin);
  SUREFOOT_TRY(wait_for_sums(deadline));
  return closing_->finish(mine, losses, deadline);
}

std::span<const float> TreeReducer::sum() const {
  return std::span<const float>(sum_slot()).first(index(ranges_.elements()));
}

namespace {

int slot_count(const Communicator& communicator, const ReducerOptions& options) {
  const TreeNode own =
      micro_batches_of(communicator.rank(), communicator.size(), options.micro_batches);
  return local_schedule(own.begin, own.end, options.micro_batches).slot_count;
}

}  // namespace

std::unique_ptr<Reducer> make_tree_reducer(Communicator& communicator,
                                           const ReducerOptions& options) {
  SlotMemory slots(slot_count(communicator, options), Ranges(options).padded_elements());
  return std::make_unique<TreeReducer>(communicator, options, std::move(slots));
}

Result<std::unique_ptr<Reducer>> connect_tree_reducer(Communicator& communicator,
                                                      const ReducerOptions& options,
                                                      Time deadline) {
  const int count = slot_count(communicator, options);
  if (communicator.size() == 1) return make_tree_reducer(communicator, options);
  SUREFOOT_ASSIGN(auto slots, SlotMemory::connect(communicator, options.places, count,
                                                  Ranges(options).padded_elements(), deadline));
  return std::unique_ptr<Reducer>(
      std::make_unique<TreeReducer>(communicator, options, std::move(slots)));
}

}  // namespace surefoot
