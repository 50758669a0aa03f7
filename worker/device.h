// An accelerator as the training loop sees it: memory of its own, computation that is enqueued and
// runs later, copies beside it. One object per rank. Without one (`Device*` is null) the model runs
// on the processor and the training state is in the arena itself.
//
// Adapters: cuda/ (an NVIDIA GPU), testing/host_device.h (a double in the memory of the host). Only
// main.cpp's open_device() picks one.
//
// One thread at a time calls everything (the rank's, or autograd's while that one waits) but
// download(), which another may call beside it. Enqueued work that fails shows in the next wait(),
// download() or upload(). Errors: kNoSpace (device memory, with the numbers), kRestart (everything
// else: what failed and why; a new process has to look again).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/reducer.h"  // Place
#include "common/clock.h"
#include "common/status.h"
#include "configs/job.pb.h"
#include "worker/device_computation.h"

namespace surefoot {

class DeviceStream;

struct DeviceFacts {
  std::string name;      // "NVIDIA H200"
  std::string numerics;  // what of it decides bits: name, multiprocessors, library versions
  bool is_cuda = true;   // false: its memory is the host's
};

// A part of the state, from the same place in the host's copy as in the device's.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const DeviceFacts& facts() const = 0;

  // Zeroed, at a multiple of 256 bytes; freed with the device. `what` is for the error.
  [[nodiscard]] virtual Result<std::span<std::byte>> allocate(std::int64_t bytes,
                                                              std::string_view what) = 0;
  // Makes copies from and to this memory of the host fast, until the device is gone. Not to be had:
  // copies are only slower, and the log says so.
  virtual void pin(std::span<std::byte> memory) = 0;
  // Brings the ranks' streams for the reduction together (device_stream.h). All ranks call it at
  // once; blocks until `deadline`. `failed` is called, at any time from any thread, when the
  // network between the devices has failed: the rank must leave. Whoever leaves on purpose
  // destroys the stream first, or the others would be told.
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceStream>> connect(
      Communicator& communicator, const Place& place, std::function<void(std::string)> failed,
      Time deadline) = 0;

  // Enqueued behind what was computed so far, and before what will be; returns at once.
  virtual void enqueue(const Computation& work) = 0;
  // Blocks until all that was enqueued for computation is done.
  virtual Status wait(Time deadline, std::string_view what) = 0;
  // Behind all that was enqueued for computation; blocks until done. `to` is device memory.
  virtual Status upload(std::span<const std::byte> from, std::byte* to, Time deadline) = 0;

  // A snapshot: mark() notes the work enqueued so far; download() then copies, beside whatever is
  // enqueued later, once the noted work is done, and blocks until the bytes are on the host.
  // Nothing enqueued in between may write what is copied. An error of mark(): some of that work was
  // refused, so this would not be what it is taken for.
  virtual Status mark() = 0;
  virtual Status download(const std::byte* from, std::span<std::byte> to,
                          std::span<const ByteRange> ranges, Time deadline) = 0;
};

// The device of `local_rank`; null where resources.device is cpu. Called once, before anything else
// of the process uses a GPU: it sets environment variables that libraries read once. kInvalid: this
// machine or this build has none, or not the one that resources.devices names.
[[nodiscard]] Result<std::unique_ptr<Device>> open_device(const config::Job& job, int local_rank,
                                                          int local_size);

}  // namespace surefoot
