#include "checkpoint/store/s3/reader.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/store/s3/replies.h"

namespace surefoot::s3 {
Request Reader::range(const std::string& key, std::int64_t offset, std::span<std::byte> into,
                      Time deadline) const {
  Request request;
  request.method = "GET";
  request.key = key;
  request.headers = {{"range", fmt::format("bytes={}-{}", offset,
                                           offset + static_cast<std::int64_t>(into.size()) - 1)}};
  request.into = into;
  request.what = "read";
  request.deadline = deadline;
  return request;
}

Status Reader::check(const std::string& key, std::int64_t offset, std::size_t asked,
                     const Finished& finished) {
  const auto short_of = [&](std::int64_t end) {
    return error(Code::kCorrupt, "s3://{}/{} ends at byte {}", client_.address().bucket(), key,
                 end);
  };
  if (!finished.answer) {
    if (finished.status == 416) return short_of(offset);
    return finished.answer.error();
  }
  const HttpAnswer& answer = *finished.answer;
  const auto received = static_cast<std::int64_t>(answer.received);
  const std::string header = answer.header("content-range");
  const auto range = parse_content_range(header);
  // A service that ignores Range sends the whole object; one that honours it may say 200 all the
  // same.
  const bool whole = header.empty() && answer.status == 200 && offset == 0;
  if (!whole && (!range || range->first != offset || range->last != offset + received - 1)) {
    return error(Code::kRetry,
                 "cannot read s3://{}/{} at {}: the answer is not the range asked for",
                 client_.address().bucket(), key, client_.address().host());
  }
  if (received < static_cast<std::int64_t>(asked)) return short_of(offset + received);
  total_ = whole ? received : range->total;
  return {};
}

Status Reader::read_one(const std::string& key, std::int64_t offset, std::span<std::byte> into,
                        Time deadline) {
  return check(key, offset, into.size(), client_.perform(range(key, offset, into, deadline)));
}

Status Reader::read_in_parallel(const std::string& key, std::int64_t offset,
                                std::span<std::byte> into, Time deadline) {
  struct Piece {
    Client::Id id;
    std::size_t at;
    std::size_t size;
  };
  std::vector<Piece> pieces;
  Status status;
  std::size_t at = 0;
  while (status && (at < into.size() || !pieces.empty())) {
    while (at < into.size() && pieces.size() < static_cast<std::size_t>(parallel_)) {
      const std::size_t size = std::min(into.size() - at, static_cast<std::size_t>(piece_bytes_));
      const auto start = offset + static_cast<std::int64_t>(at);
      pieces.push_back(
          {client_.start(range(key, start, into.subspan(at, size), deadline)), at, size});
      at += size;
    }
    std::vector<Client::Id> ids;
    for (const Piece& piece : pieces) ids.push_back(piece.id);
    const Finished finished = client_.wait_any(ids);
    const auto done = std::find_if(pieces.begin(), pieces.end(),
                                   [&](const Piece& piece) { return piece.id == finished.id; });
    status = check(key, offset + static_cast<std::int64_t>(done->at), done->size, finished);
    pieces.erase(done);
  }
  for (const Piece& piece : pieces) client_.cancel(piece.id);
  return status;
}

void Reader::read_ahead(std::int64_t bytes, Time deadline) {
  if (bytes > piece_bytes_) return;
  const auto end_of = [](const Ahead& piece) {
    return piece.offset + static_cast<std::int64_t>(piece.bytes.size());
  };
  std::int64_t from = ahead_.empty() ? next_ : end_of(ahead_.back());
  while (ahead_.size() < static_cast<std::size_t>(parallel_) && from < total_) {
    Ahead& piece = ahead_.emplace_back();
    piece.offset = from;
    if (!buffers_.empty()) {
      piece.bytes = std::move(buffers_.back());
      buffers_.pop_back();
    }
    piece.bytes.resize(static_cast<std::size_t>(std::min(bytes, total_ - from)));
    piece.id = client_.start(range(key_, from, piece.bytes, deadline));
    from = end_of(piece);
  }
}

void Reader::drop_ahead() {
  for (const Ahead& piece : ahead_) client_.cancel(piece.id);
  ahead_.clear();
}

void Reader::forget() {
  drop_ahead();
  buffers_.clear();
  key_.clear();
  next_ = -1;
}

Status Reader::read(const std::string& key, std::int64_t offset, std::span<std::byte> into,
                    Time deadline) {
  const auto bytes = static_cast<std::int64_t>(into.size());
  const bool follows = key == key_ && offset == next_;
  // The beginning of an object is always read anew.
  if (!follows || offset == 0) forget();
  if (ahead_deadline_ != deadline) drop_ahead();
  ahead_deadline_ = deadline;
  key_ = key;
  next_ = offset + bytes;
  Status status;
  if (!ahead_.empty() && ahead_.front().bytes.size() == into.size()) {
    Ahead piece = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead(bytes, deadline);
    status = check(key, offset, into.size(), client_.wait_any(std::span(&piece.id, 1)));
    if (status) std::memcpy(into.data(), piece.bytes.data(), into.size());
    buffers_.push_back(std::move(piece.bytes));
  } else {
    drop_ahead();
    status = bytes > piece_bytes_ ? read_in_parallel(key, offset, into, deadline)
                                  : read_one(key, offset, into, deadline);
    if (status && follows) read_ahead(bytes, deadline);
  }
  if (!status) forget();
  return status;
}

}  // namespace surefoot::s3
