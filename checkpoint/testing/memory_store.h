// A Store in memory, for tests of what stands above the port. Every operation is atomic and durable
// at once.
//
// Fault model: none by itself; damage() changes bytes of an object, as a disk would.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/store.h"

namespace surefoot::testing {

class MemoryStore : public Store {
 public:
  Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                       Time deadline) override {
    std::vector<std::byte> content;
    for (;;) {
      if (now() >= deadline) return error(Code::kRetry, "deadline passed");
      SUREFOOT_ASSIGN(const auto piece, source());
      if (piece.empty()) break;
      content.insert(content.end(), piece.begin(), piece.end());
    }
    SUREFOOT_CHECK(static_cast<std::int64_t>(content.size()) == bytes);
    if (!objects_.emplace(name, Object{std::move(content), Duration::zero()}).second)
      return error(Code::kExists, "{} is there already", name);
    return {};
  }
  Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
              Time deadline) override {
    if (now() >= deadline) return error(Code::kRetry, "deadline passed");
    const auto found = objects_.find(name);
    if (found == objects_.end()) return error(Code::kNotFound, "{} is not there", name);
    const auto& content = found->second.content;
    if (static_cast<std::size_t>(offset) + into.size() > content.size())
      return error(Code::kCorrupt, "{} ends at byte {}", name, content.size());
    if (!into.empty()) std::memcpy(into.data(), content.data() + offset, into.size());
    return {};
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override {
    if (now() >= deadline) return error(Code::kRetry, "deadline passed");
    std::vector<ObjectInfo> found;
    for (const auto& [name, object] : objects_) {
      if (name.starts_with(prefix))
        found.push_back({name, static_cast<std::int64_t>(object.content.size()), object.age});
    }
    return found;
  }
  Status remove(const std::string& name, Time deadline) override {
    if (now() >= deadline) return error(Code::kRetry, "deadline passed");
    objects_.erase(name);
    return {};
  }
  [[nodiscard]] std::string url() const override { return "memory://test"; }

  // For tests.
  void age(Duration by) {
    for (auto& [name, object] : objects_) object.age += by;
  }
  [[nodiscard]] std::vector<std::byte>& bytes(const std::string& name) {
    return objects_.at(name).content;
  }
  void set(const std::string& name, std::vector<std::byte> content) {
    objects_[name] = {std::move(content), Duration::zero()};
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, object] : objects_) all.push_back(name);
    return all;
  }

 private:
  struct Object {
    std::vector<std::byte> content;
    Duration age{};
  };
  std::map<std::string, Object> objects_;
};

}  // namespace surefoot::testing
