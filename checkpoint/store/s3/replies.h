// What a service says, read from its XML and its headers. Pure, and total: whatever the bytes are,
// the answer is a value or kCorrupt. Nothing is allocated from a length that the reply states.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace surefoot::s3 {

inline constexpr std::size_t kMaxReplyBytes = 8 << 20;  // a page of 1000 names of 1024 bytes fits

// The body of an error; the code is empty where there is none.
struct ErrorReply {
  std::string code;     // "SlowDown"
  std::string message;  // what the service says about it, printable and cut to 300 bytes
  std::string region;   // of the bucket, where it says so
};
[[nodiscard]] ErrorReply parse_error(std::string_view body);
// The name of the XML's outermost element, without a namespace; empty: it is no XML.
[[nodiscard]] std::string root_name(std::string_view body);

struct ListedObject {
  std::string key;
  std::int64_t bytes = 0;
  std::int64_t modified_s = 0;  // seconds since 1970, by the service's clock
};
struct ListPage {
  std::vector<ListedObject> objects;
  std::string continuation;  // empty: this was the last page
};
// ListObjectsV2 with encoding-type=url; keys are decoded.
[[nodiscard]] Result<ListPage> parse_list(std::string_view body);

// InitiateMultipartUpload: the upload's id.
[[nodiscard]] Result<std::string> parse_initiated(std::string_view body);

struct ListedUpload {
  std::string key;
  std::string id;
  std::int64_t initiated_s = 0;
};
struct UploadPage {
  std::vector<ListedUpload> uploads;
  std::string next_key;  // both empty: this was the last page
  std::string next_id;
};
// ListMultipartUploads with encoding-type=url.
[[nodiscard]] Result<UploadPage> parse_uploads(std::string_view body);

struct PartPage {
  std::int64_t newest_s = 0;  // when the newest of these parts was written; 0: there is none
  std::string next;           // the marker to go on from; empty: this was the last page
};
// ListParts.
[[nodiscard]] Result<PartPage> parse_parts(std::string_view body);

struct UploadedPart {
  std::string etag;
  std::string crc32;  // base64; empty: the upload has another checksum
};
// The body of CompleteMultipartUpload; from part 1.
[[nodiscard]] std::string complete_body(const std::vector<UploadedPart>& parts);

// Headers.

// "bytes 0-99/1000": 0 <= first <= last < total. Nothing: it is not that.
struct ContentRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t total = 0;
};
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);
// Of a Retry-After in seconds, an hour at most; 0: it is none.
[[nodiscard]] Duration parse_retry_after(std::string_view text);
// Of a Date, seconds since 1970; -1: it is none.
[[nodiscard]] std::int64_t parse_http_date(const std::string& text);

}  // namespace surefoot::s3
