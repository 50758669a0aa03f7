// The port to a device (a GPU): its memory, and work that it does by itself, in order, while the
// caller goes on.
//
// Two queues. kComputation is the stream on which the model's forward and backward are enqueued (by
// somebody else, too); kExchange runs beside it. Work of one queue is done in the order enqueued.
// Between the queues nothing is ordered but by order(). So the plan of a step is data, made once,
// and handed over piece by piece.
//
// Work that ranks do together (Exchange, Gather, AllReduce) must be enqueued by all ranks in the
// same order, each with its counterpart: there are no tags, and a rank's next piece may wait for
// its peer's last one.
//
// Nothing blocks but wait(), allocate() and prepare(); enqueue() and order() never wait for another
// rank. They may be called from any thread, from one at a time (autograd has a thread of its own).
// An error of enqueued work is kept and returned by the next wait().
//
// Memory belongs to the stream and lives as long as it. It must be left alone by all but the
// enqueued work until that is done.
//
// Failure: kRestart names what was waited for and, where it is known, which rank is missing (a
// library like NCCL does not know: device_reducer.h finds out). After a deadline has passed wait()
// may be called again; after any other error the gang ends. kNoSpace: the device has not the
// memory, with the numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "collectives/device_work.h"
#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // All zeros for whatever is enqueued from now on; aligned to 256 bytes. `what` is for the
  // message.
  virtual Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) = 0;
  // A name for FinishTree.
  virtual Result<int> prepare(const Tree& tree) = 0;

  virtual void enqueue(Queue queue, const Work& work) = 0;
  // What `then` is given from here on is done after all that `first` has been given so far.
  virtual void order(Queue first, Queue then) = 0;

  // Returns when all of kExchange is done, and what it was ordered after. Until `deadline` at the
  // longest.
  virtual Status wait(Time deadline, std::string_view what) = 0;
};

}  // namespace surefoot
