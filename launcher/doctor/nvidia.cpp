#include "launcher/doctor/nvidia.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/file.h"
#include "launcher/nvidia/library.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;

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
