#include "collectives/testing/host_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace surefoot::testing {
namespace {

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

struct ArrayStack {
  std::array<float, Tree::kMaxDepth> values;
  void put(int depth, float value) { values[static_cast<std::size_t>(depth)] = value; }
  [[nodiscard]] float get(int depth) const { return values[static_cast<std::size_t>(depth)]; }
};

Queue other(Queue queue) {
  return queue == Queue::kExchange ? Queue::kComputation : Queue::kExchange;
}

std::span<std::byte> span_of(const Message& message) {
  return {static_cast<std::byte*>(message.memory), static_cast<std::size_t>(message.bytes)};
}

// A gather as the messages it is made of.
Exchange messages_of(const Gather& gather, int rank) {
  Exchange exchange;
  for (std::size_t i = 0; i < gather.parts.size(); ++i) {
    const auto peer = static_cast<int>(i);
    const Gather::Part& theirs = gather.parts[i];
    const Gather::Part& own = gather.parts[static_cast<std::size_t>(rank)];
    if (peer == rank) continue;
    if (own.bytes > 0) exchange.sends.push_back({peer, own.memory, own.bytes});
    if (theirs.bytes > 0) exchange.receives.push_back({peer, theirs.memory, theirs.bytes});
  }
  return exchange;
}

bool is_for_both(const Work& work) {
  return std::holds_alternative<Clear>(work) || std::holds_alternative<AddUp>(work);
}

}  // namespace

Result<void*> HostStream::allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) {
  const std::int64_t free = options_.memory_bytes - used_bytes_;
  if (memory == MemoryOf::kDevice && bytes > free)
    return error(Code::kNoSpace, "{} needs {} bytes of the device's memory, {} of {} are free",
                 what, bytes, free, options_.memory_bytes);
  if (memory == MemoryOf::kDevice) used_bytes_ += bytes;
  return memory_.emplace_back((bytes + 3) / 4).data();
}

Result<int> HostStream::prepare(const Tree& tree) {
  SUREFOOT_CHECK(tree.depth <= Tree::kMaxDepth && tree.roots.size() == tree.additions_after.size());
  trees_.push_back(tree);
  return static_cast<int>(trees_.size()) - 1;
}

void HostStream::add(Queue queue, Item item) {
  State& own = state(queue);
  item.after = own.after;
  own.items.push_back(std::move(item));
  ++own.given;
  if (queue == Queue::kComputation) compute_what_can_be();
}

void HostStream::enqueue(Queue queue, const Work& work) {
  SUREFOOT_CHECK(queue == Queue::kExchange || is_for_both(work));
  add(queue, {work});
}

void HostStream::compute(std::function<void()> work) {
  add(Queue::kComputation, {std::move(work)});
}

void HostStream::order(Queue first, Queue then) {
  state(then).after = state(first).given;
}

void HostStream::compute_what_can_be() {
  if (options_.late == Late::kComputation) return;
  State& computation = state(Queue::kComputation);
  while (!computation.items.empty() &&
         computation.items.front().after <= state(Queue::kExchange).done) {
    // No exchange comes before it, so nothing is waited for.
    SUREFOOT_CHECK(run(Queue::kComputation, computation.done + 1, now(), "").has_value());
  }
}

Status HostStream::wait(Time deadline, std::string_view what) {
  SUREFOOT_TRY(run(Queue::kExchange, state(Queue::kExchange).given, deadline, what));
  compute_what_can_be();
  return {};
}

Status HostStream::finish_computation(Time deadline, std::string_view what) {
  return run(Queue::kComputation, state(Queue::kComputation).given, deadline, what);
}

// Each queue only as far as asked for, and the other only as far as that needs.
Status HostStream::run(Queue queue, std::int64_t until, Time deadline, std::string_view what) {
  State& own = state(queue);
  while (own.done < until) {
    const Item& item = own.items.front();
    SUREFOOT_TRY(run(other(queue), item.after, deadline, what));
    if (const auto* work = std::get_if<Work>(&item.work)) {
      SUREFOOT_TRY(perform(*work, deadline, what));
    } else {
      std::get<std::function<void()>>(item.work)();
    }
    own.items.pop_front();
    ++own.done;
  }
  return {};
}

Status HostStream::perform(const Work& work, Time deadline, std::string_view what) {
  Status status;
  std::visit(Overloaded{
                 [](const Clear& clear) { std::fill_n(clear.values, clear.elements, 0.0F); },
                 [](const AddUp& sum) {
                   SUREFOOT_CHECK(2 <= sum.slots.size() && sum.slots.size() <= AddUp::kMaxSlots);
                   for (std::int64_t i = 0; i < sum.elements; ++i)
                     kernel::add_up(sum.slots.data(), static_cast<int>(sum.slots.size()), i,
                                    sum.format);
                 },
                 [](const Pack& pack) {
                   std::transform(pack.from, pack.from + pack.elements, pack.to, kernel::to_bf16);
                 },
                 [](const Unpack& unpack) {
                   std::transform(unpack.from, unpack.from + unpack.elements, unpack.to,
                                  kernel::from_bf16);
                 },
                 [this](const FinishTree& finish) { finish_tree(finish); },
                 [](const CopyToHost& copy) {
                   std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
                 },
                 [&](const Exchange& messages) { status = exchange(messages, deadline, what); },
                 [&](const Gather& gather) {
                   status = exchange(messages_of(gather, communicator_.rank()), deadline, what);
                 },
                 [&](const AllReduce& sum) { status = all_reduce(sum, deadline); },
             },
             work);
  return status;
}

Status HostStream::exchange(const Exchange& exchange, Time deadline, std::string_view what) {
  // After a deadline has passed the same messages are waited for again.
  if (in_flight_.empty()) {
    for (const Message& message : exchange.receives)
      in_flight_.push_back(communicator_.receive(span_of(message), message.peer, options_.tag));
    for (const Message& message : exchange.sends)
      in_flight_.push_back(communicator_.send(span_of(message), message.peer, options_.tag));
  }
  SUREFOOT_TRY(communicator_.wait(in_flight_, deadline, what));
  in_flight_.clear();
  return {};
}

Status HostStream::all_reduce(const AllReduce& work, Time deadline) {
  const auto count = static_cast<std::size_t>(work.elements);
  if (work.format == NumberFormat::kFp32) {
    return communicator_.all_reduce_sum({static_cast<float*>(work.values), count}, deadline);
  }
  auto* const packed = static_cast<kernel::Bf16*>(work.values);
  std::vector<float> wide(count);
  std::transform(packed, packed + count, wide.begin(), kernel::from_bf16);
  SUREFOOT_TRY(communicator_.all_reduce_sum(wide, deadline));
  std::transform(wide.begin(), wide.end(), packed, kernel::to_bf16);
  return {};
}

void HostStream::finish_tree(const FinishTree& work) const {
  const Tree& tree = trees_[static_cast<std::size_t>(work.tree)];
  ArrayStack stack;
  for (std::int64_t block = work.begin; block < work.end; block += kBlockElements) {
    std::array<float, kBlockElements> sums;
    for (std::int64_t i = 0; i < kBlockElements; ++i) {
      const float sum = kernel::finish(tree.roots.data(), tree.additions_after.data(),
                                       static_cast<int>(tree.roots.size()), block + i, work.begin,
                                       tree.format, stack);
      sums[static_cast<std::size_t>(i)] = sum;
      const std::int64_t at = block - work.begin + i;
      if (work.to_format == NumberFormat::kBf16) {
        static_cast<kernel::Bf16*>(work.to)[at] = kernel::to_bf16(sum);
      } else {
        static_cast<float*>(work.to)[at] = sum;
      }
    }
    if (work.square_sums == nullptr) continue;
    std::array<double, kLanes> lanes;
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] = kernel::lane_square_sum(sums.data(), lane);
    work.square_sums[(block - work.begin) / kBlockElements] = kernel::sum_of_lanes(lanes.data());
  }
}

}  // namespace surefoot::testing
