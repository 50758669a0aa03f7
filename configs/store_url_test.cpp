#include "configs/store_url.h"

#include <gtest/gtest.h>

#include <string>

namespace surefoot {
namespace {

TEST(StoreUrl, IsAFolderOrABucket) {
  EXPECT_EQ(parse_store_url("checkpoints")->folder, "checkpoints");
  EXPECT_EQ(parse_store_url("file:///scratch")->folder, "/scratch");
  EXPECT_EQ(parse_store_url("a:b")->folder, "a:b");
  const auto bucket = parse_store_url("s3://models/team/a/");
  ASSERT_TRUE(bucket);
  EXPECT_EQ(bucket->kind, StoreUrl::Kind::kS3);
  EXPECT_EQ(bucket->bucket, "models");
  EXPECT_EQ(bucket->prefix, "team/a");
  EXPECT_EQ(parse_store_url("s3://models")->prefix, "");
  EXPECT_EQ(parse_store_url("s3://models/")->prefix, "");
}

TEST(StoreUrl, RefusesWhatNamesNoPlace) {
  for (const char* wrong : {"gs://models", "http://a/b", "file://", "s3://", "s3://a", "s3:///x",
                            "s3://models//a", "s3://models/a/../b", "s3://models/a b",
                            "s3://mod els/a", "s3://-models", "s3://models/a\n"})
    EXPECT_EQ(parse_store_url(wrong).error().code, Code::kInvalid) << wrong;
  EXPECT_FALSE(parse_store_url("s3://models/" + std::string(501, 'x')));
}

TEST(Endpoint, RefusesWhatIsNone) {
  for (const char* wrong :
       {"", "ftp://a", "s3.example.com", "https://", "https://a/b", "https://u@a",
        "https://a:", "https://a:x", "https://a:70000", "https://a b", "http://[::1"})
    EXPECT_FALSE(parse_endpoint(wrong)) << wrong;
  EXPECT_EQ(parse_endpoint("https://s3.example.com:444/")->authority(), "s3.example.com:444");
  EXPECT_TRUE(is_loopback(*parse_endpoint("http://127.0.0.1:1")));
  EXPECT_TRUE(is_loopback(*parse_endpoint("http://localhost")));
  EXPECT_TRUE(is_loopback(*parse_endpoint("http://[::1]:9")));
  EXPECT_FALSE(is_loopback(*parse_endpoint("http://127.example.com")));
}

}  // namespace
}  // namespace surefoot
