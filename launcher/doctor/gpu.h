// GPUs of this machine and the libraries for them: facts, and what they mean for a job. The rules
// are pure; the facts are nvidia.h's and nvidia/nvml.h's.
//
// Sources: NVML's reference (docs.nvidia.com/deploy/nvml-api), "CUDA Compatibility"
// (docs.nvidia.com/deploy/cuda-compatibility), "Xid Errors" (docs.nvidia.com/deploy/xid-errors).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "configs/devices.h"
#include "launcher/doctor/finding.h"
#include "launcher/nvidia/gpu_facts.h"

namespace surefoot::doctor {

// ---- what the driver says of each GPU (NVML) ----

// Memory that others hold from which on it is worth a word; arbitrary.
inline constexpr std::int64_t kOthersBytes = std::int64_t{1} << 30;

// Whether GPUs are used: by the job that is given, or nobody knows, as none is.
enum class GpuUse { kUnused, kUnknown, kUsed };
// What a job takes of this machine.
struct GpuNeed {
  GpuUse use = GpuUse::kUnknown;
  int workers = 0;               // here; kUsed
  std::set<DeviceName> devices;  // that they take; kUsed
  std::string named_by;  // who names them; empty: nobody, each worker takes that of its rank
  std::string fault;     // there is none for some worker
  // Where not every worker has a device of its own.
  [[nodiscard]] bool shares() const { return static_cast<int>(devices.size()) < workers; }
};
// `visible`: the workers' CUDA_VISIBLE_DEVICES, or nothing.
[[nodiscard]] GpuNeed gpu_need_of(const config::Resources& resources,
                                  const std::optional<std::string>& visible, int workers);
// Whether it is this GPU as a whole, and not an instance of it.
[[nodiscard]] bool is_whole(const GpuDevice& device, const DeviceName& name);
// "gpu driver", and of each GPU "gpu", "gpu memory", "gpu clocks", "nvlink". What is wrong with one
// that the job does not take is a warning.
[[nodiscard]] std::vector<Finding> check_gpus(const GpuFacts& facts, const GpuNeed& need);

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
