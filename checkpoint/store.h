// The port to where checkpoints lie: named objects, written once.
//
// Names are relative, parts separated by '/': "step-00000000020/manifest.json". An object appears
// whole or not at all; after a successful put it survives a crash of the machine. Used by the
// service and by the command line; one thread at a time per object of this class. Every call blocks
// on the store, until `deadline` at the longest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/digest.h"
#include "common/status.h"

namespace surefoot {

inline constexpr std::size_t kMaxPieceBytes = 4 << 20;

struct ObjectInfo {
  std::string name;
  std::int64_t bytes = 0;
  Duration age{};  // since last modified, by the store's clock; only good against long intervals
};

// Produces the next piece of an object, at most 4 MiB, valid until the next call; empty: end.
using ByteSource = std::function<Result<std::span<const std::byte>>()>;

class Store {
 public:
  virtual ~Store() = default;

  // kExists: an object of that name stands there (whoever wrote it). kOutcomeUnknown: it may or may
  // not appear. kNoSpace, kRetry: it will not appear.
  virtual Status put_if_absent(const std::string& name, std::int64_t bytes,
                               const ByteSource& source, Time deadline) = 0;
  // Reads [offset, offset + into.size()), past the page cache where the store has one. kNotFound;
  // kCorrupt: shorter than that.
  virtual Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
                      Time deadline) = 0;
  // All objects whose name starts with `prefix`, sorted by name. Whole, or an error.
  virtual Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) = 0;
  // Absent already: fine.
  virtual Status remove(const std::string& name, Time deadline) = 0;
  [[nodiscard]] virtual std::string url() const = 0;  // for messages: "file:///..."
};

// A small object from memory, and one read whole (refused over `limit` bytes).
Status put_if_absent(Store& store, const std::string& name, std::string_view content,
                     Time deadline);
[[nodiscard]] Result<std::string> read_object(Store& store, const std::string& name,
                                              std::int64_t limit, Time deadline);

}  // namespace surefoot
