// A file system in memory whose Nth operation fails, and which can lose what was not synced.
//
// Fault model. Nothing fails until fail_at(n, ...) is set; operations are counted from 1 by each
// call but close().
//   kError       the Nth operation fails with the given errno and has no effect (a write may have
//   taken half of its bytes) kErrorAfter  the Nth operation takes effect and fails all the same
//   kShort       the Nth operation, if it writes or reads, does only half of it
//   kCrash       the Nth operation and all later ones fail with EIO; then reboot(seed)
// reboot: of every change not synced since, each may be there or not, at the seed's choice: entries
// of a folder one by one; of a file that was not synced any prefix, or all of it with a block of
// zeros in it. An operation that was cut off by the crash counts as a change not synced.
#pragma once

#include <cerrno>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/store/file/file_ops.h"

namespace surefoot::testing {

class MemoryFileOps : public FileOps {
 public:
  enum class Fault { kNone, kError, kErrorAfter, kShort, kCrash };

  MemoryFileOps();
  // A second disk with the same content: nothing is shared. Open files and faults are not copied.
  MemoryFileOps(const MemoryFileOps& other);
  MemoryFileOps& operator=(const MemoryFileOps&) = delete;

  void fail_at(int operation, Fault fault, int error_number = EIO);
  void heal();  // no fault from now on; counts from 1 again
  [[nodiscard]] int operations() const { return operations_; }
  [[nodiscard]] bool fired() const { return fired_; }
  void reboot(std::uint64_t seed);
  void pass(Duration time) { now_ += time; }
  [[nodiscard]] std::vector<std::string> files() const;  // full paths of all files

  std::int64_t open(const std::string& path, Open how) override;
  std::int64_t write(int fd, std::span<const std::byte> bytes) override;
  std::int64_t read(int fd, std::int64_t offset, std::span<std::byte> into) override;
  std::int64_t sync(int fd) override;
  void close(int fd) override;
  std::int64_t link(const std::string& from, const std::string& to) override;
  std::int64_t remove(const std::string& path) override;
  std::int64_t make_folder(const std::string& path) override;
  std::int64_t list(const std::string& path, std::vector<FolderEntry>& into) override;
  [[nodiscard]] int open_files() const { return static_cast<int>(open_.size()); }

 private:
  using Bytes = std::vector<std::byte>;
  struct Node {
    bool folder = false;
    std::shared_ptr<Bytes> data = std::make_shared<Bytes>();    // of a file
    std::shared_ptr<Bytes> synced = std::make_shared<Bytes>();  // what a crash leaves for sure
    std::map<std::string, int> entries;                         // of a folder
    std::map<std::string, int> synced_entries;
    Duration modified{};
  };
  // Does `effect` unless the fault says otherwise; its result, or the fault's error.
  template <class Effect>
  std::int64_t operate(const Effect& effect);
  [[nodiscard]] bool halve() const { return fault_ == Fault::kShort && operations_ == fail_at_; }
  [[nodiscard]] int find(const std::string& path) const;  // -1: not there
  // The folder that holds the last name of `path`; -1: not there.
  [[nodiscard]] int folder_of(const std::string& path, std::string& name) const;
  int make_node(bool folder);
  void append(Node& node, std::span<const std::byte> bytes);

  std::vector<Node> nodes_;
  std::map<int, int> open_;  // fd -> node
  int next_fd_ = 3;
  Duration now_{};
  int operations_ = 0;
  int fail_at_ = 0;
  Fault fault_ = Fault::kNone;
  int errno_ = EIO;
  bool fired_ = false;
  std::mt19937_64 random_{1};
};

}  // namespace surefoot::testing
