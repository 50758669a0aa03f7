// Multipart uploads of S3Store: parts in flight, their end, and what was left behind.
#include <algorithm>

#include "checkpoint/store/s3/hashing.h"
#include "checkpoint/store/s3/replies.h"
#include "checkpoint/store/s3/s3_store.h"
#include "common/ids.h"
#include "common/log.h"

namespace surefoot::s3 {
namespace {

constexpr std::int64_t kMaxParts = 10000;  // of S3
constexpr std::int64_t kMiB = 1 << 20;
// Arbitrary, as in list().
constexpr int kMaxPages = 1000;
// Arbitrary. Aborts are small requests; what takes longer is tried again later.
constexpr Duration kAbortTime = std::chrono::seconds(3);
// Arbitrary. Clearing happens while somebody waits for what comes next, and can wait itself.
constexpr Duration kClearingTime = std::chrono::seconds(5);
// Services put the parts of a large object together without a word.
constexpr Duration kCompleteStall = std::chrono::minutes(3);
constexpr const char* kCrc32Header = "x-amz-checksum-crc32";

// What add_checksum() has put into it; empty: another checksum.
std::string crc32_of(const Request& request) {
  for (const auto& [name, value] : request.headers)
    if (name == kCrc32Header) return value;
  return "";
}

// Of all parts but the last.
std::int64_t part_bytes_for(std::int64_t bytes, std::int64_t wanted) {
  const std::int64_t least = (bytes + kMaxParts - 1) / kMaxParts;
  return std::max(wanted, (least + kMiB - 1) / kMiB * kMiB);
}

// Cuts a source into parts, whatever its pieces are.
class PartCutter {
 public:
  explicit PartCutter(const ByteSource& source) : source_(source) {}

  // Fills `part` to its size, or less at the end of the source.
  Status fill(std::vector<std::byte>& part) {
    std::size_t filled = 0;
    while (filled < part.size()) {
      if (rest_.empty()) {
        SUREFOOT_ASSIGN(rest_, source_());
        if (rest_.empty()) break;
      }
      const std::size_t taken = std::min(rest_.size(), part.size() - filled);
      std::copy_n(rest_.begin(), taken, part.begin() + static_cast<std::ptrdiff_t>(filled));
      rest_ = rest_.subspan(taken);
      filled += taken;
    }
    part.resize(filled);
    return {};
  }
  // Is the source at its end?
  Result<bool> is_empty() {
    if (rest_.empty()) {
      SUREFOOT_ASSIGN(rest_, source_());
    }
    return rest_.empty();
  }

 private:
  const ByteSource& source_;
  std::span<const std::byte> rest_;
};

}  // namespace

Result<std::string> S3Store::initiate(const std::string& key, const std::string& write_id,
                                      Time deadline) {
  Request start = request("POST", key, "begin to write", deadline);
  start.query = {{"uploads", ""}};
  start.headers.emplace_back("x-amz-meta-surefoot-write", write_id);
  // AWS takes checksums of parts only where they were announced.
  if (options_.checksum == Checksum::kCrc32)
    start.headers.emplace_back("x-amz-checksum-algorithm", "CRC32");
  const Finished finished = client_.perform(std::move(start));
  if (!finished.answer) return finished.answer.error();
  auto upload = parse_initiated(finished.answer->text);
  if (!upload)
    return error(Code::kRetry, "cannot write s3://{}/{}: {}", options_.bucket, key,
                 upload.error().message);
  return upload;
}

Request S3Store::part_request(const std::string& key, const std::string& upload,
                              std::int64_t number, Body body, Time deadline) const {
  Request part = request("PUT", key, "write a part of", deadline);
  part.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}};
  part.body = body;
  add_checksum(part);
  return part;
}

Result<std::vector<UploadedPart>> S3Store::send_parts(const std::string& key,
                                                      const std::string& upload, std::int64_t bytes,
                                                      const ByteSource& source, Time deadline) {
  struct Part {
    std::int64_t number;
    std::vector<std::byte> bytes;
    Client::Id id;
  };
  const std::int64_t part_bytes = part_bytes_for(bytes, options_.part_bytes);
  const std::int64_t count = (bytes + part_bytes - 1) / part_bytes;
  const auto most = static_cast<std::size_t>(
      std::max<std::int64_t>(1, options_.part_bytes * options_.parallel / part_bytes));
  std::vector<UploadedPart> uploaded(static_cast<std::size_t>(count));
  PartCutter cutter(source);
  std::vector<Part> parts;
  std::vector<std::vector<std::byte>> buffers;
  std::int64_t number = 0;
  Status status;
  while (status && (number < count || !parts.empty())) {
    if (number < count && parts.size() < most) {
      Part part{++number, {}, 0};
      if (!buffers.empty()) {
        part.bytes = std::move(buffers.back());
        buffers.pop_back();
      }
      part.bytes.resize(
          static_cast<std::size_t>(std::min(part_bytes, bytes - (number - 1) * part_bytes)));
      const std::size_t expected = part.bytes.size();
      status = cutter.fill(part.bytes);
      if (!status) break;
      SUREFOOT_CHECK(part.bytes.size() == expected);
      Request request = part_request(key, upload, number, part.bytes, deadline);
      uploaded[static_cast<std::size_t>(number - 1)].crc32 = crc32_of(request);
      part.id = client_.start(std::move(request));
      parts.push_back(std::move(part));
      continue;
    }
    std::vector<Client::Id> ids;
    for (const Part& part : parts) ids.push_back(part.id);
    const Finished finished = client_.wait_any(ids);
    const auto done = std::find_if(parts.begin(), parts.end(),
                                   [&](const Part& part) { return part.id == finished.id; });
    if (!finished.answer) {
      status = finished.answer.error();
    } else {
      std::string& etag = uploaded[static_cast<std::size_t>(done->number - 1)].etag;
      etag = finished.answer->header("etag");
      if (etag.empty())
        status = error(Code::kInvalid, "cannot write s3://{}/{}: a part was given no ETag",
                       options_.bucket, key);
    }
    buffers.push_back(std::move(done->bytes));
    parts.erase(done);
  }
  for (const Part& part : parts) client_.cancel(part.id);
  SUREFOOT_TRY(std::move(status));
  SUREFOOT_ASSIGN(const bool at_end, cutter.is_empty());
  SUREFOOT_CHECK(at_end);
  return uploaded;
}

Finished S3Store::complete(const std::string& key, const std::string& upload,
                           const std::vector<UploadedPart>& parts, bool conditional,
                           Time deadline) {
  const std::string body = complete_body(parts);
  Request finish = request("POST", key, "finish", deadline);
  finish.query = {{"uploadId", upload}};
  finish.body = as_bytes(body);
  finish.root = "CompleteMultipartUploadResult";
  finish.stall_timeout = std::max(kCompleteStall, options_.client.http.stall_timeout);
  if (conditional) finish.headers.emplace_back("if-none-match", "*");
  return client_.perform(std::move(finish));
}

Status S3Store::put_large(const std::string& name, std::int64_t bytes, const ByteSource& source,
                          Time deadline) {
  const std::string at = key(name);
  SUREFOOT_ASSIGN(const bool conditional, honours_complete(deadline));
  // With a condition too: better than to send it all in vain.
  SUREFOOT_ASSIGN(const Standing before, look(at, deadline));
  if (before.there) return error(Code::kExists, "{}/{} is there already", url(), name);
  const std::string write_id = make_job_id();
  SUREFOOT_ASSIGN(const std::string upload, initiate(at, write_id, deadline));
  auto parts = send_parts(at, upload, bytes, source, deadline);
  if (!parts) {
    abort(at, upload);
    // Whoever has written it meanwhile has aborted our upload.
    if (parts.error().code == Code::kRetry) {
      const auto after = look(at, deadline);
      if (after && after->there) return error(Code::kExists, "{}/{} is there already", url(), name);
    }
    return std::move(parts).error();
  }
  const Finished finished = complete(at, upload, *parts, conditional, deadline);
  Status settled = settle_put(at, write_id, conditional, finished, deadline);
  // Where nobody knows, it may be completed still.
  if (!finished.answer && !settled && settled.error().code != Code::kOutcomeUnknown)
    abort(at, upload);
  if (settled) abort_others(at, deadline);
  clear_left_behind(deadline);
  return settled;
}

void S3Store::abort(const std::string& key, const std::string& upload) {
  to_abort_.emplace_back(key, upload);
  abort_all(now() + kAbortTime);
}

void S3Store::abort_others(const std::string& key, Time deadline) {
  if (!can_list_uploads_) return;
  const auto others = orphans(key, true, std::min(deadline, now() + kClearingTime));
  if (!others) return;  // said by clear_left_behind(), which asks for the same
  for (const auto& [other, upload] : *others)
    if (other == key) to_abort_.emplace_back(other, upload);
}

void S3Store::abort_all(Time until) {
  Uploads left;
  for (const auto& [one, id] : std::exchange(to_abort_, {})) {
    Request abort = request("DELETE", one, "abort an upload of", until);
    abort.query = {{"uploadId", id}};
    const Finished finished = client_.perform(std::move(abort));
    if (!finished.answer && finished.answer.error().code == Code::kRetry && finished.status != 404)
      left.emplace_back(one, id);
  }
  to_abort_ = std::move(left);
}

Result<bool> S3Store::honours_complete(Time deadline) {
  const auto write = [&](const std::string& probe, Body body, bool conditional) -> Finished {
    const auto failed = [](const Error& why) {
      Finished finished;
      finished.answer = why;
      return finished;
    };
    auto upload = initiate(probe, "probe", deadline);
    if (!upload) return failed(upload.error());
    Request request = part_request(probe, *upload, 1, body, deadline);
    const std::string crc32 = crc32_of(request);
    Finished finished = client_.perform(std::move(request));
    if (finished.answer)
      finished = complete(probe, *upload, {{finished.answer->header("etag"), crc32}}, conditional,
                          deadline);
    if (!finished.answer) abort(probe, *upload);
    return finished;
  };
  return honours(honours_complete_, "put-if-absent for multipart uploads", write, deadline);
}

bool S3Store::is_old(std::int64_t time_s, std::int64_t now_s) const {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(options_.orphan_age);
  return now_s >= 0 && now_s - time_s >= age.count();
}

Result<bool> S3Store::is_untouched(const std::string& key, const std::string& upload,
                                   Time deadline) {
  PartPage page;
  for (int i = 0; i < kMaxPages; ++i) {
    Request parts = request("GET", key, "look at an upload of", deadline);
    parts.query = {{"uploadId", upload}, {"max-parts", "1000"}};
    if (!page.next.empty()) parts.query.emplace_back("part-number-marker", page.next);
    const Finished finished = client_.perform(std::move(parts));
    if (!finished.answer) return finished.answer.error();
    SUREFOOT_ASSIGN(page, parse_parts(finished.answer->text));
    const std::int64_t now_s = parse_http_date(finished.answer->header("date"));
    if (!is_old(page.newest_s, now_s)) return false;
    if (page.next.empty()) return true;
  }
  return false;
}

Result<S3Store::Uploads> S3Store::orphans(const std::string& key_prefix, bool of_any_age,
                                          Time deadline) {
  Uploads found;
  UploadPage page;
  for (int i = 0; i < kMaxPages; ++i) {
    Request list = request("GET", "", "list the uploads of", deadline);
    list.query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", key_prefix}};
    if (!page.next_key.empty()) {
      list.query.emplace_back("key-marker", page.next_key);
      list.query.emplace_back("upload-id-marker", page.next_id);
    }
    const Finished finished = client_.perform(std::move(list));
    if (!finished.answer) return finished.answer.error();
    SUREFOOT_ASSIGN(page, parse_uploads(finished.answer->text));
    const std::int64_t now_s = parse_http_date(finished.answer->header("date"));
    for (const ListedUpload& upload : page.uploads) {
      if (!upload.key.starts_with(key_prefix)) continue;
      if (of_any_age) {
        found.emplace_back(upload.key, upload.id);
      } else if (is_old(upload.initiated_s, now_s)) {
        SUREFOOT_ASSIGN(const bool untouched, is_untouched(upload.key, upload.id, deadline));
        if (untouched) found.emplace_back(upload.key, upload.id);
      }
    }
    if (page.next_key.empty()) return found;
  }
  return found;
}

void S3Store::clear_left_behind(Time deadline) {
  deadline = std::min(deadline, now() + kClearingTime);
  if (const auto probes = list_all(std::string(kTemporary), deadline)) {
    for (const ObjectInfo& probe : *probes)
      if (probe.age >= options_.orphan_age) (void)remove(probe.name, deadline);
  }
  abort_all(deadline);
  if (!can_list_uploads_) return;
  const auto found = orphans(key(""), false, deadline);
  if (!found) {
    if (found.error().code == Code::kInvalid) {
      can_list_uploads_ = false;
      spdlog::warn("uploads that were left behind are not found: {}", found.error().message);
    }
    return;
  }
  for (const auto& [key, upload] : *found) {
    spdlog::info("aborting an upload of s3://{}/{} that was left behind", options_.bucket, key);
    to_abort_.emplace_back(key, upload);
  }
  abort_all(deadline);
}

}  // namespace surefoot::s3
