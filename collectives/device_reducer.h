// The reduction of reducer.h on a device: the spans it hands out are device memory, and what moves
// them is a DeviceStream (NCCL, or a double). The same bits as the host's reducers, by the same
// tree.
//
// Every rank holds the whole state on its device, so share() is the whole vector. A bucket is, in
// the order of the stream: added up (the additions that the last micro-batch completes), exchanged
// (each root's part in a range to the range's owner), finished (the tree over all roots in the own
// range; sum; sums of squares per block), gathered (each owner's sum to all). All of it is enqueued
// by ready() and end_micro_batch() and done beside backward; finish() waits.
//
// Ranks must enqueue the same exchanges in the same order: buckets go from the last to the first,
// and one that is ready before its turn waits for it. Since the stream keeps this order, staging
// for one bucket is enough.
//
// Bytes sent by a rank and step, N = elements of the vector times 4, or times 2 with communicate_in
// bf16 (buffers: 4): (P-1)/P N for each root it sends, and (P-1)/P N for the gather.
//
// Memory of the device: gradient_buffers() vectors; for each root of another rank a range of one
// bucket; with bf16 one bucket for each own root. An addition in fp32 needs no more. Buckets should
// be larger than on a host: a kernel and a group of messages each cost some ten microseconds.
//
// Control word, losses and sums of squares go over the Communicator, by the host, in finish().
//
// Ordering against the model's computation: begin_micro_batch() and the additions between
// micro-batches are enqueued on the computation's queue. What is given to ready() must have been
// enqueued there before. After finish() everything that reads the sums must be enqueued there, too,
// before the next begin_step(): nothing overwrites them from elsewhere.
//
// Threads: one at a time. ready() may be called from another thread than the rest while that one
// waits (autograd's): it does not touch the communicator.
//
// Failure: an error of the stream is returned by finish(). When the deadline has passed, the ranks
// that have not come to finish() are named: each sends the others an empty message when it does.
#pragma once

#include <memory>

#include "collectives/communicator.h"
#include "collectives/device_stream.h"
#include "collectives/reducer.h"

namespace surefoot {

// All ranks must call it together; blocks until `deadline`. kNoSpace, on all ranks, when the device
// of one has not the memory. Communicator and stream must outlive the reducer.
[[nodiscard]] Result<std::unique_ptr<Reducer>> make_device_reducer(Communicator& communicator,
                                                                   DeviceStream& stream,
                                                                   const ReducerOptions& options,
                                                                   Time deadline);
// For `reduction: fast`: micro-batches are added in order, ranks by the library's all-reduce. Only
// what goes over the wire is rounded to communicate_in. Two vectors, and with bf16 half a bucket.
[[nodiscard]] Result<std::unique_ptr<Reducer>> make_fast_device_reducer(
    Communicator& communicator, DeviceStream& stream, const ReducerOptions& options, Time deadline);

}  // namespace surefoot
