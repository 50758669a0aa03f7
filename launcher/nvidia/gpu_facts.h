// What NVML says of this machine's GPUs. Values only.
//
// Source: NVML's reference (docs.nvidia.com/deploy/nvml-api).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace surefoot {

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

// Of nvmlComputeMode_t. NVML's numbers.
enum ComputeMode : int {
  kProhibited = 2,
  kExclusiveProcess = 3,
};

struct GpuDevice {
  int index = 0;
  int nvml_code = 0;  // not 0: it does not answer, the rest is not known
  std::string fault;
  std::string name;
  std::string uuid;  // "GPU-..."
  std::string bus;   // PCI address
  std::int64_t memory_bytes = 0;
  std::int64_t memory_used_bytes = 0;      // by processes
  int processes = 0;                       // that compute on it
  int compute_mode = 0;                    // 0: any number of processes
  bool mig = false;                        // split into instances
  std::vector<std::string> instances;      // their UUIDs, "MIG-..."
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
  std::vector<int> linked;  // GPUs that it reaches by NVLink, in one step or over a switch
};

struct GpuFacts {
  int cards = 0;              // NVIDIA GPUs on the PCI bus, by /sys
  std::string library_fault;  // libnvidia-ml.so.1 cannot be loaded; empty: it was
  int nvml_code = 0;          // of nvmlInit_v2
  std::string nvml_fault;
  std::string driver;  // "580.82.07"
  std::vector<GpuDevice> devices;
};

}  // namespace surefoot
