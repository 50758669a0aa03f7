// Looks into a bucket beside the store under test: uploads that are open, raw requests.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/store/s3/client.h"
#include "checkpoint/store/s3/replies.h"
#include "checkpoint/store/s3/testing/servers.h"

namespace surefoot::s3 {

inline Client test_client(const S3Server& server) {
  const S3Options options = server.options("");
  ClientOptions client_options = options.client;
  client_options.region = options.region;
  client_options.http.direct = true;
  return {
      Address::make(options.endpoint, options.region, options.bucket, PathStyle::kAlways).value(),
      client_options};
}

// Names with an upload that is neither completed nor aborted.
inline std::vector<std::string> open_uploads(const S3Server& server, const std::string& prefix) {
  Client client = test_client(server);
  Request list;
  list.method = "GET";
  list.what = "list the uploads of";
  list.query = {{"uploads", ""}, {"prefix", prefix}};
  const Finished finished = client.perform(std::move(list));
  SUREFOOT_CHECK(finished.answer);
  const auto page = parse_uploads(finished.answer->text);
  SUREFOOT_CHECK(page);
  std::vector<std::string> names;
  for (const ListedUpload& upload : page->uploads) names.push_back(upload.key);
  return names;
}

}  // namespace surefoot::s3
