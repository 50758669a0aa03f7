#include "launcher/node/gpu_watch.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/log.h"
#include "launcher/nvidia/nvml.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

// After an error that lasts NVML is not asked all the time; arbitrary.
constexpr Duration kPause = 30s;
constexpr std::size_t kMostText = 1 << 20;  // more than 256 devices take

std::string joined(const std::set<DeviceName>& devices) {
  std::string out;
  for (const DeviceName& device : devices) out += (out.empty() ? "" : ",") + device.text();
  return out;
}

}  // namespace

GpuWatch::~GpuWatch() {
  end();
}

void GpuWatch::begin() {
  begun_ = heard_ = now();
  std::array<int, 2> life{}, output{};
  if (::pipe2(life.data(), O_CLOEXEC) != 0) return;
  const Fd life_end(life[0]);
  life_ = Fd(life[1]);
  if (::pipe2(output.data(), O_CLOEXEC) != 0) return;
  from_ = Fd(output[0]);
  const Fd to(output[1]);
  ::fcntl(from_.get(), F_SETFL, O_NONBLOCK);
  SpawnOptions options;
  options.argv = {program_, "--sample-gpus", joined(devices_)};
  options.input_fd = life_end.get();
  options.output_fd = to.get();
  if (auto process = spawn(options)) {
    process_ = *process;
  } else {
    spdlog::warn("the GPUs are not looked at: {}", process.error().message);
  }
}

// It is not waited for: one that hangs in the kernel goes when that lets it.
void GpuWatch::end() {
  life_.reset();
  from_.reset();
  text_.clear();
  if (!process_) return;
  (void)send_signal(*process_, SIGKILL);
  left_.push_back(*std::exchange(process_, std::nullopt));
}

void GpuWatch::hear() {
  std::array<char, 65536> block{};
  ssize_t got = 0;
  while (from_ && (got = ::read(from_.get(), block.data(), block.size())) > 0) {
    text_.append(block.data(), static_cast<std::size_t>(got));
    if (text_.size() > kMostText) text_.clear();
  }
  for (std::size_t at; (at = text_.find('\n')) != std::string::npos; text_.erase(0, at + 1)) {
    service::GpuStatuses said;
    if (!google::protobuf::util::JsonStringToMessage(text_.substr(0, at), &said).ok()) continue;
    newest_.assign(said.gpus().begin(), said.gpus().end());
    heard_ = now();
    ++sample_;
  }
}

std::vector<service::GpuStatus> GpuWatch::look(int workers) {
  std::erase_if(left_, [](const ProcessId& child) { return poll_exit(child).has_value(); });
  auto wanted = devices_of(resources_, visible_devices(), workers);
  if (!wanted) return {};  // nor can any worker be
  if (*wanted != devices_) {
    end();
    newest_.clear();
    devices_ = *std::move(wanted);
    if (!devices_.empty()) begin();
  }
  if (devices_.empty()) return {};
  hear();
  if (process_ && poll_exit(*process_)) {
    hear();  // what it has said since
    process_.reset();
    end();
  }
  if (now() - std::max(begun_, heard_) > kPause) {
    end();
    // What one hangs in, in the kernel, the next would hang in too.
    if (left_.empty()) begin();
  }
  std::vector<service::GpuStatus> out = newest_;
  for (service::GpuStatus& gpu : out) {
    gpu.set_sample(sample_);
    gpu.set_age_seconds(seconds(now() - heard_));
  }
  return out;
}

int sample_gpus(const std::string& devices, int life, int to) {
  std::set<DeviceName> wanted;
  for (std::size_t start = 0; start <= devices.size();) {
    const std::size_t comma = std::min(devices.find(',', start), devices.size());
    wanted.insert(device_shown(devices.substr(start, comma - start)));
    start = comma + 1;
  }
  GpuSampler sampler;
  for (;;) {
    service::GpuStatuses samples;
    bool any = false;
    for (service::GpuStatus& sample : sampler.look(wanted)) {
      any = any || sample.fault().empty();
      *samples.add_gpus() = std::move(sample);
    }
    std::string line;
    if (!google::protobuf::util::MessageToJsonString(samples, &line).ok()) return 66;
    line += '\n';
    // Short of a pipe's room, or nobody has read for minutes.
    if (::write(to, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return 0;
    // The driver may have been loaded anew under the library, which only another process sees.
    if (!any) return 0;
    pollfd gone{life, POLLIN, 0};
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(kGpuInterval);
    if (::poll(&gone, 1, static_cast<int>(pause.count())) != 0) return 0;
  }
}

}  // namespace surefoot
