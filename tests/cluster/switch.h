// The network between hosts: Ethernet frames go from port to port in this process.
//
// A port is a file descriptor on which one read or write is one frame: a host's tap device, or in
// tests a socket. Port i has the address 02:00:00:00:00:i. In user space, so that frames can be
// dropped and delayed on every kernel (many are built without netem), between any two hosts, in one
// direction only, and by a seed.
//
// One thread. Nothing here blocks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/file.h"

namespace surefoot::cluster {

using MacAddress = std::array<std::uint8_t, 6>;
[[nodiscard]] MacAddress mac_of(int port);

// What happens to each frame that a port sends or receives.
struct Impairment {
  Duration delay{};
  double loss = 0;  // share of frames that are dropped, 0 to 1
};

class Switch {
 public:
  explicit Switch(std::uint64_t seed) : random_(seed) {}

  void plug(int port, Fd fd);  // non-blocking from here on
  void unplug(int port);       // what is on its way to it is lost; cuts and impairments stay
  void impair(int port, const Impairment& impairment);
  // Frames from `from` to `to` are lost, without a word to anyone. -1: any port.
  void cut(int from, int to);
  // Takes back every cut that names this port; -1: all.
  void heal(int port);

  [[nodiscard]] std::vector<std::pair<int, int>> ports() const;  // port, file descriptor
  // Moves what `port` has sent, at most a few frames.
  void forward(int port, Time at);
  // Delivers what has waited long enough. Returns when the next is due; Time::max(): none.
  Time deliver(Time at);

 private:
  struct Delayed {
    Time due;
    std::uint64_t number = 0;  // of equal times the earlier goes first
    int from = 0;
    int to = 0;
    std::vector<std::byte> frame;
    friend bool operator>(const Delayed& a, const Delayed& b) {
      return std::pair(a.due, a.number) > std::pair(b.due, b.number);
    }
  };
  void send(int from, int to, std::span<const std::byte> frame, Time at);
  void write(int from, int to, std::span<const std::byte> frame);
  [[nodiscard]] bool is_cut(int from, int to) const;
  [[nodiscard]] bool is_lost(const Impairment& impairment);

  std::map<int, Fd> ports_;
  std::map<int, Impairment> impairments_;
  std::set<std::pair<int, int>> cuts_;
  std::priority_queue<Delayed, std::vector<Delayed>, std::greater<>> delayed_;
  std::uint64_t frames_ = 0;
  std::mt19937_64 random_;
};

}  // namespace surefoot::cluster
