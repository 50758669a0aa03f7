#include "checkpoint/testing/memory_file_ops.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace surefoot::testing {

MemoryFileOps::MemoryFileOps() {
  make_node(true);
}

MemoryFileOps::MemoryFileOps(const MemoryFileOps& other) : nodes_(other.nodes_), now_(other.now_) {
  // Bytes are shared until somebody writes; write() makes its own copy then.
}

void MemoryFileOps::fail_at(int operation, Fault fault, int error_number) {
  operations_ = 0;
  fail_at_ = operation;
  fault_ = fault;
  errno_ = error_number;
  fired_ = false;
}

void MemoryFileOps::heal() {
  fail_at(0, Fault::kNone);
}

template <class Effect>
std::int64_t MemoryFileOps::operate(const Effect& effect) {
  ++operations_;
  const bool now = fault_ != Fault::kNone && operations_ == fail_at_;
  const bool crashed = fault_ == Fault::kCrash && operations_ > fail_at_;
  fired_ = fired_ || now;
  if (crashed) return -EIO;
  if (!now || fault_ == Fault::kShort) return effect();
  if (fault_ == Fault::kError) return -errno_;
  // A crash in the middle of an operation: it may have reached the disk or not.
  if (fault_ == Fault::kErrorAfter || random_() % 2 == 0) (void)effect();
  return -errno_;
}

void MemoryFileOps::reboot(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  open_.clear();
  for (Node& node : nodes_) {
    std::map<std::string, int> entries = node.synced_entries;
    for (const auto& [name, child] : node.entries) {
      if (!node.synced_entries.contains(name) && random() % 2 == 0) entries[name] = child;
    }
    for (const auto& [name, child] : node.synced_entries) {
      const auto live = node.entries.find(name);
      if (live != node.entries.end() && live->second == child) continue;
      if (random() % 2 == 0) continue;
      entries.erase(name);
      if (live != node.entries.end()) entries[name] = live->second;
    }
    node.entries = node.synced_entries = std::move(entries);
    if (*node.data != *node.synced) {
      auto left = std::make_shared<Bytes>(*node.data);
      const std::size_t size = left->size();
      if (random() % 3 != 0) {
        left->resize(random() % (size + 1));
      } else if (size > 0) {
        const std::size_t from = random() % size;
        std::fill(left->begin() + static_cast<std::ptrdiff_t>(from),
                  left->begin() + static_cast<std::ptrdiff_t>(std::min(size, from + 4096)),
                  std::byte{0});
      }
      node.data = left;
    }
    node.synced = node.data;
  }
  heal();
}

int MemoryFileOps::make_node(bool folder) {
  nodes_.emplace_back();
  nodes_.back().folder = folder;
  nodes_.back().modified = now_;
  return static_cast<int>(nodes_.size()) - 1;
}

int MemoryFileOps::find(const std::string& path) const {
  int node = 0;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t begin = path.find_first_not_of('/', at);
    if (begin == std::string::npos) break;
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const auto& entries = nodes_[static_cast<std::size_t>(node)].entries;
    const auto found = entries.find(path.substr(begin, end - begin));
    if (found == entries.end()) return -1;
    node = found->second;
    at = end;
  }
  return node;
}

int MemoryFileOps::folder_of(const std::string& path, std::string& name) const {
  const std::size_t slash = path.rfind('/');
  name = path.substr(slash + 1);
  return find(path.substr(0, slash));
}

std::vector<std::string> MemoryFileOps::files() const {
  std::vector<std::string> all;
  std::vector<std::pair<int, std::string>> todo{{0, ""}};
  while (!todo.empty()) {
    const auto [node, path] = todo.back();
    todo.pop_back();
    for (const auto& [name, child] : nodes_[static_cast<std::size_t>(node)].entries) {
      if (nodes_[static_cast<std::size_t>(child)].folder) {
        todo.emplace_back(child, path + "/" + name);
      } else {
        all.push_back(path + "/" + name);
      }
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::int64_t MemoryFileOps::open(const std::string& path, Open how) {
  return operate([&]() -> std::int64_t {
    int node = find(path);
    if (how == Open::kCreate) {
      if (node >= 0) return -EEXIST;
      std::string name;
      const int folder = folder_of(path, name);
      if (folder < 0) return -ENOENT;
      node = make_node(false);
      nodes_[static_cast<std::size_t>(folder)].entries[name] = node;
    }
    if (node < 0) return -ENOENT;
    open_[next_fd_] = node;
    return next_fd_++;
  });
}

void MemoryFileOps::append(Node& node, std::span<const std::byte> bytes) {
  if (node.data.use_count() > 1) node.data = std::make_shared<Bytes>(*node.data);
  node.data->insert(node.data->end(), bytes.begin(), bytes.end());
  node.modified = now_;
}

std::int64_t MemoryFileOps::write(int fd, std::span<const std::byte> bytes) {
  // An error in the middle leaves some of the bytes.
  if (fault_ == Fault::kError && operations_ + 1 == fail_at_) {
    append(nodes_[static_cast<std::size_t>(open_.at(fd))], bytes.first(bytes.size() / 2));
  }
  return operate([&]() -> std::int64_t {
    const auto found = open_.find(fd);
    if (found == open_.end()) return -EBADF;
    Node& node = nodes_[static_cast<std::size_t>(found->second)];
    const auto taken = halve() ? bytes.first((bytes.size() + 1) / 2) : bytes;
    append(node, taken);
    return static_cast<std::int64_t>(taken.size());
  });
}

std::int64_t MemoryFileOps::read(int fd, std::int64_t offset, std::span<std::byte> into) {
  return operate([&]() -> std::int64_t {
    const auto found = open_.find(fd);
    if (found == open_.end()) return -EBADF;
    const Bytes& data = *nodes_[static_cast<std::size_t>(found->second)].data;
    const auto from = std::min(static_cast<std::size_t>(offset), data.size());
    std::size_t count = std::min(into.size(), data.size() - from);
    if (halve()) count = (count + 1) / 2;
    if (count > 0) std::memcpy(into.data(), data.data() + from, count);
    return static_cast<std::int64_t>(count);
  });
}

std::int64_t MemoryFileOps::sync(int fd) {
  return operate([&]() -> std::int64_t {
    const auto found = open_.find(fd);
    if (found == open_.end()) return -EBADF;
    Node& node = nodes_[static_cast<std::size_t>(found->second)];
    node.synced = node.data;
    node.synced_entries = node.entries;
    return 0;
  });
}

void MemoryFileOps::close(int fd) {
  open_.erase(fd);
}

std::int64_t MemoryFileOps::link(const std::string& from, const std::string& to) {
  return operate([&]() -> std::int64_t {
    const int node = find(from);
    std::string name;
    const int folder = folder_of(to, name);
    if (node < 0 || folder < 0) return -ENOENT;
    if (find(to) >= 0) return -EEXIST;
    nodes_[static_cast<std::size_t>(folder)].entries[name] = node;
    return 0;
  });
}

std::int64_t MemoryFileOps::remove(const std::string& path) {
  return operate([&]() -> std::int64_t {
    const int node = find(path);
    if (node < 0) return -ENOENT;
    if (!nodes_[static_cast<std::size_t>(node)].entries.empty()) return -ENOTEMPTY;
    std::string name;
    const int folder = folder_of(path, name);
    nodes_[static_cast<std::size_t>(folder)].entries.erase(name);
    return 0;
  });
}

std::int64_t MemoryFileOps::make_folder(const std::string& path) {
  return operate([&]() -> std::int64_t {
    if (find(path) >= 0) return -EEXIST;
    std::string name;
    const int folder = folder_of(path, name);
    if (folder < 0) return -ENOENT;
    const int node = make_node(true);
    nodes_[static_cast<std::size_t>(folder)].entries[name] = node;
    return 0;
  });
}

std::int64_t MemoryFileOps::list(const std::string& path, std::vector<FolderEntry>& into) {
  return operate([&]() -> std::int64_t {
    const int node = find(path);
    if (node < 0) return -ENOENT;
    for (const auto& [name, child] : nodes_[static_cast<std::size_t>(node)].entries) {
      const Node& entry = nodes_[static_cast<std::size_t>(child)];
      into.push_back({name, entry.folder, static_cast<std::int64_t>(entry.data->size()),
                      now_ - entry.modified});
    }
    return 0;
  });
}

}  // namespace surefoot::testing
