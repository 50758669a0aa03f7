#include "collectives/collectives.h"

#include <fmt/format.h>

#include <array>

namespace surefoot {
namespace {

// Both below kMaxTag; messages with equal tags keep their order, so calls that follow each other do
// not mix.
constexpr int kSizeTag = kFirstReservedTag;
constexpr int kBytesTag = kFirstReservedTag + 1;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::span<std::byte> writable(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}
std::span<const std::byte> bytes_of(const std::uint64_t& value) {
  return std::as_bytes(std::span(&value, 1));
}
std::span<std::byte> writable(std::uint64_t& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

Result<std::vector<std::string>> all_gather(Communicator& communicator, std::string_view mine,
                                            Time deadline, std::string_view what) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto me = static_cast<std::size_t>(communicator.rank());
  std::vector<std::string> all(ranks);
  all[me] = std::string(mine);
  std::vector<std::uint64_t> sizes(ranks);
  sizes[me] = mine.size();
  // The sizes first; the own bytes are on their way meanwhile.
  std::vector<Request> small;
  std::vector<Request> rest;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    const int peer = static_cast<int>(rank);
    small.push_back(communicator.receive(writable(sizes[rank]), peer, kSizeTag));
    rest.push_back(communicator.send(bytes_of(sizes[me]), peer, kSizeTag));
    rest.push_back(communicator.send(bytes_of(all[me]), peer, kBytesTag));
  }
  SUREFOOT_TRY(communicator.wait(small, deadline, what));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank == me) continue;
    all[rank].resize(sizes[rank]);
    rest.push_back(communicator.receive(writable(all[rank]), static_cast<int>(rank), kBytesTag));
  }
  SUREFOOT_TRY(communicator.wait(rest, deadline, what));
  return all;
}

Result<std::string> broadcast(Communicator& communicator, std::string_view bytes, int root,
                              Time deadline, std::string_view what) {
  if (communicator.rank() != root) {
    std::uint64_t size = 0;
    const std::array<Request, 1> first{communicator.receive(writable(size), root, kSizeTag)};
    SUREFOOT_TRY(communicator.wait(first, deadline, what));
    std::string received(size, '\0');
    const std::array<Request, 1> second{communicator.receive(writable(received), root, kBytesTag)};
    SUREFOOT_TRY(communicator.wait(second, deadline, what));
    return received;
  }
  std::string own(bytes);
  const std::uint64_t size = own.size();
  std::vector<Request> requests;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == root) continue;
    requests.push_back(communicator.send(bytes_of(size), rank, kSizeTag));
    requests.push_back(communicator.send(bytes_of(own), rank, kBytesTag));
  }
  SUREFOOT_TRY(communicator.wait(requests, deadline, what));
  return own;
}

Status agree(Communicator& communicator, const Status& mine, Time deadline, std::string_view what) {
  // Empty: no error. Else one byte of code, then the message; both ends are the same build.
  std::string text;
  if (!mine)
    text = std::string(1, static_cast<char>('A' + static_cast<int>(mine.error().code))) +
           mine.error().message;
  SUREFOOT_ASSIGN(const auto all, all_gather(communicator, text, deadline, what));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return error(static_cast<Code>(all[rank][0] - 'A'), "rank {}: {}", rank,
                 std::string_view(all[rank]).substr(1));
  }
  return {};
}

}  // namespace surefoot
