// A libnvidia-ml.so.1 of one GPU, whose state SUREFOOT_FAKE_GPU says: "healthy", "throttled",
// "ecc", "lost", "mismatch", "hangs" or "crashes". Signatures as in NVML's reference.
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

std::string state() {
  const char* const value = ::getenv("SUREFOOT_FAKE_GPU");
  return value != nullptr ? value : "healthy";
}

int set(unsigned* into, unsigned value) {
  *into = value;
  return 0;
}

}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct Pci {
  char bus_legacy[16];
  unsigned numbers[5];
  char bus_id[32];
};

const char* nvmlErrorString(int code) {
  return code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown";
}
int nvmlInit_v2() {
  if (state() == "hangs") ::sleep(1000);
  if (state() == "crashes") ::abort();
  return state() == "mismatch" ? 18 : 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "580.82.07", length);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  return set(count, 1);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  static int handle;
  *device = &handle;
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned length) {
  std::strncpy(text, "Fake H200", length);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void*, Pci* pci) {
  std::strcpy(pci->bus_id, "00000000:65:00.0");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {141ULL << 30, 141ULL << 30, 0};
  return state() == "lost" ? 15 : 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* lanes) {
  return set(lanes, 16);
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
  return set(lanes, 16);
}
int nvmlDeviceGetEccMode(void*, int* current, int* pending) {
  *current = *pending = 1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* count) {
  *count = state() == "ecc" && type == 1 ? counter == 0 ? 2 : 7 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* waits,
                              unsigned* failed) {
  *corrected = *uncorrected = *waits = *failed = 0;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  return set(mhz, type == 1 ? state() == "throttled" ? 345 : 1980 : 1);
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* mhz) {
  return set(mhz, type == 1 ? 1980 : 1);
}
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  return set(celsius, 41);
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  return set(milliwatts, 80'500);
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  return set(milliwatts, 700'000);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = state() == "throttled" ? 0x48 : 0x1;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, int* active) {
  *active = 1;
  return link < 18 ? 0 : 2;
}

}  // extern "C"
