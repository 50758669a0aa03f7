// A double of a device in the memory of the host, so that the whole way of a job on a device runs
// on machines without one: the reducer of a device, the state in place, the snapshot behind the
// step. The model computes on the processor, so a job's bits are those of the processor.
//
// Fault model: as late and as strict as the port allows. The reduction's stream runs in its wait()
// only (host_stream.h). A snapshot is copied in pieces, with pauses, on the thread that asks for
// it, and while one is owed an update ends the process: on a device it would overwrite what is
// copied. Memory is given out apart from each other and never returned.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "collectives/aligned_buffer.h"
#include "collectives/device_stream.h"
#include "worker/device.h"

namespace surefoot::testing {

// What a GPU's kernels do, on memory of the host.
void compute_on_host(const Computation& work);

class HostDevice final : public Device {
 public:
  HostDevice();
  [[nodiscard]] const DeviceFacts& facts() const override { return facts_; }
  [[nodiscard]] Result<std::span<std::byte>> allocate(std::int64_t bytes,
                                                      std::string_view what) override;
  void pin(std::span<std::byte>) override {}
  [[nodiscard]] Result<std::unique_ptr<DeviceStream>> connect(
      Communicator& communicator, const Place& place, std::function<void(std::string)> failed,
      Time deadline) override;
  void enqueue(const Computation& work) override;
  Status wait(Time, std::string_view) override { return {}; }
  Status upload(std::span<const std::byte> from, std::byte* to, Time deadline) override;
  Status mark() override;
  Status download(const std::byte* from, std::span<std::byte> to, std::span<const ByteRange> ranges,
                  Time deadline) override;

 private:
  DeviceFacts facts_;
  std::vector<AlignedBuffer> memory_;
  std::atomic<bool> owes_snapshot_ = false;
};

}  // namespace surefoot::testing
