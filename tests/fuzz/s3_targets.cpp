// What an S3 service says, and where its credentials stand.
#include "checkpoint/store/s3/credentials.h"
#include "checkpoint/store/s3/replies.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {

void s3_reply(std::string_view bytes) {
  const s3::ErrorReply failed = s3::parse_error(bytes);
  SUREFOOT_CHECK(failed.message.size() <= 300);
  (void)s3::root_name(bytes);
  if (const auto page = s3::parse_list(bytes)) {
    for (const s3::ListedObject& object : page->objects) SUREFOOT_CHECK(object.bytes >= 0);
  }
  (void)s3::parse_initiated(bytes);
  (void)s3::parse_uploads(bytes);
  (void)s3::parse_parts(bytes);
  if (const auto range = s3::parse_content_range(bytes)) {
    SUREFOOT_CHECK(0 <= range->first && range->first <= range->last && range->last < range->total);
  }
  SUREFOOT_CHECK(s3::parse_retry_after(bytes) >= Duration::zero());
  (void)s3::parse_http_date(std::string(bytes));
}

void s3_credentials(std::string_view bytes) {
  for (const char* profile : {"default", "other"}) {
    const auto read = s3::parse_shared_file(bytes, profile);
    // Of what is secret nothing gets into a message.
    if (!read) SUREFOOT_CHECK(read.error().message.find("SECRET") == std::string::npos);
  }
  const auto role = s3::parse_role(bytes);
  if (!role) SUREFOOT_CHECK(role.error().message.find("SECRET") == std::string::npos);
}

}  // namespace surefoot::fuzz
