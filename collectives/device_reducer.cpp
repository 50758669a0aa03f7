#include "collectives/device_reducer.h"

#include <algorithm>
#include <array>

#include "collectives/closing_exchange.h"
#include "collectives/collectives.h"
#include "collectives/missing_ranks.h"
#include "collectives/ranges.h"
#include "collectives/reduction_tree.h"

namespace surefoot {
namespace {

enum class Method { kTree, kFast };

constexpr std::string_view kWhat = "the gradients of the step";
constexpr int kClosingTag = 0;
constexpr int kArrivalTag = 1;

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

std::int64_t size(ElementRange range) {
  return range.end - range.begin;
}

ElementRange overlap(ElementRange a, ElementRange b) {
  const ElementRange both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : ElementRange{a.begin, a.begin};
}

// Every micro-batch is added to the first.
LocalSchedule in_order(int micro_batches) {
  LocalSchedule schedule;
  for (int i = 0; i < micro_batches; ++i) {
    schedule.slots.push_back(std::min(i, 1));
    schedule.additions.push_back(i == 0 ? std::vector<Addition>{} : std::vector{Addition{0, 1}});
  }
  schedule.root_slots = {0};
  schedule.slot_count = std::min(micro_batches, 2);
  return schedule;
}

// The gradient or the buffers, which travel differently.
struct Section {
  ElementRange elements;
  NumberFormat wire = NumberFormat::kFp32;      // as it travels
  NumberFormat rounding = NumberFormat::kFp32;  // at the nodes of the tree
  std::int64_t largest_part = 0;                // of a bucket, in elements
  std::int64_t largest_own_range = 0;           // of a bucket, in elements
  std::byte* roots_of_others = nullptr;         // [root of another rank][largest_own_range]
  kernel::Bf16* packed = nullptr;               // [own root][largest_part], where `wire` is bf16
  int tree = -1;                                // as the stream named it
};

class DeviceReducer final : public Reducer {
 public:
  DeviceReducer(Communicator& communicator, DeviceStream& stream, const ReducerOptions& options,
                Method method)
      : communicator_(communicator),
        stream_(stream),
        method_(method),
        micro_batches_(options.micro_batches),
        ranges_(options),
        own_(micro_batches_of(communicator.rank(), communicator.size(), options.micro_batches)),
        schedule_(method == Method::kFast
                      ? in_order(own_.end - own_.begin)
                      : local_schedule(own_.begin, own_.end, options.micro_batches)),
        closing_(communicator, ranges_, options.micro_batches, kClosingTag) {
    SUREFOOT_CHECK(ranges_.ranks() == communicator.size());
    if (ranges_.elements() > 0) share_.push_back({0, ranges_.elements()});
    clean_.assign(index(schedule_.slot_count), true);
    missing_.resize(index(ranges_.bucket_count()));
    plan_sections(options.communicate_in);
  }

  // Takes the memory, and plans the step.
  Status prepare() {
    SUREFOOT_TRY(allocate());
    SUREFOOT_TRY(prepare_trees());
    for (const auto& additions : schedule_.additions)
      local_works_.push_back(plan_additions(additions, {0, ranges_.padded_elements()}));
    std::int64_t square_sums = 0;
    for (std::size_t i = 0; i < missing_.size(); ++i)
      bucket_works_.push_back(plan_bucket(bucket_at(i), square_sums));
    SUREFOOT_CHECK(square_sums == ranges_.gradient_blocks(me()));
    copy_square_sums_ = CopyToHost{device_square_sums_, host_square_sums_,
                                   square_sums * static_cast<std::int64_t>(sizeof(double))};
    return {};
  }

  [[nodiscard]] const std::vector<ElementRange>& share() const override { return share_; }
  [[nodiscard]] int gradient_buffers() const override { return schedule_.slot_count; }
  [[nodiscard]] std::int64_t buffer_begin() const override { return ranges_.buffer_begin(); }

  void begin_step() override;
  std::span<float> begin_micro_batch() override;
  void ready(ElementRange elements) override;
  void end_micro_batch() override;
  Result<ReducedStep> finish(const ControlWord& mine, std::span<const double> losses,
                             Time deadline) override;
  [[nodiscard]] std::span<const float> sum() const override {
    return {sum_slot(), index(ranges_.elements())};
  }

 private:
  [[nodiscard]] int me() const { return communicator_.rank(); }
  [[nodiscard]] int ranks() const { return ranges_.ranks(); }
  [[nodiscard]] float* sum_slot() const { return slots_[index(schedule_.root_slots.front())]; }
  // Buckets in the order in which all ranks exchange them.
  [[nodiscard]] int bucket_at(std::size_t position) const {
    return ranges_.bucket_count() - 1 - static_cast<int>(position);
  }
  [[nodiscard]] ElementRange part(int bucket, int owner, const Section& section) const {
    return overlap(ranges_.range(bucket, owner), section.elements);
  }
  [[nodiscard]] int roots_of(int rank) const;
  [[nodiscard]] bool in_last_micro_batch() const {
    return micro_batch_ == own_.end - own_.begin - 1;
  }

  void plan_sections(NumberFormat communicate_in);
  Status allocate();
  Status prepare_trees();
  [[nodiscard]] std::vector<Work> plan_additions(const std::vector<Addition>& additions,
                                                 ElementRange elements) const;
  [[nodiscard]] std::vector<Work> plan_bucket(int bucket, std::int64_t& square_sums);
  void plan_exchange(int bucket, std::vector<Work>& works) const;
  void plan_finish(int bucket, std::int64_t& square_sums, std::vector<Work>& works);
  void plan_gather(int bucket, std::vector<Work>& works) const;
  void plan_all_reduce(int bucket, std::vector<Work>& works) const;
  void enqueue_whose_turn_it_is();
  [[nodiscard]] Error naming_who_has_not_come(const Error& error, Time deadline);

  Communicator& communicator_;
  DeviceStream& stream_;
  const Method method_;
  const int micro_batches_;  // of all ranks
  const Ranges ranges_;
  const TreeNode own_;
  const LocalSchedule schedule_;
  std::vector<ElementRange> share_;
  ClosingExchange closing_;

  std::array<Section, 2> sections_;  // the gradient, the buffers
  std::vector<float*> slots_;
  double* device_square_sums_ = nullptr;  // of the own blocks of the gradient
  double* host_square_sums_ = nullptr;
  std::vector<std::int64_t> own_blocks_;         // by square sum: the block's first element
  std::vector<std::vector<Work>> local_works_;   // by own micro-batch, for the whole vector
  std::vector<std::vector<Work>> bucket_works_;  // in the order of bucket_at
  Work copy_square_sums_;

  // The step in hand.
  int micro_batch_ = 0;                // index among the own ones
  std::vector<bool> clean_;            // by slot: all zeros once computation gets there
  std::vector<std::int64_t> missing_;  // by bucket: elements not ready
  std::size_t enqueued_ = 0;           // so many buckets, from the last one on
  std::vector<Request> arrivals_;      // that the others have come to finish()
  std::vector<Request> told_;
};

int DeviceReducer::roots_of(int rank) const {
  const TreeNode theirs = micro_batches_of(rank, ranks(), micro_batches_);
  return static_cast<int>(subtree_roots(theirs.begin, theirs.end, micro_batches_).size());
}

void DeviceReducer::plan_sections(NumberFormat communicate_in) {
  sections_[0].elements = {0, ranges_.buffer_begin()};
  sections_[0].wire = communicate_in;
  if (method_ == Method::kTree) sections_[0].rounding = communicate_in;
  sections_[1].elements = {ranges_.buffer_begin(), ranges_.padded_elements()};
  for (Section& section : sections_) {
    for (int bucket = 0; bucket < ranges_.bucket_count(); ++bucket) {
      section.largest_part =
          std::max(section.largest_part, size(overlap(ranges_.bucket(bucket), section.elements)));
      section.largest_own_range =
          std::max(section.largest_own_range, size(part(bucket, me(), section)));
    }
  }
}

Status DeviceReducer::allocate() {
  const auto take = [this](MemoryOf memory, std::int64_t bytes, auto& pointer,
                           std::string_view what) -> Status {
    if (bytes == 0) return {};
    SUREFOOT_ASSIGN(void* const taken, stream_.allocate(memory, bytes, what));
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(taken);
    return {};
  };
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  slots_.resize(index(schedule_.slot_count));
  for (float*& slot : slots_) {
    SUREFOOT_TRY(
        take(MemoryOf::kDevice, ranges_.padded_elements() * kFloat, slot, "a gradient buffer"));
  }
  std::int64_t roots_of_others = 0;
  for (int rank = 0; rank < ranks(); ++rank) roots_of_others += rank != me() ? roots_of(rank) : 0;
  for (Section& section : sections_) {
    const std::int64_t own_roots =
        method_ == Method::kFast ? 1 : static_cast<std::int64_t>(schedule_.root_slots.size());
    if (method_ == Method::kTree) {
      SUREFOOT_TRY(take(MemoryOf::kDevice,
                        roots_of_others * section.largest_own_range * bytes_of(section.wire),
                        section.roots_of_others, "staging for the sums of other ranks"));
    }
    if (section.wire == NumberFormat::kBf16 && ranks() > 1) {
      SUREFOOT_TRY(take(MemoryOf::kDevice,
                        own_roots * section.largest_part * bytes_of(section.wire), section.packed,
                        "gradients as they are sent"));
    }
  }
  const std::int64_t square_sum_bytes =
      ranges_.gradient_blocks(me()) * static_cast<std::int64_t>(sizeof(double));
  SUREFOOT_TRY(
      take(MemoryOf::kDevice, square_sum_bytes, device_square_sums_, "the gradient's norm"));
  return take(MemoryOf::kHost, square_sum_bytes, host_square_sums_, "the gradient's norm");
}

Status DeviceReducer::prepare_trees() {
  for (Section& section : sections_) {
    Tree tree;
    tree.format = section.rounding;
    if (method_ == Method::kFast) {
      tree.roots.push_back({sum_slot(), NumberFormat::kFp32, true});
      tree.additions_after = {0};
    } else {
      StackSchedule schedule = stack_schedule(ranks(), micro_batches_);
      tree.additions_after = std::move(schedule.additions_after);
      tree.depth = schedule.depth;
      const std::byte* staging = section.roots_of_others;
      for (int rank = 0; rank < ranks(); ++rank) {
        if (rank == me()) {
          for (int slot : schedule_.root_slots)
            tree.roots.push_back({slots_[index(slot)], NumberFormat::kFp32, true});
          continue;
        }
        for (int i = 0; i < roots_of(rank); ++i) {
          tree.roots.push_back({staging, section.wire, false});
          if (staging != nullptr) staging += section.largest_own_range * bytes_of(section.wire);
        }
      }
    }
    SUREFOOT_ASSIGN(section.tree, stream_.prepare(tree));
  }
  return {};
}

// Each addition goes on with the sum of the one before: a chain from the last slot leftwards.
std::vector<Work> DeviceReducer::plan_additions(const std::vector<Addition>& additions,
                                                ElementRange elements) const {
  std::vector<Work> works;
  if (additions.empty()) return works;
  for (std::size_t i = 0; i < additions.size(); ++i) {
    SUREFOOT_CHECK(additions[i].left == additions[i].right - 1);
    SUREFOOT_CHECK(i == 0 || additions[i].right == additions[i - 1].left);
  }
  for (const Section& section : sections_) {
    const ElementRange here = overlap(elements, section.elements);
    if (size(here) == 0) continue;
    AddUp sum;
    for (int slot = additions.back().left; slot <= additions.front().right; ++slot)
      sum.slots.push_back(slots_[index(slot)] + here.begin);
    sum.elements = size(here);
    sum.format = section.rounding;
    works.emplace_back(std::move(sum));
  }
  return works;
}

std::vector<Work> DeviceReducer::plan_bucket(int bucket, std::int64_t& square_sums) {
  std::vector<Work> works = plan_additions(schedule_.additions.back(), ranges_.bucket(bucket));
  const bool exchanges = ranks() > 1;
  if (exchanges && method_ == Method::kFast) plan_all_reduce(bucket, works);
  if (exchanges && method_ == Method::kTree) plan_exchange(bucket, works);
  plan_finish(bucket, square_sums, works);
  if (exchanges && method_ == Method::kTree) plan_gather(bucket, works);
  return works;
}

void DeviceReducer::plan_exchange(int bucket, std::vector<Work>& works) const {
  Exchange exchange;
  for (const Section& section : sections_) {
    const ElementRange whole = overlap(ranges_.bucket(bucket), section.elements);
    const std::int64_t bytes_each = bytes_of(section.wire);
    std::int64_t own_root = 0;
    for (int slot : schedule_.root_slots) {
      float* const values = slots_[index(slot)];
      const bool packs = section.packed != nullptr && size(whole) > 0;
      kernel::Bf16* const packed =
          packs ? section.packed + own_root++ * section.largest_part : nullptr;
      if (packs) works.emplace_back(Pack{values + whole.begin, packed, size(whole)});
      for (int step = 1; step < ranks(); ++step) {
        // Each rank starts with its neighbour, so that not all send to rank 0 first.
        const int owner = (me() + step) % ranks();
        const ElementRange theirs = part(bucket, owner, section);
        if (size(theirs) == 0) continue;
        void* const from = packs ? static_cast<void*>(packed + (theirs.begin - whole.begin))
                                 : static_cast<void*>(values + theirs.begin);
        exchange.sends.push_back({owner, from, size(theirs) * bytes_each});
      }
    }
    const ElementRange own = part(bucket, me(), section);
    std::byte* staging = section.roots_of_others;
    for (int rank = 0; rank < ranks() && size(own) > 0; ++rank) {
      if (rank == me()) continue;
      for (int i = 0; i < roots_of(rank); ++i) {
        exchange.receives.push_back({rank, staging, size(own) * bytes_each});
        staging += section.largest_own_range * bytes_each;
      }
    }
  }
  works.emplace_back(std::move(exchange));
}

void DeviceReducer::plan_finish(int bucket, std::int64_t& square_sums, std::vector<Work>& works) {
  for (const Section& section : sections_) {
    const ElementRange own = part(bucket, me(), section);
    const bool is_gradient = &section == sections_.data();
    // After an all-reduce only the norm is missing.
    if (size(own) == 0 || (method_ == Method::kFast && !is_gradient)) continue;
    FinishTree finish{.tree = section.tree, .begin = own.begin, .end = own.end};
    finish.to = sum_slot() + own.begin;
    if (method_ == Method::kTree && section.wire == NumberFormat::kBf16 && ranks() > 1) {
      // Where it is gathered; the staging of the own first root has been sent.
      const ElementRange whole = overlap(ranges_.bucket(bucket), section.elements);
      finish.to = section.packed + (own.begin - whole.begin);
      finish.to_format = NumberFormat::kBf16;
    }
    if (is_gradient) {
      finish.square_sums = device_square_sums_ + square_sums;
      square_sums += size(own) / kBlockElements;
      for (std::int64_t block = own.begin; block < own.end; block += kBlockElements)
        own_blocks_.push_back(block);
    }
    works.emplace_back(finish);
  }
}

void DeviceReducer::plan_gather(int bucket, std::vector<Work>& works) const {
  for (const Section& section : sections_) {
    const ElementRange whole = overlap(ranges_.bucket(bucket), section.elements);
    if (size(whole) == 0) continue;
    const bool is_packed = section.wire == NumberFormat::kBf16;
    Gather gather;
    for (int owner = 0; owner < ranks(); ++owner) {
      const ElementRange theirs = part(bucket, owner, section);
      void* const memory = is_packed
                               ? static_cast<void*>(section.packed + (theirs.begin - whole.begin))
                               : static_cast<void*>(sum_slot() + theirs.begin);
      gather.parts.push_back(
          {size(theirs) == 0 ? nullptr : memory, size(theirs) * bytes_of(section.wire)});
    }
    works.emplace_back(std::move(gather));
    if (is_packed)
      works.emplace_back(Unpack{section.packed, sum_slot() + whole.begin, size(whole)});
  }
}

void DeviceReducer::plan_all_reduce(int bucket, std::vector<Work>& works) const {
  for (const Section& section : sections_) {
    const ElementRange whole = overlap(ranges_.bucket(bucket), section.elements);
    if (size(whole) == 0) continue;
    float* const values = sum_slot() + whole.begin;
    if (section.wire == NumberFormat::kFp32) {
      works.emplace_back(AllReduce{values, size(whole), section.wire});
      continue;
    }
    works.emplace_back(Pack{values, section.packed, size(whole)});
    works.emplace_back(AllReduce{section.packed, size(whole), section.wire});
    works.emplace_back(Unpack{section.packed, values, size(whole)});
  }
}

void DeviceReducer::begin_step() {
  micro_batch_ = 0;
  enqueued_ = 0;
  arrivals_.clear();
  told_.clear();
  closing_.begin_step();
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != me()) arrivals_.push_back(communicator_.receive({}, rank, kArrivalTag));
  }
  for (std::size_t i = 0; i < missing_.size(); ++i)
    missing_[i] = ranges_.real_elements(ranges_.bucket(static_cast<int>(i)));
}

std::span<float> DeviceReducer::begin_micro_batch() {
  SUREFOOT_CHECK(micro_batch_ < own_.end - own_.begin);
  const std::size_t slot = index(schedule_.slots[index(micro_batch_)]);
  if (!clean_[slot])
    stream_.enqueue(Queue::kComputation, Clear{slots_[slot], ranges_.padded_elements()});
  clean_[slot] = false;
  return {slots_[slot], index(ranges_.elements())};
}

void DeviceReducer::ready(ElementRange elements) {
  if (!in_last_micro_batch()) return;
  elements.end = std::min(elements.end, ranges_.elements());
  while (elements.begin < elements.end) {
    const int bucket = ranges_.bucket_of(elements.begin);
    const ElementRange here{elements.begin, std::min(elements.end, ranges_.bucket(bucket).end)};
    std::int64_t& missing = missing_[index(bucket)];
    const std::int64_t real = ranges_.real_elements(here);
    SUREFOOT_CHECK(real <= missing);
    missing -= real;
    elements.begin = here.end;
  }
  enqueue_whose_turn_it_is();
}

void DeviceReducer::enqueue_whose_turn_it_is() {
  const auto is_next = [this] {
    return enqueued_ < missing_.size() && missing_[index(bucket_at(enqueued_))] == 0;
  };
  if (!is_next()) return;
  stream_.order(Queue::kComputation, Queue::kExchange);
  for (; is_next(); ++enqueued_) {
    for (const Work& work : bucket_works_[enqueued_]) stream_.enqueue(Queue::kExchange, work);
  }
}

void DeviceReducer::end_micro_batch() {
  if (in_last_micro_batch()) {
    std::fill(missing_.begin(), missing_.end(), 0);
    enqueue_whose_turn_it_is();
    if (!own_blocks_.empty()) stream_.enqueue(Queue::kExchange, copy_square_sums_);
  } else {
    for (const Work& work : local_works_[index(micro_batch_)])
      stream_.enqueue(Queue::kComputation, work);
  }
  for (const Addition& addition : schedule_.additions[index(micro_batch_)])
    clean_[index(addition.right)] = true;
  ++micro_batch_;
}

Result<ReducedStep> DeviceReducer::finish(const ControlWord& mine, std::span<const double> losses,
                                          Time deadline) {
  SUREFOOT_CHECK(micro_batch_ == own_.end - own_.begin && enqueued_ == missing_.size());
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != me()) told_.push_back(communicator_.send({}, rank, kArrivalTag));
  }
  if (const Status done = stream_.wait(deadline, kWhat); !done)
    return naming_who_has_not_come(done.error(), deadline);
  for (std::size_t i = 0; i < own_blocks_.size(); ++i)
    closing_.set_square_sum(own_blocks_[i], host_square_sums_[i]);
  SUREFOOT_ASSIGN(ReducedStep step, closing_.finish(mine, losses, deadline));
  // Each of them was sent before a closing message that is here.
  SUREFOOT_TRY(communicator_.wait(arrivals_, deadline, kWhat));
  SUREFOOT_TRY(communicator_.wait(told_, deadline, kWhat));
  return step;
}

Error DeviceReducer::naming_who_has_not_come(const Error& error, Time deadline) {
  if (now() < deadline) return error;
  std::vector<int> missing;
  for (const Request& arrival : arrivals_) {
    if (!communicator_.test({&arrival, 1})) missing.push_back(arrival.peer);
  }
  return missing.empty() ? error : deadline_error(missing, kWhat);
}

Result<std::unique_ptr<Reducer>> make(Communicator& communicator, DeviceStream& stream,
                                      const ReducerOptions& options, Method method, Time deadline) {
  auto reducer = std::make_unique<DeviceReducer>(communicator, stream, options, method);
  SUREFOOT_TRY(agree(communicator, reducer->prepare(), deadline, "the memory for gradients"));
  return std::unique_ptr<Reducer>(std::move(reducer));
}

}  // namespace

Result<std::unique_ptr<Reducer>> make_device_reducer(Communicator& communicator,
                                                     DeviceStream& stream,
                                                     const ReducerOptions& options, Time deadline) {
  return make(communicator, stream, options, Method::kTree, deadline);
}

Result<std::unique_ptr<Reducer>> make_fast_device_reducer(Communicator& communicator,
                                                          DeviceStream& stream,
                                                          const ReducerOptions& options,
                                                          Time deadline) {
  return make(communicator, stream, options, Method::kFast, deadline);
}

}  // namespace surefoot
