// What a service says, read from its XML. Pure, and total: whatever the bytes are, the answer is a
// value or kCorrupt. Nothing is allocated from a length that the reply states.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
// A 200 may carry an error all the same (CompleteMultipartUpload does).
[[nodiscard]] bool holds_an_error(std::string_view body);

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

// ListParts: when the newest of them was written; 0: it has none.
[[nodiscard]] Result<std::int64_t> parse_newest_part(std::string_view body);

// The body of CompleteMultipartUpload. `etags` by part, from part 1.
[[nodiscard]] std::string complete_body(const std::vector<std::string>& etags);

}  // namespace surefoot::s3
