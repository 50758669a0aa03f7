// A libnvidia-ml.so.1, as the environment says. SUREFOOT_FAKE_GPU: "healthy", "throttled", "ecc",
// "lost", "mismatch", "unloaded", "hangs", "crashes", "split" (by MIG, each into one instance),
// "old" (before R510), "busy" (somebody computes on each), "apart" (no NVLink between them),
// "unified" (memory of the processor's), "prohibited" or "exclusive".
// "@FILE": what stands in the file now. SUREFOOT_FAKE_GPUS: how many GPUs, 1 without it.
// SUREFOOT_FAKE_GPU_NAME: their name. UUIDs end in the GPU's number. Signatures as in NVML's
// reference.
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace {

std::string variable(const char* name, const char* otherwise) {
  const char* const value = ::getenv(name);
  return value != nullptr ? value : otherwise;
}
std::string state() {
  const std::string said = variable("SUREFOOT_FAKE_GPU", "healthy");
  if (!said.starts_with("@")) return said;
  std::ifstream file(said.substr(1));
  std::string now;
  file >> now;
  return now;
}

int set(unsigned* into, unsigned value) {
  *into = value;
  return 0;
}
int set_text(char* into, unsigned length, const std::string& text) {
  std::snprintf(into, length, "%s", text.c_str());
  return 0;
}

// A handle is one of these.
struct Device {
  unsigned index = 0;
  bool instance = false;
};
Device* device_of(unsigned index, bool instance) {
  static std::array<std::array<Device, 2>, 16> all;
  Device& device = all[index][instance ? 1 : 0];
  device = {index, instance};
  return &device;
}
unsigned count() {
  return static_cast<unsigned>(std::stoi(variable("SUREFOOT_FAKE_GPUS", "1")));
}
std::string uuid_of(const Device& device) {
  char text[64];
  std::snprintf(text, sizeof text, "%s-00000000-0000-0000-0000-%012x",
                device.instance ? "MIG" : "GPU", device.index);
  return text;
}

constexpr int kInvalidArgument = 2, kNotFound = 6;

}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Pci {
  char bus_legacy[16];
  unsigned numbers[5];
  char bus_id[32];
};
struct Utilization {
  unsigned gpu, memory;
};

const char* nvmlErrorString(int code) {
  return code == 18   ? "Driver/library version mismatch"
         : code == 15 ? "GPU is lost"
         : code == 9  ? "Driver Not Loaded"
                      : "Unknown";
}
int nvmlInit_v2() {
  if (state() == "hangs") ::sleep(1000);
  if (state() == "crashes") ::abort();
  return state() == "mismatch" ? 18 : state() == "unloaded" ? 9 : 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return set_text(text, length, "580.82.07");
}
int nvmlDeviceGetCount_v2(unsigned* into) {
  return set(into, count());
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  if (index >= count()) return kInvalidArgument;
  *device = device_of(index, false);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device** device) {
  for (unsigned index = 0; index < count(); ++index) {
    for (const bool instance : {false, true}) {
      *device = device_of(index, instance);
      if (uuid_of(**device) == uuid && (!instance || state() == "split")) return 0;
    }
  }
  return kNotFound;
}
int nvmlDeviceGetIndex(Device* device, unsigned* index) {
  return set(index, device->index);
}
int nvmlDeviceGetUUID(Device* device, char* text, unsigned length) {
  return set_text(text, length, uuid_of(*device));
}
int nvmlDeviceGetMigMode(Device*, unsigned* current, unsigned* pending) {
  *current = *pending = state() == "split" ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(Device*, unsigned* most) {
  return set(most, 1);
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device* device, unsigned, Device** instance) {
  *instance = device_of(device->index, true);
  return 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device* instance, Device** device) {
  *device = device_of(instance->index, false);
  return 0;
}
int nvmlDeviceGetName(Device*, char* text, unsigned length) {
  return set_text(text, length, variable("SUREFOOT_FAKE_GPU_NAME", "Fake H200"));
}
int nvmlDeviceGetPciInfo_v3(Device*, Pci* pci) {
  std::strcpy(pci->bus_id, "00000000:65:00.0");
  return 0;
}
// Half a GiB is the driver's.
int nvmlDeviceGetMemoryInfo(Device*, Memory* memory) {
  *memory = {141ULL << 30, (141ULL << 30) - (512ULL << 20), 512ULL << 20};
  return state() == "lost" ? 15 : 0;
}
int nvmlDeviceGetMemoryInfo_v2(Device*, Memory2* memory) {
  if (state() == "old") return 13;
  if (state() == "unified") return 3;
  if (memory->version != (sizeof(Memory2) | 2U << 24U)) return 25;
  memory->total = 141ULL << 30;
  memory->reserved = 512ULL << 20;
  memory->free = memory->total - memory->reserved;
  memory->used = 0;
  return state() == "lost" ? 15 : 0;
}
int nvmlDeviceGetComputeMode(Device*, unsigned* mode) {
  return set(mode, state() == "prohibited" ? 2 : state() == "exclusive" ? 3 : 0);
}
int nvmlDeviceGetUtilizationRates(Device*, Utilization* load) {
  *load = {97, 60};
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(Device*, unsigned* lanes) {
  return set(lanes, 16);
}
int nvmlDeviceGetMaxPcieLinkWidth(Device*, unsigned* lanes) {
  return set(lanes, 16);
}
int nvmlDeviceGetEccMode(Device*, int* current, int* pending) {
  *current = *pending = 1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(Device*, int type, int counter, unsigned long long* errors) {
  *errors = state() == "ecc" && type == 1 ? counter == 0 ? 2 : 7 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(Device*, unsigned* corrected, unsigned* uncorrected, unsigned* waits,
                              unsigned* failed) {
  *corrected = *uncorrected = *waits = *failed = 0;
  return 0;
}
int nvmlDeviceGetClockInfo(Device*, int type, unsigned* mhz) {
  return set(mhz, type == 1 ? state() == "throttled" ? 345 : 1980 : 1);
}
int nvmlDeviceGetMaxClockInfo(Device*, int type, unsigned* mhz) {
  return set(mhz, type == 1 ? 1980 : 1);
}
int nvmlDeviceGetTemperature(Device*, int, unsigned* celsius) {
  return set(celsius, 41);
}
int nvmlDeviceGetPowerUsage(Device*, unsigned* milliwatts) {
  return set(milliwatts, 80'500);
}
int nvmlDeviceGetEnforcedPowerLimit(Device*, unsigned* milliwatts) {
  return set(milliwatts, 700'000);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device*, unsigned long long* reasons) {
  *reasons = state() == "throttled" ? 0x48 : 0x1;
  return 0;
}
int nvmlDeviceGetNvLinkState(Device*, unsigned link, int* active) {
  *active = 1;
  return link < 18 ? 0 : 2;
}

int nvmlDeviceGetP2PStatus(Device*, Device*, int kind, int* status) {
  *status = kind == 2 && state() != "apart" ? 0 : 5;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device*, unsigned* number, void*) {
  return set(number, state() == "busy" ? 1 : 0);
}

}  // extern "C"
