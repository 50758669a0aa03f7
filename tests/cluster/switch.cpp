#include "tests/cluster/switch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace surefoot::cluster {
namespace {

constexpr std::size_t kMaxFrameBytes = 66000;  // more than the devices' MTU and a header
constexpr int kFramesATurn = 32;               // arbitrary: other ports want a turn too
constexpr std::size_t kHeaderBytes = 14;       // two addresses and a type

}  // namespace

MacAddress mac_of(int port) {
  return {0x02, 0, 0, 0, static_cast<std::uint8_t>(port >> 8), static_cast<std::uint8_t>(port)};
}

void Switch::plug(int port, Fd fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  ports_[port] = std::move(fd);
}

void Switch::unplug(int port) {
  ports_.erase(port);
}

void Switch::impair(int port, const Impairment& impairment) {
  impairments_[port] = impairment;
}

void Switch::cut(int from, int to) {
  cuts_.emplace(from, to);
}

void Switch::heal(int port) {
  std::erase_if(
      cuts_, [&](const auto& cut) { return port < 0 || cut.first == port || cut.second == port; });
}

std::vector<std::pair<int, int>> Switch::ports() const {
  std::vector<std::pair<int, int>> all;
  for (const auto& [port, end] : ports_) all.emplace_back(port, end.get());
  return all;
}

void Switch::forward(int port, Time at) {
  static thread_local std::array<std::byte, kMaxFrameBytes> buffer;
  for (int i = 0; i < kFramesATurn; ++i) {
    const auto source = ports_.find(port);
    if (source == ports_.end()) return;
    const ssize_t bytes = ::read(source->second.get(), buffer.data(), buffer.size());
    if (bytes < static_cast<ssize_t>(kHeaderBytes)) return;
    const std::span<const std::byte> frame(buffer.data(), static_cast<std::size_t>(bytes));
    // The lowest bit of the first byte says that it is for everybody.
    const bool for_all = (std::to_integer<int>(frame[0]) & 1) != 0;
    for (const auto& [to, unused] : ports_) {
      const MacAddress mac = mac_of(to);
      if (to == port || (!for_all && std::memcmp(frame.data(), mac.data(), mac.size()) != 0))
        continue;
      send(port, to, frame, at);
    }
  }
}

bool Switch::is_cut(int from, int to) const {
  return cuts_.contains({from, to}) || cuts_.contains({from, -1}) || cuts_.contains({-1, to});
}

bool Switch::is_lost(const Impairment& impairment) {
  if (impairment.loss <= 0) return false;
  constexpr std::uint64_t kParts = 1'000'000;
  return random_() % kParts < static_cast<std::uint64_t>(impairment.loss * kParts);
}

void Switch::send(int from, int to, std::span<const std::byte> frame, Time at) {
  const Impairment& sending = impairments_[from];
  const Impairment& receiving = impairments_[to];
  if (is_lost(sending) || is_lost(receiving)) return;
  const Duration delay = sending.delay + receiving.delay;
  if (delay <= Duration::zero()) return write(from, to, frame);
  delayed_.push({at + delay, ++frames_, from, to, {frame.begin(), frame.end()}});
}

void Switch::write(int from, int to, std::span<const std::byte> frame) {
  const auto target = ports_.find(to);
  if (target == ports_.end() || is_cut(from, to)) return;
  // What does not fit is lost, as on any network.
  [[maybe_unused]] const ssize_t put = ::write(target->second.get(), frame.data(), frame.size());
}

Time Switch::deliver(Time at) {
  while (!delayed_.empty() && delayed_.top().due <= at) {
    const Delayed& next = delayed_.top();
    write(next.from, next.to, next.frame);
    delayed_.pop();
  }
  return delayed_.empty() ? Time::max() : delayed_.top().due;
}

}  // namespace surefoot::cluster
