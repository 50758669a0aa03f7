// GPUs of this machine and the libraries for them: facts, and what they mean for a job. The rules
// are pure; the facts are nvidia.h's.
//
// Sources: NVML's reference (docs.nvidia.com/deploy/nvml-api), "CUDA Compatibility"
// (docs.nvidia.com/deploy/cuda-compatibility), "Xid Errors" (docs.nvidia.com/deploy/xid-errors).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"

namespace surefoot::doctor {

// ---- what the driver says of each GPU (NVML) ----

// Of nvmlReturn_t, those that name a cure of their own. NVML's numbers: do not renumber.
enum NvmlCode : int {
  kNvmlDriverNotLoaded = 9,
  kNvmlGpuIsLost = 15,
  kNvmlResetRequired = 16,
  kNvmlOperatingSystem = 17,  // control groups or permissions keep the device from us
  kNvmlVersionMismatch = 18,  // library and kernel module are of two drivers
};

// Of nvmlClocksEventReasons (before R535: nvmlClocksThrottleReasons). NVML's bits.
enum ClockReason : std::uint64_t {
  kApplicationClocks = 0x2,
  kSoftwarePowerCap = 0x4,
  kHardwareSlowdown = 0x8,
  kSoftwareThermal = 0x20,
  kHardwareThermal = 0x40,
  kPowerBrake = 0x80,
};

struct GpuDevice {
  int index = 0;
  int nvml_code = 0;  // not 0: it does not answer, the rest is not known
  std::string fault;
  std::string name;
  std::string bus;  // PCI address
  std::int64_t memory_bytes = 0;
  std::int64_t memory_used_bytes = 0;
  int processes = 0;                       // that compute on it
  bool mig = false;                        // split into instances
  int pcie_width = 0, pcie_width_max = 0;  // lanes; 0: not known
  // Memory errors; nothing where the GPU does not count them.
  std::optional<bool> ecc;
  std::optional<std::uint64_t> corrected, uncorrected;  // since the driver was loaded
  std::optional<std::uint64_t> uncorrected_ever;
  bool repair_pending = false;  // a row or page is to be replaced at the next reset
  bool repair_failed = false;   // no spare row was left
  // Clocks.
  int clock_mhz = 0, clock_max_mhz = 0;
  std::optional<std::uint64_t> reasons;
  int celsius = 0;
  int watts = 0, watts_limit = 0;
  // NVLink.
  int links_active = 0, links_inactive = 0;
};

struct GpuFacts {
  int cards = 0;              // NVIDIA GPUs on the PCI bus, by /sys
  std::string library_fault;  // libnvidia-ml.so.1 cannot be loaded; empty: it was
  int nvml_code = 0;          // of nvmlInit_v2
  std::string nvml_fault;
  std::string driver;  // "580.82.07"
  std::vector<GpuDevice> devices;
};

// Memory that others hold from which on it is worth a word; arbitrary.
inline constexpr std::int64_t kOthersBytes = std::int64_t{1} << 30;

// Whether GPUs are used: by the job that is given, or nobody knows, as none is.
enum class GpuUse { kUnused, kUnknown, kUsed };
// "gpu driver", and of each GPU "gpu", "gpu memory", "gpu clocks", "nvlink".
[[nodiscard]] std::vector<Finding> check_gpus(const GpuFacts& facts, GpuUse use);

// ---- what the kernel's log says of them ----

struct XidError {
  int code = 0;
  std::string bus;
  std::int64_t age_seconds = 0;
};
struct KernelLogFacts {
  std::string fault;  // it cannot be read
  std::vector<XidError> errors;
};
// A record of /dev/kmsg: "6,1234,5678901,-;NVRM: Xid (PCI:0000:65:00): 79, ..."; nothing: another.
[[nodiscard]] std::optional<XidError> parse_xid(const std::string& record, std::int64_t uptime_us);
// Older errors than this may have been followed by a reset that the log does not show; arbitrary.
inline constexpr std::int64_t kFreshSeconds = 24 * 3600;
// `gpus`: there are any.
// `used`: not kUnused; so below.
[[nodiscard]] Finding check_xid(const KernelLogFacts& facts, bool gpus, bool used);

// ---- the libraries ----

struct CudaDevice {
  int index = 0;
  std::string name;
  int multiprocessors = 0;
  int capability = 0;  // 90: 9.0
};
// Of CUresult, those that name a cure of their own. CUDA's numbers.
enum CudaCode : int {
  kCudaNoDevice = 100,
  kCudaSystemNotReady = 802,
  kCudaDriverMismatch = 803,
  kCudaCompatNotSupported = 804,
};
struct CudaFacts {
  std::string driver_fault;  // libcuda.so.1 cannot be loaded
  int driver_version = 0;    // the newest CUDA that the driver knows: 13000 is 13.0
  int init_code = 0;         // of cuInit
  std::vector<CudaDevice> devices;
  std::string runtime_fault;
  std::string runtime_file;
  int runtime_version = 0;
  std::string nccl_fault;
  std::string nccl_file;
  int nccl_version = 0;  // 22809 is 2.28.9
  int nccl_cuda = 0;     // the CUDA that it was built with; 0: not known
};
[[nodiscard]] std::string cuda_version_text(int version);  // "13.0"
[[nodiscard]] std::string nccl_version_text(int version);  // "2.28.9"
// The oldest driver with which a CUDA of this major version runs; empty: not known.
[[nodiscard]] std::string oldest_driver_for(int cuda_major);
// "NCCL version 2.28.9+cuda13.0" in the text of a library: 13000; 0: not there.
[[nodiscard]] int nccl_cuda_in(std::string_view bytes);
// "cuda driver" (with a "cuda device" each), "cuda runtime", "nccl".
[[nodiscard]] std::vector<Finding> check_cuda(const CudaFacts& facts, int cards, bool used);

}  // namespace surefoot::doctor
