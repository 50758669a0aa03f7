// Reads ranges of objects: large ones in parallel pieces, those that follow each other ahead of
// being asked for. Owned by S3Store; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "checkpoint/store/s3/client.h"

namespace surefoot::s3 {

class Reader {
 public:
  // `piece_bytes`: of which size the pieces of a large range are; `parallel` of them at once.
  Reader(Client& client, std::int64_t piece_bytes, int parallel)
      : client_(client), piece_bytes_(piece_bytes), parallel_(parallel) {}

  // kNotFound; kCorrupt: the object ends before the range does.
  Status read(const std::string& key, std::int64_t offset, std::span<std::byte> into,
              Time deadline);
  // Nothing that was read ahead is used any more.
  void forget();

 private:
  struct Ahead {
    std::int64_t offset = 0;
    std::vector<std::byte> bytes;
    Client::Id id = 0;
  };
  [[nodiscard]] Request range(const std::string& key, std::int64_t offset,
                              std::span<std::byte> into, Time deadline) const;
  // Is it the range that was asked for? Learns the object's size.
  Status check(const std::string& key, std::int64_t offset, std::size_t asked,
               const Finished& finished);
  Status read_one(const std::string& key, std::int64_t offset, std::span<std::byte> into,
                  Time deadline);
  Status read_in_parallel(const std::string& key, std::int64_t offset, std::span<std::byte> into,
                          Time deadline);
  void read_ahead(std::int64_t bytes, Time deadline);
  void drop_ahead();

  Client& client_;
  std::int64_t piece_bytes_;
  int parallel_;
  // The object that was read last, up to where, and how large it is.
  std::string key_;
  std::int64_t next_ = -1;
  std::int64_t total_ = 0;
  std::deque<Ahead> ahead_;
  Time ahead_deadline_ = Time::max();            // of those
  std::vector<std::vector<std::byte>> buffers_;  // to be used again: fresh memory costs page faults
};

}  // namespace surefoot::s3
