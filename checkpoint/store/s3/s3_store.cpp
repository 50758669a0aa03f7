#include "checkpoint/store/s3/s3_store.h"

#include <algorithm>

#include "checkpoint/hex_digests.h"
#include "checkpoint/store/s3/hashing.h"
#include "checkpoint/store/s3/replies.h"
#include "common/ids.h"
#include "common/log.h"

namespace surefoot::s3 {
namespace {

// Arbitrary: ten million objects. A service that never stops is not believed.
constexpr int kMaxPages = 10000;
constexpr std::string_view kPageSize = "1000";  // the most that S3 gives

// All of `source`, which has exactly `bytes`.
Result<std::vector<std::byte>> take_all(const ByteSource& source, std::int64_t bytes) {
  std::vector<std::byte> content;
  content.reserve(static_cast<std::size_t>(bytes));
  for (;;) {
    SUREFOOT_ASSIGN(const auto piece, source());
    if (piece.empty()) break;
    content.insert(content.end(), piece.begin(), piece.end());
  }
  SUREFOOT_CHECK(static_cast<std::int64_t>(content.size()) == bytes);
  return content;
}

}  // namespace

S3Store::S3Store(S3Options options, Address address)
    : options_(std::move(options)),
      client_(std::move(address), options_.client),
      reader_(client_, options_.part_bytes, options_.parallel) {}

Result<std::unique_ptr<S3Store>> S3Store::open(S3Options options, bool read_only, Time deadline) {
  SUREFOOT_ASSIGN(Address address, Address::make(options.endpoint, options.region, options.bucket,
                                                 options.path_style));
  if (options.checksum == Checksum::kMd5) SUREFOOT_TRY(md5({}));
  options.client.region = options.region;
  // A proxy of the environment is for the way out of this machine.
  options.client.http.direct = is_loopback(address.endpoint());
  std::unique_ptr<S3Store> store(new S3Store(std::move(options), std::move(address)));
  Request look = store->request("GET", "", "list", deadline);
  look.query = {{"list-type", "2"}, {"max-keys", "1"}, {"prefix", store->key("")}};
  const Finished looked = store->client_.perform(std::move(look));
  if (!looked.answer) return looked.answer.error();
  if (!read_only) store->clear_left_behind(deadline);
  return store;
}

std::string S3Store::key(std::string_view name) const {
  return options_.prefix.empty() ? std::string(name) : fmt::format("{}/{}", options_.prefix, name);
}

std::string S3Store::url() const {
  return options_.prefix.empty() ? "s3://" + options_.bucket
                                 : "s3://" + options_.bucket + "/" + options_.prefix;
}

Request S3Store::request(const char* method, const std::string& key, const char* what,
                         Time deadline) const {
  Request request;
  request.method = method;
  request.key = key;
  request.what = what;
  request.deadline = deadline;
  return request;
}

Status S3Store::in_time(const std::string& name, Time deadline) const {
  if (now() < deadline) return {};
  return error(Code::kRetry, "{}/{}: the deadline has passed", url(), name);
}

void S3Store::add_checksum(Request& request) const {
  switch (options_.checksum) {
    case Checksum::kMd5: {
      const std::string digest = md5(request.body).value();  // open() has tried it
      request.headers.emplace_back("content-md5", base64(digest));
      request.etag = to_hex(digest);
      break;
    }
    case Checksum::kCrc32: {
      const std::uint32_t crc = crc32(request.body);
      std::string raw;
      for (const int shift : {24, 16, 8, 0}) raw += static_cast<char>(crc >> shift & 0xff);
      request.headers.emplace_back("x-amz-checksum-crc32", base64(raw));
      break;
    }
    case Checksum::kNone:
      break;
  }
}

Status S3Store::put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                              Time deadline) {
  SUREFOOT_TRY(in_time(name, deadline));
  reader_.forget();
  if (bytes > options_.part_bytes) return put_large(name, bytes, source, deadline);
  SUREFOOT_ASSIGN(const std::vector<std::byte> content, take_all(source, bytes));
  return put_small(name, content, deadline);
}

Finished S3Store::put(const std::string& key, Body body, const std::string& write_id,
                      bool conditional, Time deadline) {
  Request put = request("PUT", key, "write", deadline);
  put.body = body;
  put.headers.emplace_back("x-amz-meta-surefoot-write", write_id);
  if (conditional) put.headers.emplace_back("if-none-match", "*");
  add_checksum(put);
  return client_.perform(std::move(put));
}

Status S3Store::put_small(const std::string& name, Body body, Time deadline) {
  SUREFOOT_ASSIGN(const bool conditional, honours_put(deadline));
  const std::string at = key(name);
  if (!conditional) {
    SUREFOOT_ASSIGN(const Standing before, look(at, deadline));
    if (before.there) return error(Code::kExists, "{}/{} is there already", url(), name);
  }
  const std::string write_id = make_job_id();
  const Finished finished = put(at, body, write_id, conditional, deadline);
  return settle_put(at, write_id, conditional, finished, deadline);
}

Result<S3Store::Standing> S3Store::look(const std::string& key, Time deadline) {
  Finished finished = client_.perform(request("HEAD", key, "look at", deadline));
  const bool refused = finished.status == 400 || finished.status == 401 || finished.status == 403;
  if (!finished.answer && refused) {
    // Such an answer has no body that would say why. That to a GET has one; what can be set right
    // (old credentials, the clock) then is.
    Request first_byte = request("GET", key, "look at", deadline);
    first_byte.headers.emplace_back("range", "bytes=0-0");
    const Finished said = client_.perform(std::move(first_byte));
    finished = said.answer || said.status == 416
                   ? client_.perform(request("HEAD", key, "look at", deadline))
                   : said;
  }
  if (!finished.answer) {
    if (finished.answer.error().code == Code::kNotFound) return Standing{};
    return finished.answer.error();
  }
  return Standing{true, finished.answer->header("x-amz-meta-surefoot-write"),
                  finished.answer->header("etag")};
}

Status S3Store::settle_put(const std::string& key, const std::string& write_id, bool conditional,
                           const Finished& finished, Time deadline) {
  const bool done = finished.answer.has_value();
  if (done && conditional) return {};
  const bool lost = !done && finished.answer.error().code == Code::kExists;
  const bool aborted = finished.code == "NoSuchUpload";  // by whoever has written it meanwhile
  if (!done && !lost && !aborted && !finished.may_have_happened) return finished.answer.error();
  // Written, but perhaps by another after us; or refused since it is there, perhaps by an earlier
  // try of ours; or nobody knows.
  const auto standing = look(key, deadline);
  if (standing && standing->there) {
    const std::string etag = done ? finished.answer->header("etag") : "";
    const bool ours = standing->write_id.empty() ? !etag.empty() && etag == standing->etag
                                                 : standing->write_id == write_id;
    if (ours) return {};
    return error(Code::kExists, "s3://{}/{} is there already", options_.bucket, key);
  }
  if (lost) {
    if (!standing) return error(Code::kExists, "{}", finished.answer.error().message);
    return error(Code::kRetry, "s3://{}/{} was there and is gone", options_.bucket, key);
  }
  if (!done && !finished.may_have_happened) return finished.answer.error();
  const std::string why = !standing ? standing.error().message
                          : done    ? "it was removed just now"
                                    : finished.answer.error().message;
  return error(Code::kOutcomeUnknown, "s3://{}/{} may or may not have been written: {}",
               options_.bucket, key, why);
}

Result<bool> S3Store::honours_put(Time deadline) {
  const auto write = [&](const std::string& probe, Body body, bool conditional) {
    return put(probe, body, "probe", conditional, deadline);
  };
  return honours(honours_put_, "put-if-absent", write, deadline);
}

Result<bool> S3Store::honours(std::optional<bool>& known, const char* what, const ProbeWrite& write,
                              Time deadline) {
  if (known) return *known;
  const std::string probe = key(std::string(kTemporary) + "probe-" + make_job_id());
  const Body body = as_bytes(std::string_view("surefoot asks whether If-None-Match is honoured\n"));
  // Without the condition, so that what the next answer says is about the condition.
  const Finished first = put(probe, body, "probe", false, deadline);
  if (!first.answer) return first.answer.error();
  const Finished second = write(probe, body, true);
  const bool honoured = !second.answer && second.answer.error().code == Code::kExists;
  Status status;
  if (!second.answer && !honoured) {
    status = second.answer.error();
    // A mistake of ours or a limit of the service would look the same.
    if (may_not_know_a_header(second.status, second.code) && write(probe, body, false).answer)
      status = {};
  }
  (void)client_.perform(request("DELETE", probe, "remove", deadline));
  SUREFOOT_TRY(std::move(status));
  known = honoured;
  if (!honoured)
    spdlog::warn("{} at {} does not honour {}: objects are looked at before and after", url(),
                 client_.address().host(), what);
  return honoured;
}

Result<std::vector<ObjectInfo>> S3Store::list(const std::string& prefix, Time deadline) {
  SUREFOOT_TRY(in_time(prefix, deadline));
  SUREFOOT_ASSIGN(std::vector<ObjectInfo> objects, list_all(prefix, deadline));
  std::erase_if(objects,
                [](const ObjectInfo& object) { return object.name.starts_with(kTemporary); });
  std::sort(objects.begin(), objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return objects;
}

Result<std::vector<ObjectInfo>> S3Store::list_all(const std::string& prefix, Time deadline) {
  const std::string root = key("");
  std::vector<ObjectInfo> objects;
  std::string continuation;
  for (int page = 0; page < kMaxPages; ++page) {
    Request list = request("GET", "", "list", deadline);
    list.query = {{"list-type", "2"},
                  {"encoding-type", "url"},
                  {"max-keys", std::string(kPageSize)},
                  {"prefix", key(prefix)}};
    if (!continuation.empty()) list.query.emplace_back("continuation-token", continuation);
    const Finished finished = client_.perform(std::move(list));
    if (!finished.answer) return finished.answer.error();
    auto listed = parse_list(finished.answer->text);
    if (!listed) {
      return error(Code::kRetry, "cannot list {} at {}: {}", url(), client_.address().host(),
                   listed.error().message);
    }
    const std::int64_t now_s = parse_http_date(finished.answer->header("date"));
    for (const ListedObject& object : listed->objects) {
      if (!object.key.starts_with(key(prefix))) continue;
      std::string name = object.key.substr(root.size());
      // Consoles and gateways to file systems mark folders by empty objects.
      if (name.empty() || name.ends_with('/')) continue;
      const std::int64_t age_s =
          now_s < 0 ? 0 : std::max<std::int64_t>(0, now_s - object.modified_s);
      objects.push_back({std::move(name), object.bytes, std::chrono::seconds(age_s)});
    }
    continuation = std::move(listed->continuation);
    if (continuation.empty()) return objects;
  }
  return error(Code::kInvalid, "{} does not end when it is listed", url());
}

Status S3Store::read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
                     Time deadline) {
  SUREFOOT_TRY(in_time(name, deadline));
  if (into.empty()) return {};
  return reader_.read(key(name), offset, into, deadline);
}

Status S3Store::remove(const std::string& name, Time deadline) {
  SUREFOOT_TRY(in_time(name, deadline));
  reader_.forget();
  const Finished finished = client_.perform(request("DELETE", key(name), "remove", deadline));
  if (finished.answer || finished.answer.error().code == Code::kNotFound) return {};
  if (!finished.may_have_happened) return finished.answer.error();
  return error(Code::kOutcomeUnknown, "{}", finished.answer.error().message);
}

}  // namespace surefoot::s3
