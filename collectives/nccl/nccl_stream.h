// A GPU and NCCL as a DeviceStream. This folder alone includes nccl.h; it knows CUDA's runtime and
// no libtorch.
//
// open() makes a stream of its own for kExchange; kComputation is the caller's. The ranks' NCCL
// communicator is made with blocking = 0, from an id that rank 0 makes and the Communicator
// carries; open() also does one exchange of every kind, so that all connections and kernels are
// there before the first step: later calls do not wait for a peer.
//
// What NCCL promises of order and bits is not needed: messages, gathers and broadcasts only move
// bytes. Only AllReduce (`reduction: fast`) adds, in NCCL's own order.
//
// Failure. NCCL calls that return ncclInProgress are followed up until `call_timeout`. Errors of
// CUDA and NCCL become kRestart and name the call; NCCL's come with its own words
// (ncclGetLastError). Out of memory is kNoSpace, with how much is free. A watch (nccl_watch.h)
// looks for a dead peer and for calls that hang, also while the rank's thread computes, and then
// calls `on_failure`. Neither says which rank it was: device_reducer.h does. Nothing is aborted:
// after an error the process must end by _exit (CUDA's and NCCL's own exit handlers can hang).
//
// Threads: as the port says; each call makes `device` the thread's current one. on_failure is
// called on the watch's thread, at most once, and maybe before open() has returned.
//
// Several ranks on one GPU: NCCL refuses two ranks of a host on one device, so each must say that
// it is a host of its own (nccl_host_id.h), before open(). They talk over sockets then.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "collectives/communicator.h"
#include "collectives/device_stream.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace surefoot {

struct NcclOptions {
  int device = 0;
  CUstream_st* computation = nullptr;  // null: CUDA's default stream, which is libtorch's, too
  std::function<void(std::string reason)> on_failure;
  Duration call_timeout = std::chrono::seconds(60);
  Duration watch_interval = std::chrono::milliseconds(100);
  // close() that does not return in time ends the process with it: the worker's "restart asked
  // for".
  int exit_code_when_stuck = 76;
};

class NcclStream final : public DeviceStream {
 public:
  // All ranks call it together; blocks until `deadline`, and a call of CUDA that hangs ends the
  // process then. An error on one rank is an error on all, as far as the communicator carries it.
  [[nodiscard]] static Result<std::unique_ptr<NcclStream>> open(Communicator& communicator,
                                                                const NcclOptions& options,
                                                                Time deadline);
  // Ends the watch, frees nothing of CUDA's or NCCL's: that could block. Without close() before it
  // the process is about to end.
  ~NcclStream() override;

  // All ranks call it when they leave on purpose: waits for the device, then gives everything back.
  Status close(Time deadline);

  Result<void*> allocate(MemoryOf memory, std::int64_t bytes, std::string_view what) override;
  Result<int> prepare(const Tree& tree) override;
  void enqueue(Queue queue, const Work& work) override;
  void order(Queue first, Queue then) override;
  Status wait(Time deadline, std::string_view what) override;

 private:
  class Implementation;
  explicit NcclStream(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace surefoot
