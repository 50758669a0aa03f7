// What the GPUs of this machine's workers do, for the service's answers: a program of its own looks
// at them every two seconds, `surefoot-node --sample-gpus DEVICE,...`, since calls of NVML may hang
// in the kernel for ever, and its library may crash. That program ends when the service has.
//
// One thread; nothing waits. What hangs or ends too early, as it does when no device answers, is
// begun anew after half a minute, but beside none that the kernel does not let go; until then the
// last look grows old, and says so.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "checkpoint/service.pb.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/process.h"
#include "configs/devices.h"

namespace surefoot {

class GpuWatch {
 public:
  // `program`: surefoot-node.
  GpuWatch(config::Resources resources, std::string program)
      : resources_(std::move(resources)), program_(std::move(program)) {}
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // Of those that the workers with local ranks below `workers` take. Empty: there are none, or
  // nothing is known yet.
  [[nodiscard]] std::vector<service::GpuStatus> look(int workers);

 private:
  void begin();
  void end();
  void hear();

  config::Resources resources_;
  std::string program_;
  std::set<DeviceName> devices_;  // that are looked at
  std::optional<ProcessId> process_;
  std::vector<ProcessId> left_;  // ended, and not reaped yet
  Fd life_;                      // the program ends when nobody holds this any more
  Fd from_;
  std::string text_;  // the line that is not whole yet
  Time begun_{};
  Time heard_{};
  std::uint64_t sample_ = 0;
  std::vector<service::GpuStatus> newest_;
};

inline constexpr Duration kGpuInterval = std::chrono::seconds(2);
// The program: writes a line to `to` now and at each interval, until `life` is closed at its other
// end, nobody reads, or no device answers.
int sample_gpus(const std::string& devices, int life, int to);

}  // namespace surefoot
