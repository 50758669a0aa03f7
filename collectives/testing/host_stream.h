// A DeviceStream without a device: the double for tests, of the reducer and of the worker. Memory
// is the process's, ranks talk through the Communicator given to it.
//
// Fault model. Work is queued and done as late as the port allows, so that a missing order() shows
// in the results:
// - Late::kExchange: computation is done at once (so it may be plain code on the caller's thread),
//   the exchange only inside wait(), on the thread that calls it. Shows what overwrites memory that
//   the exchange has still to read.
// - Late::kComputation: computation too is only queued, and done when the exchange must follow it
// or
//   when somebody looks (finish_computation). Shows an exchange that begins too early. A test
//   writes by compute().
// Not modelled: work of both queues running at the same moment, memory that only a device can
// reach, a device that fails. `memory_bytes` limits the device's memory.
//
// A Communicator's own use goes on beside it, by other tags than Options::tag, on the same thread:
// wait() must not be called while another thread uses the communicator; the rest of the port never
// touches it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "collectives/aligned_buffer.h"
#include "collectives/communicator.h"
#include "collectives/device_stream.h"

namespace surefoot::testing {

class HostStream final : public DeviceStream {
 public:
  enum class Late { kExchange, kComputation };
  struct Options {
    Late late = Late::kExchange;
    int tag = kMaxTag / 2;
    std::int64_t memory_bytes = std::int64_t{1} << 40;
  };
  HostStream(Communicator& communicator, const Options& options)
      : communicator_(communicator), options_(options) {}
  explicit HostStream(Communicator& communicator) : HostStream(communicator, Options()) {}

  Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) override;
  Result<int> prepare(const Tree& tree) override;
  void enqueue(Queue queue, const Work& work) override;
  void order(Queue first, Queue then) override;
  Status wait(Time deadline, std::string_view what) override;

  // What the model would compute, on kComputation.
  void compute(std::function<void()> work);
  // Until everything computed is done.
  Status finish_computation(Time deadline, std::string_view what);

 private:
  struct Item {
    std::variant<Work, std::function<void()>> work;
    std::int64_t after = 0;  // so much of the other queue comes before
  };
  struct State {
    std::deque<Item> items;
    std::int64_t given = 0;
    std::int64_t done = 0;
    std::int64_t after = 0;  // for the next item
  };
  [[nodiscard]] State& state(Queue queue) { return states_[static_cast<std::size_t>(queue)]; }
  void add(Queue queue, Item item);
  void compute_what_can_be();
  Status run(Queue queue, std::int64_t until, Time deadline, std::string_view what);
  Status perform(const Work& work, Time deadline, std::string_view what);
  Status exchange(const Exchange& exchange, Time deadline, std::string_view what);
  Status all_reduce(const AllReduce& work, Time deadline);
  void finish_tree(const FinishTree& work) const;

  Communicator& communicator_;
  Options options_;
  std::vector<AlignedBuffer> memory_;
  std::int64_t used_bytes_ = 0;
  std::vector<Tree> trees_;
  std::array<State, 2> states_;
  std::vector<Request> in_flight_;  // of the exchange at the front, once started
};

}  // namespace surefoot::testing
