#include "launcher/doctor/nvidia.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/file.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;

// ---- loading ----

class Library {
 public:
  // The first of these that there is; never closed, as the process leaves soon.
  explicit Library(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (name.empty()) continue;
      handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      const char* const said = ::dlerror();
      if (fault_.empty()) fault_ = said != nullptr ? said : "cannot be loaded";
    }
  }
  explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& fault() const { return fault_; }

  // nullptr: this version has none.
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }
  // The file that it came from.
  [[nodiscard]] std::string file_of(const char* function) const {
    Dl_info info{};
    void* const symbol = ::dlsym(handle_, function);
    if (symbol == nullptr || ::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
    return info.dli_fname;
  }

 private:
  void* handle_ = nullptr;
  std::string fault_;
};

// ---- NVML, by its reference; these functions and structures have not changed since R410 ----

namespace nvml {

using Device = struct nvmlDevice_st*;
constexpr int kFunctionNotFound = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
constexpr int kInsufficientSize = 7;   // NVML_ERROR_INSUFFICIENT_SIZE: the count is right
constexpr unsigned kClockSm = 1;       // NVML_CLOCK_SM
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kCorrected = 0, kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr unsigned kVolatile = 0, kAggregate = 1;     // nvmlEccCounterType_t
constexpr unsigned kMostLinks = 18;                   // NVML_NVLINK_MAX_LINKS

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
struct PciInfo {  // nvmlPciInfo_t since version 3
  char bus_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct ProcessInfo {  // nvmlProcessInfo_t since version 2 of the functions
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
};

class Nvml {
 public:
  explicit Nvml(const Library& library) : library_(library) {}

  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    using Function = int(Arguments...);
    auto* const function = library_.find<Function>(name);
    return function != nullptr ? function(arguments...) : kFunctionNotFound;
  }
  // An unsigned number of a device; 0 where it is not known.
  [[nodiscard]] int number(const char* name, Device device) const {
    unsigned value = 0;
    return call(name, device, &value) == 0 ? static_cast<int>(value) : 0;
  }
  [[nodiscard]] std::string text_of(int code) const {
    auto* const function = library_.find<const char*(int)>("nvmlErrorString");
    return fmt::format("NVML says {}: {}", code, function != nullptr ? function(code) : "?");
  }

 private:
  const Library& library_;
};

void look_at_ecc(const Nvml& nvml, Device device, GpuDevice& facts) {
  int current = 0, pending = 0;
  if (nvml.call("nvmlDeviceGetEccMode", device, &current, &pending) != 0) return;
  facts.ecc = current != 0;
  const auto count = [&](unsigned type, unsigned counter) -> std::optional<std::uint64_t> {
    unsigned long long errors = 0;
    if (nvml.call("nvmlDeviceGetTotalEccErrors", device, type, counter, &errors) != 0)
      return std::nullopt;
    return errors;
  };
  facts.corrected = count(kCorrected, kVolatile);
  facts.uncorrected = count(kUncorrected, kVolatile);
  facts.uncorrected_ever = count(kUncorrected, kAggregate);
  // Rows from Ampere on, pages before.
  unsigned corrected = 0, uncorrected = 0, waits = 0, failed = 0;
  if (nvml.call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &waits, &failed) ==
      0) {
    facts.repair_pending = waits != 0;
    facts.repair_failed = failed != 0;
  } else if (int pages = 0;
             nvml.call("nvmlDeviceGetRetiredPagesPendingStatus", device, &pages) == 0) {
    facts.repair_pending = pages != 0;
  }
}

void look_at_clocks(const Nvml& nvml, Device device, GpuDevice& facts) {
  unsigned value = 0;
  if (nvml.call("nvmlDeviceGetClockInfo", device, kClockSm, &value) == 0)
    facts.clock_mhz = static_cast<int>(value);
  if (nvml.call("nvmlDeviceGetMaxClockInfo", device, kClockSm, &value) == 0)
    facts.clock_max_mhz = static_cast<int>(value);
  if (nvml.call("nvmlDeviceGetTemperature", device, kTemperatureGpu, &value) == 0)
    facts.celsius = static_cast<int>(value);
  facts.watts = nvml.number("nvmlDeviceGetPowerUsage", device) / 1000;  // milliwatts
  facts.watts_limit = nvml.number("nvmlDeviceGetEnforcedPowerLimit", device) / 1000;
  for (const char* name : {"nvmlDeviceGetCurrentClocksEventReasons",  // since R535
                           "nvmlDeviceGetCurrentClocksThrottleReasons"}) {
    unsigned long long reasons = 0;
    if (facts.reasons || nvml.call(name, device, &reasons) != 0) continue;
    facts.reasons = reasons;
  }
}

void look_at_links(const Nvml& nvml, Device device, GpuDevice& facts) {
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int active = 0;
    if (nvml.call("nvmlDeviceGetNvLinkState", device, link, &active) != 0) continue;
    ++(active != 0 ? facts.links_active : facts.links_inactive);
  }
}

void look_at_use(const Nvml& nvml, Device device, GpuDevice& facts) {
  Memory memory{};
  const int code = nvml.call("nvmlDeviceGetMemoryInfo", device, &memory);
  // Handle and name of one that has gone are still given.
  if (code == kNvmlGpuIsLost || code == kNvmlResetRequired) facts.nvml_code = code;
  if (code == 0) {
    facts.memory_bytes = static_cast<std::int64_t>(memory.total);
    facts.memory_used_bytes = static_cast<std::int64_t>(memory.used);
  }
  std::array<ProcessInfo, 64> processes{};
  unsigned count = processes.size();
  const int listed =
      nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, processes.data());
  if (listed == 0 || listed == kInsufficientSize) facts.processes = static_cast<int>(count);
  unsigned mig = 0, pending = 0;
  if (nvml.call("nvmlDeviceGetMigMode", device, &mig, &pending) == 0) facts.mig = mig != 0;
  facts.pcie_width = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", device);
  facts.pcie_width_max = nvml.number("nvmlDeviceGetMaxPcieLinkWidth", device);
}

GpuDevice look_at_device(const Nvml& nvml, unsigned index) {
  GpuDevice facts;
  facts.index = static_cast<int>(index);
  Device device = nullptr;
  std::array<char, 96> name{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE
  facts.nvml_code = nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device);
  if (facts.nvml_code == 0) {
    facts.nvml_code =
        nvml.call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size()));
  }
  if (facts.nvml_code != 0) {
    facts.fault = nvml.text_of(facts.nvml_code);
    return facts;
  }
  facts.name = name.data();
  PciInfo pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci) == 0) facts.bus = pci.bus_id;
  look_at_use(nvml, device, facts);
  if (facts.nvml_code != 0) {
    facts.fault = nvml.text_of(facts.nvml_code);
    return facts;
  }
  look_at_ecc(nvml, device, facts);
  look_at_clocks(nvml, device, facts);
  look_at_links(nvml, device, facts);
  return facts;
}

}  // namespace nvml

// ---- CUDA's driver interface, by cuda.h; cuInit makes no context ----

namespace cuda {

constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_...
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;
constexpr int kMissing = -1;

template <class... Arguments>
int call(const Library& library, const char* name, Arguments... arguments) {
  auto* const function = library.find<int(Arguments...)>(name);
  return function != nullptr ? function(arguments...) : kMissing;
}

CudaDevice look_at_device(const Library& library, int index) {
  CudaDevice facts;
  facts.index = index;
  int device = 0;
  std::array<char, 256> name{};
  if (call(library, "cuDeviceGet", &device, index) != 0) return facts;
  if (call(library, "cuDeviceGetName", name.data(), static_cast<int>(name.size()), device) == 0)
    facts.name = name.data();
  const auto attribute = [&](int which) {
    int value = 0;
    return call(library, "cuDeviceGetAttribute", &value, which, device) == 0 ? value : 0;
  };
  facts.multiprocessors = attribute(kMultiprocessorCount);
  facts.capability = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
  return facts;
}

void look_at_driver(CudaFacts& facts) {
  const Library library({"libcuda.so.1"});
  if (!library) {
    facts.driver_fault = library.fault();
    return;
  }
  call(library, "cuDriverGetVersion", &facts.driver_version);
  facts.init_code = call(library, "cuInit", 0U);
  int count = 0;
  if (facts.init_code == 0) call(library, "cuDeviceGetCount", &count);
  for (int i = 0; i < count; ++i) facts.devices.push_back(look_at_device(library, i));
}

void look_at_runtime(const std::string& file, CudaFacts& facts) {
  const Library library(
      {file, "libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"});
  if (!library || call(library, "cudaRuntimeGetVersion", &facts.runtime_version) != 0) {
    facts.runtime_fault = library ? "cudaRuntimeGetVersion fails" : library.fault();
    return;
  }
  facts.runtime_file = library.file_of("cudaRuntimeGetVersion");
}

void look_at_nccl(const std::string& file, CudaFacts& facts) {
  const Library library({file, "libnccl.so.2"});
  if (!library || call(library, "ncclGetVersion", &facts.nccl_version) != 0) {
    facts.nccl_fault = library ? "ncclGetVersion fails" : library.fault();
    return;
  }
  facts.nccl_file = library.file_of("ncclGetVersion");
  // No function tells what it was built with, but a text in it does.
  if (const auto bytes = read_file(facts.nccl_file)) facts.nccl_cuda = nccl_cuda_in(*bytes);
}

}  // namespace cuda
}  // namespace

int count_cards(const fs::path& root) {
  int count = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", none)) {
    const auto vendor = read_file(entry.path() / "vendor");
    const auto kind = read_file(entry.path() / "class");
    if (!vendor || !kind || !vendor->starts_with("0x10de")) continue;
    // Display controllers: 0300 VGA, 0302 3D.
    if (kind->starts_with("0x0300") || kind->starts_with("0x0302")) ++count;
  }
  return count;
}

GpuFacts look_at_gpus() {
  GpuFacts facts;
  facts.cards = count_cards("/");
  const Library library({"libnvidia-ml.so.1"});
  if (!library) {
    facts.library_fault = library.fault();
    return facts;
  }
  const nvml::Nvml nvml(library);
  facts.nvml_code = nvml.call("nvmlInit_v2");
  if (facts.nvml_code != 0) {
    facts.nvml_fault = nvml.text_of(facts.nvml_code);
    return facts;
  }
  std::array<char, 80> driver{};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  if (nvml.call("nvmlSystemGetDriverVersion", driver.data(),
                static_cast<unsigned>(driver.size())) == 0)
    facts.driver = driver.data();
  unsigned count = 0;
  if (nvml.call("nvmlDeviceGetCount_v2", &count) != 0) count = 0;
  for (unsigned i = 0; i < count; ++i) facts.devices.push_back(nvml::look_at_device(nvml, i));
  return facts;
}

CudaFacts look_at_cuda(const std::string& runtime, const std::string& nccl) {
  CudaFacts facts;
  cuda::look_at_driver(facts);
  cuda::look_at_runtime(runtime, facts);
  cuda::look_at_nccl(nccl, facts);
  return facts;
}

KernelLogFacts look_at_kernel_log(const fs::path& kmsg) {
  KernelLogFacts facts;
  const Fd fd(::open(kmsg.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    facts.fault = errno_text(errno);
    return facts;
  }
  timespec up{};
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  const std::int64_t uptime_us = std::int64_t{up.tv_sec} * 1'000'000 + up.tv_nsec / 1000;
  // A read gives one record; one that was overwritten meanwhile is an EPIPE.
  std::array<char, 8192> record{};
  for (;;) {
    const ssize_t got = ::read(fd.get(), record.data(), record.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (got <= 0) {
      if (got < 0 && errno != EAGAIN) facts.fault = errno_text(errno);
      return facts;
    }
    const std::string text(record.data(), static_cast<std::size_t>(got));
    if (auto error = parse_xid(text, uptime_us)) facts.errors.push_back(std::move(*error));
  }
}

}  // namespace surefoot::doctor
