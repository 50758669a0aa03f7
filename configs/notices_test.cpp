#include "configs/notices.h"

#include <gtest/gtest.h>

namespace surefoot {
namespace {

TEST(NoticeListen, IsAnAddressAndAPort) {
  EXPECT_EQ(parse_listen("127.0.0.1:8080").value().host, "127.0.0.1");
  EXPECT_EQ(parse_listen("127.0.0.1:8080").value().port, 8080);
  EXPECT_EQ(parse_listen("[::1]:80").value().host, "::1");
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:x", "127.0.0.1:65536",
                          "127.0.0.1:-1", "127.0.0.1:8 "})
    EXPECT_FALSE(parse_listen(bad)) << bad;
}

TEST(NoticeEndpoint, IsACloudAndAUrl) {
  const auto endpoint = parse_notice_endpoint("aws=http://127.0.0.1:8080/");
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  EXPECT_EQ(endpoint->source, config::Recovery::aws);
  EXPECT_EQ(endpoint->url, "http://127.0.0.1:8080");
  for (const char* bad : {"", "aws", "aws=", "aws=ftp://x", "file=http://x", "nobody=http://x",
                          "=http://x", "aws=http://a b", "aws=http://a\nb", "aws=http://x/y"})
    EXPECT_FALSE(parse_notice_endpoint(bad)) << bad;
}

}  // namespace
}  // namespace surefoot
