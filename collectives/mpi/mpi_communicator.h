// Ranks as the processes of an mpirun. Owns MPI in this process: open() initialises it, close()
// finalises it, nothing else may.
//
// Everything underneath is non-blocking. A wait polls: it spins for some microseconds, then yields
// the core, then sleeps in short naps, since with more ranks and services than cores a spinning
// rank keeps the one it waits for from running.
//
// MPI cannot say that a peer is dead (Open MPI notices neither a stopped process nor a cut link),
// so a lost peer shows as a passed deadline that names it, or mpirun ends this process. The two
// calls that cannot be made non-blocking, MPI_Init_thread and MPI_Finalize, run under a watchdog
// thread: when the deadline passes it writes a line to standard error and ends the process with
// exit_code_when_stuck, without destructors. It makes no MPI call and shares no lock.
//
// One thread, the one that called open (MPI_THREAD_FUNNELED).
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/communicator.h"

namespace surefoot {

struct MpiOptions {
  // Longer messages go in several; MPI counts in int. A test sets it low.
  std::int64_t max_message_bytes = std::int64_t{1} << 30;
  // The worker's "restart asked for".
  int exit_code_when_stuck = 76;
};

class MpiCommunicator final : public Communicator {
 public:
  // At most once in a process. kRestart when MPI refuses.
  [[nodiscard]] static Result<std::unique_ptr<MpiCommunicator>> open(
      Time deadline, const MpiOptions& options = {});
  // Frees memory only. Without close() before it mpirun sees an abnormal exit, which is what an
  // attempt that failed wants.
  ~MpiCommunicator() override;

  // All ranks call it when they leave on purpose: waits until all have come, names those that have
  // not, then finalises MPI. After an error the process must exit without it.
  Status close(Time deadline);

  [[nodiscard]] int rank() const override;
  [[nodiscard]] int size() const override;
  Request send(std::span<const std::byte> bytes, int to, int tag) override;
  Request receive(std::span<std::byte> bytes, int from, int tag) override;
  bool test(std::span<const Request> requests) override;
  Status wait(std::span<const Request> requests, Time deadline, std::string_view what) override;
  Status all_reduce_sum(std::span<float> values, Time deadline) override;

 private:
  class Implementation;
  explicit MpiCommunicator(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace surefoot
