#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "launcher/doctor/gpu.h"
#include "launcher/format.h"

namespace surefoot::doctor {
namespace {

// After these the GPU has to be reset or the machine rebooted (NVIDIA's Xid catalog).
constexpr int kNeedReset[] = {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140};
// Of a program that did something wrong, or was ended: the GPU is well.
constexpr int kOfPrograms[] = {13, 31, 43, 45, 94};

template <std::size_t N>
bool is_in(const int (&list)[N], int code) {
  return std::find(std::begin(list), std::end(list), code) != std::end(list);
}

std::string xid_text(const XidError& error) {
  return fmt::format("Xid {} of {} {} ago", error.code, error.bus,
                     duration_text(static_cast<double>(error.age_seconds)));
}

Finding check_driver_side(const CudaFacts& facts, int cards, bool used) {
  const std::string check = "cuda driver";
  if (!facts.driver_fault.empty()) {
    const Finding none = not_checked(check, facts.driver_fault);
    if (cards == 0) return none;
    return bad_only_if(used, bad(check, facts.driver_fault,
                                 "install the driver's CUDA part (Debian: libcuda1; containers: "
                                 "NVIDIA_DRIVER_CAPABILITIES=compute,utility)"));
  }
  std::string found = "CUDA " + cuda_version_text(facts.driver_version);
  if (facts.init_code == 0)
    return ok(check,
              fmt::format("{}, {}", found,
                          count_text(static_cast<int>(facts.devices.size()), "device", "devices")));
  found += fmt::format(", but cuInit fails with {}", facts.init_code);
  std::string cure = "nvidia-smi; dmesg | grep -i nvrm";
  if (facts.init_code == kCudaNoDevice)
    cure = "CUDA_VISIBLE_DEVICES must name a device; containers: --gpus all";
  if (facts.init_code == kCudaSystemNotReady)
    cure =
        "systemctl start nvidia-fabricmanager (of the driver's version): NVSwitch machines need "
        "it";
  if (facts.init_code == kCudaDriverMismatch) cure = "library and kernel module differ: reboot";
  if (facts.init_code == kCudaCompatNotSupported)
    cure =
        "this GPU takes no forward compatibility: take cuda-compat out of LD_LIBRARY_PATH, or "
        "update the driver";
  return bad_only_if(used && cards > 0, bad(check, found, cure));
}

Finding too_old(const std::string& check, const std::string& found, const CudaFacts& facts,
                int wanted, bool used) {
  const std::string oldest = oldest_driver_for(wanted / 1000);
  return bad_only_if(
      used, bad(check,
                fmt::format("{}, and the driver knows CUDA {} only", found,
                            cuda_version_text(facts.driver_version)),
                oldest.empty() ? "update the driver"
                               : fmt::format("a driver from {} on, or libraries of CUDA {}", oldest,
                                             facts.driver_version / 1000)));
}

Finding check_runtime(const CudaFacts& facts, bool used) {
  const std::string check = "cuda runtime";
  if (!facts.runtime_fault.empty()) return not_checked(check, facts.runtime_fault);
  std::string found =
      fmt::format("{} ({})", cuda_version_text(facts.runtime_version), facts.runtime_file);
  if (facts.driver_version == 0) return ok(check, found + "; there is no driver to compare with");
  if (facts.runtime_version / 1000 > facts.driver_version / 1000)
    return too_old(check, found, facts, facts.runtime_version, used);
  if (facts.runtime_version > facts.driver_version)
    found += fmt::format(", newer than the driver's {}, which minor versions may be",
                         cuda_version_text(facts.driver_version));
  return ok(check, found);
}

Finding check_nccl(const CudaFacts& facts, bool used) {
  const std::string check = "nccl";
  if (!facts.nccl_fault.empty()) return not_checked(check, facts.nccl_fault);
  std::string found =
      fmt::format("{} ({})", nccl_version_text(facts.nccl_version), facts.nccl_file);
  if (facts.nccl_cuda == 0) return ok(check, found);
  found += ", built with CUDA " + cuda_version_text(facts.nccl_cuda);
  if (facts.driver_version > 0 && facts.nccl_cuda / 1000 > facts.driver_version / 1000)
    return too_old(check, found, facts, facts.nccl_cuda, used);
  if (facts.runtime_version > 0 && facts.nccl_cuda / 1000 != facts.runtime_version / 1000) {
    return warn(
        check,
        fmt::format("{}, and the runtime is {}", found, cuda_version_text(facts.runtime_version)),
        fmt::format("NCCL for CUDA {}", facts.runtime_version / 1000));
  }
  return ok(check, found);
}

}  // namespace

std::optional<XidError> parse_xid(const std::string& record, std::int64_t uptime_us) {
  constexpr std::string_view kMark = "NVRM: Xid (";
  const std::size_t mark = record.find(kMark);
  const std::size_t text = record.find(';');
  if (mark == std::string::npos || text == std::string::npos || text > mark) return std::nullopt;
  const std::size_t bus = mark + kMark.size();
  const std::size_t close = record.find("): ", bus);
  if (close == std::string::npos) return std::nullopt;
  XidError error;
  error.bus = record.substr(bus, close - bus);
  const char* const end = record.data() + record.size();
  if (std::from_chars(record.data() + close + 3, end, error.code).ec != std::errc())
    return std::nullopt;
  // "priority,number,microseconds since boot,flags;"
  std::size_t comma = record.find(',');
  comma = record.find(',', comma + 1);
  std::int64_t at = 0;
  if (comma < text && std::from_chars(record.data() + comma + 1, end, at).ec == std::errc())
    error.age_seconds = std::max<std::int64_t>((uptime_us - at) / 1'000'000, 0);
  return error;
}

Finding check_xid(const KernelLogFacts& facts, bool gpus, bool used) {
  const std::string check = "xid";
  if (!gpus) return not_checked(check, "no NVIDIA GPU here");
  if (!facts.fault.empty())
    return not_checked(check, "the kernel's log: " + facts.fault, "sudo dmesg | grep Xid");
  const XidError* worst = nullptr;
  const XidError* other = nullptr;
  for (const XidError& error : facts.errors) {
    if (is_in(kNeedReset, error.code)) worst = &error;
    if (!is_in(kNeedReset, error.code) && !is_in(kOfPrograms, error.code)) other = &error;
  }
  const auto count = static_cast<std::int64_t>(facts.errors.size());
  std::string found = count_text(count, "Xid", "Xids") + " in the kernel's log";
  if (worst != nullptr) {
    found += fmt::format(", {}: needs a reset", xid_text(*worst));
    constexpr const char* kCure =
        "drain this machine, nvidia-smi --gpu-reset or reboot; the code's meaning: "
        "docs.nvidia.com/deploy/xid-errors";
    if (worst->age_seconds >= kFreshSeconds) return warn(check, found, kCure);
    return bad_only_if(used, bad(check, found, kCure));
  }
  if (other != nullptr) {
    return warn(check, fmt::format("{}, {}", found, xid_text(*other)),
                "look the code up: docs.nvidia.com/deploy/xid-errors");
  }
  return ok(check, count > 0 ? found + ", all of programs" : found);
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// NCCL_VERSION() of nccl.h: below 2.9 the minor version had one digit.
std::string nccl_version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version / major, version % major / 100, version % 100);
}

// "CUDA Compatibility", table of minor version compatibility.
std::string oldest_driver_for(int cuda_major) {
  switch (cuda_major) {
    case 11:
      return "450.80.02";
    case 12:
      return "525.60.13";
    case 13:
      return "580";
    default:
      return "";
  }
}

int nccl_cuda_in(std::string_view bytes) {
  constexpr std::string_view kMark = "NCCL version ";
  for (std::size_t at = bytes.find(kMark); at != bytes.npos; at = bytes.find(kMark, at + 1)) {
    const std::string_view text = bytes.substr(at, 64).substr(0, bytes.substr(at, 64).find('\0'));
    const std::size_t plus = text.find("+cuda");
    if (plus == text.npos) continue;
    int major = 0, minor = 0;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data() + plus + 5, end, major);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') continue;
    if (std::from_chars(first.ptr + 1, end, minor).ec == std::errc())
      return major * 1000 + minor * 10;
  }
  return 0;
}

std::vector<Finding> check_cuda(const CudaFacts& facts, int cards, bool used) {
  std::vector<Finding> findings = {check_driver_side(facts, cards, used)};
  for (const CudaDevice& device : facts.devices) {
    findings.push_back(on(
        std::to_string(device.index),
        ok("cuda device",
           fmt::format("{}, {} SMs, compute capability {}.{}", device.name, device.multiprocessors,
                       device.capability / 10, device.capability % 10))));
  }
  findings.push_back(check_runtime(facts, used));
  findings.push_back(check_nccl(facts, used));
  return findings;
}

}  // namespace surefoot::doctor
