#include "launcher/nvidia/nvml.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "common/file.h"
#include "launcher/nvidia/library.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// By NVML's reference; these functions and structures have not changed since R410, those of MIG
// since R450, and are nvml.h's of CUDA 12.9 and 13.
using Device = struct nvmlDevice_st*;
constexpr int kNotSupported = 3;       // NVML_ERROR_NOT_SUPPORTED
constexpr int kNoPermission = 4;       // NVML_ERROR_NO_PERMISSION
constexpr int kInsufficientSize = 7;   // NVML_ERROR_INSUFFICIENT_SIZE: the count is right
constexpr int kFunctionNotFound = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
constexpr unsigned kClockSm = 1;       // NVML_CLOCK_SM
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kCorrected = 0, kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr unsigned kVolatile = 0, kAggregate = 1;     // nvmlEccCounterType_t
constexpr unsigned kMostLinks = 36;                   // NVML_NVLINK_MAX_LINKS; 18 before CUDA 13

constexpr int kPeerByLink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kPeerOk = 0;      // NVML_P2P_STATUS_OK

struct Memory {  // nvmlMemory_t; `used` has what the driver holds itself, more than half a GiB
  unsigned long long total, free, used;
};
struct Memory2 {  // nvmlMemory_v2_t, since R510; `used` is by processes, as nvidia-smi has it
  unsigned version = 0;  // NVML_STRUCT_VERSION(Memory, 2)
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
constexpr unsigned kMemoryVersion2 = sizeof(Memory2) | 2U << 24U;
struct Utilization {  // nvmlUtilization_t
  unsigned gpu, memory;
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
  // What there is not, none.
  template <class Value, class... Arguments>
  std::optional<Value> get(const char* name, Device device, Arguments... arguments) const {
    Value value{};
    if (call(name, device, arguments..., &value) != 0) return std::nullopt;
    return value;
  }
  [[nodiscard]] std::string text(const char* name, Device device) const {
    std::array<char, 96>
        text{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE
    const int code = call(name, device, text.data(), static_cast<unsigned>(text.size()));
    return code == 0 ? text.data() : "";
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

int look_at_memory(const Nvml& nvml, Device device, Memory2& memory) {
  memory = {.version = kMemoryVersion2};
  const int code = nvml.call("nvmlDeviceGetMemoryInfo_v2", device, &memory);
  if (code != kFunctionNotFound) return code;
  Memory old{};
  const int answer = nvml.call("nvmlDeviceGetMemoryInfo", device, &old);
  memory.total = old.total;
  memory.used = old.used;
  return answer;
}

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

std::optional<std::uint64_t> clock_reasons(const Nvml& nvml, Device device) {
  for (const char* name : {"nvmlDeviceGetCurrentClocksEventReasons",  // since R535
                           "nvmlDeviceGetCurrentClocksThrottleReasons"}) {
    if (const auto reasons = nvml.get<unsigned long long>(name, device)) return *reasons;
  }
  return std::nullopt;
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
  facts.reasons = clock_reasons(nvml, device);
}

void look_at_links(const Nvml& nvml, Device device, unsigned gpus, GpuDevice& facts) {
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int active = 0;
    if (nvml.call("nvmlDeviceGetNvLinkState", device, link, &active) != 0) continue;
    ++(active != 0 ? facts.links_active : facts.links_inactive);
  }
  for (unsigned other = 0; facts.links_active > 0 && other < gpus; ++other) {
    Device peer = nullptr;
    if (other == static_cast<unsigned>(facts.index) ||
        nvml.call("nvmlDeviceGetHandleByIndex_v2", other, &peer) != 0)
      continue;
    if (nvml.get<int>("nvmlDeviceGetP2PStatus", device, peer, kPeerByLink) == kPeerOk)
      facts.linked.push_back(static_cast<int>(other));
  }
}

bool is_split(const Nvml& nvml, Device device) {
  unsigned mig = 0, pending = 0;
  return nvml.call("nvmlDeviceGetMigMode", device, &mig, &pending) == 0 && mig != 0;
}

std::vector<std::string> instances_of(const Nvml& nvml, Device device) {
  std::vector<std::string> found;
  const unsigned most = nvml.get<unsigned>("nvmlDeviceGetMaxMigDeviceCount", device).value_or(0);
  for (unsigned i = 0; i < most; ++i) {
    Device instance = nullptr;
    if (nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", device, i, &instance) != 0) continue;
    found.push_back(nvml.text("nvmlDeviceGetUUID", instance));
  }
  return found;
}

void look_at_use(const Nvml& nvml, Device device, GpuDevice& facts) {
  Memory2 memory;
  const int code = look_at_memory(nvml, device, memory);
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
  facts.compute_mode = nvml.number("nvmlDeviceGetComputeMode", device);
  facts.mig = is_split(nvml, device);
  if (facts.mig) facts.instances = instances_of(nvml, device);
  facts.pcie_width = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", device);
  facts.pcie_width_max = nvml.number("nvmlDeviceGetMaxPcieLinkWidth", device);
}

GpuDevice look_at_device(const Nvml& nvml, unsigned index, unsigned gpus) {
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
  facts.uuid = nvml.text("nvmlDeviceGetUUID", device);
  PciInfo pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci) == 0) facts.bus = pci.bus_id;
  look_at_use(nvml, device, facts);
  if (facts.nvml_code != 0) {
    facts.fault = nvml.text_of(facts.nvml_code);
    return facts;
  }
  look_at_ecc(nvml, device, facts);
  look_at_clocks(nvml, device, facts);
  look_at_links(nvml, device, gpus, facts);
  return facts;
}

// ---- samples ----

void sample_load(const Nvml& nvml, Device gpu, service::GpuStatus& sample) {
  if (const auto load = nvml.get<Utilization>("nvmlDeviceGetUtilizationRates", gpu))
    sample.set_busy(load->gpu / 100.0);
  if (const auto celsius = nvml.get<unsigned>("nvmlDeviceGetTemperature", gpu, kTemperatureGpu))
    sample.set_celsius(static_cast<int>(*celsius));
  if (const auto milliwatts = nvml.get<unsigned>("nvmlDeviceGetPowerUsage", gpu))
    sample.set_watts(*milliwatts / 1000.0);
  if (const auto mhz = nvml.get<unsigned>("nvmlDeviceGetClockInfo", gpu, kClockSm))
    sample.set_clock_mhz(static_cast<int>(*mhz));
  if (const auto reasons = clock_reasons(nvml, gpu)) sample.set_clock_reasons(*reasons);
}

service::GpuStatus sample_of(const Nvml& nvml, const DeviceName& name) {
  service::GpuStatus sample;
  sample.set_device(name.text());
  Device device = nullptr;
  int code = name.index >= 0 ? nvml.call("nvmlDeviceGetHandleByIndex_v2",
                                         static_cast<unsigned>(name.index), &device)
                             : nvml.call("nvmlDeviceGetHandleByUUID", name.uuid.c_str(), &device);
  Device gpu = device;  // that an instance is part of
  if (code == 0 && name.is_mig())
    code = nvml.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, &gpu);
  Memory2 memory;
  // Handle and name of one that has gone are still given. Where processor and GPU share memory it
  // is not told, nor to everybody what all instances of a split one hold.
  if (code == 0) code = look_at_memory(nvml, device, memory);
  if (code != 0 && code != kNotSupported && code != kNoPermission) {
    sample.set_fault(nvml.text_of(code));
    return sample;
  }
  sample.set_memory_bytes(static_cast<std::int64_t>(memory.total));
  sample.set_memory_used_bytes(static_cast<std::int64_t>(memory.used));
  sample.set_index(nvml.number("nvmlDeviceGetIndex", gpu));
  sample.set_uuid(nvml.text("nvmlDeviceGetUUID", device));
  sample.set_name(nvml.text("nvmlDeviceGetName", device));
  sample.set_mig(name.is_mig() || is_split(nvml, gpu));
  sample_load(nvml, gpu, sample);
  return sample;
}

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
  const Library library({kLibrary});
  if (!library) {
    facts.library_fault = library.fault();
    return facts;
  }
  const Nvml nvml(library);
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
  for (unsigned i = 0; i < count; ++i) facts.devices.push_back(look_at_device(nvml, i, count));
  return facts;
}

struct GpuSampler::Library {
  surefoot::Library file{{kLibrary}};
  Nvml nvml{file};
  std::string fault;
};

GpuSampler::GpuSampler() : library_(std::make_unique<Library>()) {
  if (!library_->file) {
    library_->fault = library_->file.fault();
  } else if (const int code = library_->nvml.call("nvmlInit_v2"); code != 0) {
    library_->fault = library_->nvml.text_of(code);
  }
}

GpuSampler::~GpuSampler() = default;

std::vector<service::GpuStatus> GpuSampler::look(const std::set<DeviceName>& devices) {
  std::vector<service::GpuStatus> samples;
  for (const DeviceName& device : devices) {
    if (library_->fault.empty()) {
      samples.push_back(sample_of(library_->nvml, device));
      continue;
    }
    service::GpuStatus sample;
    sample.set_device(device.text());
    sample.set_fault(library_->fault);
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace surefoot
