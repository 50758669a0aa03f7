// Signatures, addresses, replies, retries and credentials: what is decided without a network.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <random>

#include "checkpoint/hex_digests.h"
#include "checkpoint/store/s3/address.h"
#include "checkpoint/store/s3/credentials.h"
#include "checkpoint/store/s3/hashing.h"
#include "checkpoint/store/s3/replies.h"
#include "checkpoint/store/s3/retry.h"
#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/signature.h"
#include "common/digest.h"

namespace surefoot::s3 {
namespace {

using namespace std::chrono_literals;
using End = Outcome::End;
using What = Decision::What;

// The examples of the S3 API reference, "Authenticating Requests: Using the Authorization Header".
constexpr const char* kEmptySha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "",
                           0};
constexpr const char* kTime = "20130524T000000Z";

Signable example(const char* method, const char* path, Pairs query, Pairs headers,
                 const std::string& payload_sha256) {
  headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
  headers.emplace_back("x-amz-content-sha256", payload_sha256);
  headers.emplace_back("x-amz-date", kTime);
  return {method, path, std::move(query), std::move(headers), payload_sha256};
}

std::string signature_of(const Signable& request) {
  const std::string value = authorization(request, kExample, kTime, "us-east-1");
  return value.substr(value.find("Signature=") + 10);
}

TEST(Signature, OfAGetWithARangeIsThePublishedOne) {
  const Signable get = example("GET", "/test.txt", {}, {{"Range", "bytes=0-9"}}, kEmptySha256);
  EXPECT_EQ(
      canonical_request(get),
      "GET\n/test.txt\n\nhost:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\n"
      "x-amz-content-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"
      "x-amz-date:20130524T000000Z\n\nhost;range;x-amz-content-sha256;x-amz-date\n"
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(string_to_sign(canonical_request(get), kTime, "us-east-1", "s3"),
            "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n"
            "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972");
  EXPECT_EQ(authorization(get, kExample, kTime, "us-east-1"),
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(Signature, OfAPutIsThePublishedOne) {
  const Signable put = example(
      "PUT", "/test%24file.text", {},
      {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
      sha256(as_bytes(std::string_view("Welcome to Amazon S3."))));
  EXPECT_EQ(uri_encode("test$file.text", true), "test%24file.text");
  EXPECT_EQ(signature_of(put), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(Signature, OfAQueryWithoutValueAndOfAListAreThePublishedOnes) {
  EXPECT_EQ(signature_of(example("GET", "/", {{"lifecycle", ""}}, {}, kEmptySha256)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(
      signature_of(example("GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, kEmptySha256)),
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Signature, DerivesThePublishedKey) {
  EXPECT_EQ(to_hex(signing_key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830", "us-east-1",
                               "iam")),
            "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
}

TEST(Signature, EncodesWhatIsReservedAndKeepsSlashesOfPaths) {
  EXPECT_EQ(uri_encode("a b/c+\xc3\xa4~", true), "a%20b/c%2B%C3%A4~");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(query_text({{"b", "1&2"}, {"a", ""}}), "a=&b=1%262");
}

TEST(Signature, WritesAndReadsTimes) {
  EXPECT_EQ(amz_time(1369353600), kTime);
  EXPECT_EQ(parse_iso_time("2013-05-24T00:00:00.000Z"), 1369353600);
  EXPECT_EQ(parse_iso_time("2013-05-24T00:00:00Z"), 1369353600);
  EXPECT_EQ(parse_iso_time("yesterday"), -1);
}

TEST(Hashing, GivesTheKnownDigests) {
  EXPECT_EQ(base64(md5(as_bytes(std::string_view("hello"))).value()), "XUFAKrxLKna5cZ2REBfFkg==");
  EXPECT_EQ(crc32(as_bytes(std::string_view("123456789"))), 0xcbf43926U);
}

// As on a machine whose policy is FIPS.
TEST(Hashing, SaysWhatToSetWhereMd5IsNotAllowed) {
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  const auto digest = md5({});
  S3Options options;
  options.bucket = "models";
  const auto store = S3Store::open(options, true, now());
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  ASSERT_FALSE(digest);
  EXPECT_EQ(digest.error().code, Code::kInvalid);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kInvalid);
  EXPECT_NE(store.error().message.find("checkpoint.s3.checksum"), std::string::npos);
}

TEST(Address, IsOfTheStyleThatWorks) {
  const auto url = [](const char* endpoint, const char* bucket, PathStyle style) {
    const auto address = Address::make(endpoint, "eu-central-1", bucket, style);
    return address ? address->url("a/b c", {{"x", "1"}}) : address.error().message;
  };
  EXPECT_EQ(url("", "models", PathStyle::kAuto),
            "https://models.s3.eu-central-1.amazonaws.com/a/b%20c?x=1");
  EXPECT_EQ(url("", "models", PathStyle::kAlways),
            "https://s3.eu-central-1.amazonaws.com/models/a/b%20c?x=1");
  EXPECT_EQ(url("", "my.models", PathStyle::kAuto),
            "https://s3.eu-central-1.amazonaws.com/my.models/a/b%20c?x=1");
  EXPECT_EQ(url("https://oss.example.com/", "models", PathStyle::kAuto),
            "https://models.oss.example.com/a/b%20c?x=1");
  EXPECT_EQ(url("http://127.0.0.1:8333", "models", PathStyle::kAuto),
            "http://127.0.0.1:8333/models/a/b%20c?x=1");
  EXPECT_EQ(url("http://storage:9000", "models", PathStyle::kNever),
            "http://models.storage:9000/a/b%20c?x=1");
  EXPECT_EQ(url("http://[::1]:1", "models", PathStyle::kAuto), "http://[::1]:1/models/a/b%20c?x=1");
}

TEST(Replies, ReadsAListWithEncodedNamesAndItsContinuation) {
  const auto page = parse_list(
      R"(<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">)"
      "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>1ueGcx/==</NextContinuationToken>"
      "<Contents><Key>a%20b%2Fc%2B+d</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified>"
      "<Size>12</Size></Contents></ListBucketResult>");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->continuation, "1ueGcx/==");
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "a b/c+ d");
  EXPECT_EQ(page->objects[0].bytes, 12);
  EXPECT_EQ(page->objects[0].modified_s, 1369353600);
}

TEST(Replies, TakesNamesAsTheyAreWhereTheServiceDoesNotEncode) {
  const auto page = parse_list(
      "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>50%25 &amp; a+b</Key>"
      "<LastModified>2013-05-24T00:00:00Z</LastModified><Size>0</Size></Contents>"
      "</ListBucketResult>");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->objects[0].key, "50%25 & a+b");
  EXPECT_TRUE(page->continuation.empty());
}

TEST(Replies, RefusesAListThatCannotBeWhole) {
  const auto list = [](const std::string& inner) {
    return parse_list("<ListBucketResult>" + inner + "</ListBucketResult>").has_value();
  };
  const std::string time = "<LastModified>2013-05-24T00:00:00Z</LastModified>";
  EXPECT_TRUE(list(""));
  EXPECT_FALSE(list("<IsTruncated>true</IsTruncated>"));
  EXPECT_FALSE(list("<Contents><Key>a</Key><Size>-1</Size>" + time + "</Contents>"));
  EXPECT_FALSE(
      list("<Contents><Key>a</Key><Size>99999999999999999999</Size>" + time + "</Contents>"));
  EXPECT_FALSE(list("<Contents><Key>a</Key><Size>1</Size></Contents>"));
  EXPECT_FALSE(list("<EncodingType>url</EncodingType><Contents><Key>a%2</Key><Size>1</Size>" +
                    time + "</Contents>"));
  EXPECT_FALSE(parse_list("<html>sign in</html>"));
  EXPECT_FALSE(parse_list("<ListBucketResult><Contents>"));
  EXPECT_FALSE(parse_list(""));
}

TEST(Replies, ReadsErrorsAlsoInsideOfASuccess) {
  const std::string body =
      "<?xml version=\"1.0\"?>\n\n<Error><Code>InternalError</Code><Message>We encountered\nan "
      "error</Message><Region>eu-west-1</Region></Error>";
  EXPECT_EQ(root_name(body), "Error");
  EXPECT_EQ(root_name("<s3:CompleteMultipartUploadResult/>"), "CompleteMultipartUploadResult");
  EXPECT_EQ(root_name("  "), "");
  EXPECT_EQ(parse_error(body).code, "InternalError");
  EXPECT_EQ(parse_error(body).message, "We encountered an error");
  EXPECT_EQ(parse_error(body).region, "eu-west-1");
  EXPECT_EQ(parse_error("<html>502</html>").code, "");
}

TEST(Replies, ReadsUploadsAndParts) {
  EXPECT_EQ(parse_initiated("<InitiateMultipartUploadResult><UploadId>u-1</UploadId>"
                            "</InitiateMultipartUploadResult>")
                .value(),
            "u-1");
  EXPECT_FALSE(parse_initiated("<InitiateMultipartUploadResult/>"));
  const auto page = parse_uploads(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextUploadIdMarker>m</NextUploadIdMarker><Upload><Key>k</Key><UploadId>u</UploadId>"
      "<Initiated>2013-05-24T00:00:00.000Z</Initiated></Upload></ListMultipartUploadsResult>");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->uploads.at(0).id, "u");
  EXPECT_EQ(page->next_key, "k");
  EXPECT_EQ(page->next_id, "m");
  const auto parts = parse_parts(
      "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>2"
      "</NextPartNumberMarker><Part><LastModified>2013-05-24T00:00:00Z</LastModified></Part>"
      "<Part><LastModified>2013-05-24T00:00:05Z</LastModified></Part></ListPartsResult>");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->newest_s, 1369353605);
  EXPECT_EQ(parts->next, "2");
  EXPECT_EQ(parse_parts("<ListPartsResult/>")->newest_s, 0);
  EXPECT_EQ(parse_parts("<ListPartsResult/>")->next, "");
  EXPECT_FALSE(parse_parts("<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>"));
}

TEST(Replies, ListsThePartsOfAFinishedUploadWithTheirChecksums) {
  EXPECT_EQ(complete_body({{"\"a\"", ""}, {"b", ""}}),
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>"
            "<Part><PartNumber>2</PartNumber><ETag>b</ETag></Part></CompleteMultipartUpload>");
  EXPECT_EQ(complete_body({{"a", "y/Q5Jg=="}}),
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Part><PartNumber>1</PartNumber><ETag>a</ETag><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32>"
            "</Part></CompleteMultipartUpload>");
}

TEST(Replies, ReadsHeadersAndRefusesOthers) {
  const auto range = parse_content_range("bytes 5-99/1000");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5);
  EXPECT_EQ(range->last, 99);
  EXPECT_EQ(range->total, 1000);
  EXPECT_TRUE(parse_content_range("bytes 0-9223372036854775806/9223372036854775807"));
  for (const char* wrong :
       {"", "bytes", "bytes ", "bytes 0-9", "bytes 0-9/", "bytes 0-9/*", "bytes */9",
        "bytes -5-9/10", "bytes 0--9/10", "bytes 0-9/-10", "bytes 0-+9/10", "bytes 9-0/10",
        "bytes 0-10/10", "bytes 0-9/10x", "bytes 0-9223372036854775807/9223372036854775807",
        "bytes 0-9223372036854775808/9223372036854775809", "octets 0-9/10"})
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  EXPECT_EQ(parse_retry_after("7"), 7s);
  EXPECT_EQ(parse_retry_after("99999999"), 1h);
  for (const char* wrong :
       {"", "-7", "7 ", "99999999999999999999", "Fri, 24 May 2013 00:00:00 GMT"})
    EXPECT_EQ(parse_retry_after(wrong), 0s) << wrong;
  EXPECT_EQ(parse_http_date("Fri, 24 May 2013 00:00:00 GMT"), 1369353600);
  EXPECT_EQ(parse_http_date("yesterday"), -1);
}

// Each reply damaged in a thousand ways: an answer or kCorrupt, never anything else.
TEST(Replies, SurviveEveryDamage) {
  const std::string whole =
      "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%20b</Key><Size>5</Size>"
      "<LastModified>2013-05-24T00:00:00Z</LastModified></Contents></ListBucketResult>";
  std::mt19937_64 random(7);
  int good = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = whole;
    for (std::uint64_t n = random() % 4 + 1; n > 0; --n)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) damaged.resize(random() % damaged.size());
    const auto page = parse_list(damaged);
    good += page.has_value();
    if (!page) {
      EXPECT_EQ(page.error().code, Code::kCorrupt);
    }
    (void)parse_uploads(damaged);
    (void)parse_error(damaged);
  }
  EXPECT_GT(good, 0);
  EXPECT_LT(good, 1000);
}

Outcome answer(int status, std::string code = "") {
  Outcome outcome;
  outcome.status = status;
  outcome.code = std::move(code);
  return outcome;
}
Outcome broken(End end) {
  Outcome outcome;
  outcome.end = end;
  outcome.message = "connection reset";
  return outcome;
}

TEST(Retry, TakesWhatIsGood) {
  EXPECT_EQ(decide_retry(answer(200), {}, 1).what, What::kTake);
  EXPECT_EQ(decide_retry(answer(206), {}, 1).what, What::kTake);
}

TEST(Retry, WaitsWhereTheFaultPasses) {
  for (const int status : {500, 502, 503, 504, 429, 408})
    EXPECT_EQ(decide_retry(answer(status), {}, 1).what, What::kWait) << status;
  EXPECT_EQ(decide_retry(answer(503, "SlowDown"), {}, 1).what, What::kWait);
  EXPECT_EQ(decide_retry(answer(200, "InternalError"), {}, 1).what, What::kWait);
  EXPECT_EQ(decide_retry(answer(409, "ConditionalRequestConflict"), {}, 1).what, What::kWait);
  EXPECT_EQ(decide_retry(answer(400, "RequestTimeout"), {}, 1).what, What::kWait);
  for (const End end : {End::kNotReached, End::kBroken, End::kTimedOut, End::kNonsense})
    EXPECT_EQ(decide_retry(broken(end), {}, 1).what, What::kWait);
}

TEST(Retry, GivesUpAfterTheLastTryAndSaysSo) {
  const Decision decision = decide_retry(answer(503, "SlowDown"), {.done = 8, .most = 8}, 1);
  EXPECT_EQ(decision.what, What::kGiveUp);
  EXPECT_EQ(decision.code, Code::kRetry);
  EXPECT_NE(decision.reason.find("SlowDown"), std::string::npos);
}

TEST(Retry, PausesGrowAndAreSpread) {
  for (int done = 1; done < 12; ++done) {
    Duration longest{};
    Duration shortest = Duration::max();
    std::mt19937_64 random(11);
    for (int i = 0; i < 2000; ++i) {
      const Decision decision = decide_retry(answer(503), {.done = done, .most = 100}, random());
      longest = std::max(longest, decision.wait);
      shortest = std::min(shortest, decision.wait);
    }
    const Duration bound = std::min<Duration>(200ms * (1 << (done - 1)), 20s);
    EXPECT_LT(longest, bound) << done;
    EXPECT_GT(longest, bound * 9 / 10) << done;
    EXPECT_LT(shortest, bound / 10) << done;
  }
}

TEST(Retry, WaitsAsLongAsTheServiceAsks) {
  Outcome outcome = answer(503);
  outcome.retry_after = 7s;
  EXPECT_GE(decide_retry(outcome, {}, 1).wait, 7s);
  outcome.retry_after = 1h;
  EXPECT_LE(decide_retry(outcome, {}, 1).wait, 20s);
}

TEST(Retry, ReportsAtOnceWhatTheUserMustChange) {
  const auto code = [](const Outcome& outcome) {
    const Decision decision = decide_retry(outcome, {.credentials_new = true}, 1);
    EXPECT_EQ(decision.what, What::kGiveUp);
    return decision.code;
  };
  EXPECT_EQ(code(answer(403, "AccessDenied")), Code::kInvalid);
  EXPECT_EQ(code(answer(403, "SignatureDoesNotMatch")), Code::kInvalid);
  EXPECT_EQ(code(answer(401)), Code::kInvalid);
  EXPECT_EQ(code(answer(404, "NoSuchBucket")), Code::kInvalid);
  EXPECT_EQ(code(answer(404, "NoSuchKey")), Code::kNotFound);
  EXPECT_EQ(code(answer(404)), Code::kNotFound);
  EXPECT_EQ(code(answer(404, "NoSuchUpload")), Code::kRetry);
  EXPECT_EQ(code(answer(400, "InvalidArgument")), Code::kInvalid);
  EXPECT_EQ(code(answer(501, "NotImplemented")), Code::kInvalid);
  EXPECT_EQ(code(answer(412, "PreconditionFailed")), Code::kExists);
  EXPECT_EQ(code(answer(416, "InvalidRange")), Code::kCorrupt);
  EXPECT_EQ(code(answer(507)), Code::kNoSpace);
  EXPECT_EQ(code(broken(End::kUntrusted)), Code::kInvalid);
}

TEST(Retry, SaysWhichRegionTheBucketIsIn) {
  Outcome outcome = answer(400, "AuthorizationHeaderMalformed");
  outcome.region = "eu-west-1";
  const Decision decision = decide_retry(outcome, {}, 1);
  EXPECT_EQ(decision.code, Code::kInvalid);
  EXPECT_NE(decision.reason.find("checkpoint.s3.region to eu-west-1"), std::string::npos);
}

TEST(Retry, FetchesCredentialsAndSetsTheClockOnce) {
  for (const Outcome& refused : {answer(400, "ExpiredToken"), answer(403, "InvalidAccessKeyId"),
                                 answer(400, "SignatureDoesNotMatch"), answer(403, "AccessDenied"),
                                 answer(401), answer(403)})
    EXPECT_EQ(decide_retry(refused, {}, 1).what, What::kNewCredentials) << refused.code;
  EXPECT_EQ(decide_retry(answer(400, "ExpiredToken"), {.credentials_new = true}, 1).code,
            Code::kInvalid);
  EXPECT_EQ(decide_retry(answer(403, "RequestTimeTooSkewed"), {}, 1).what, What::kSetClock);
  EXPECT_EQ(decide_retry(answer(403, "RequestTimeTooSkewed"), {.clock_set = true}, 1).what,
            What::kGiveUp);
}

TEST(Retry, KnowsWhatMayHaveHappened) {
  EXPECT_FALSE(may_have_happened(broken(End::kNotReached)));
  EXPECT_FALSE(may_have_happened(answer(503, "SlowDown")));
  EXPECT_FALSE(may_have_happened(answer(403)));
  EXPECT_TRUE(may_have_happened(broken(End::kBroken)));
  EXPECT_TRUE(may_have_happened(broken(End::kTimedOut)));
  EXPECT_TRUE(may_have_happened(answer(500)));
  EXPECT_TRUE(may_have_happened(answer(504)));
  EXPECT_TRUE(may_have_happened(answer(200, "InternalError")));
  EXPECT_TRUE(may_have_happened(answer(200, "AccessDenied")));
}

TEST(Retry, KnowsHowAnUnknownHeaderIsRefused) {
  for (const auto& [status, code] : {std::pair(501, ""),
                                     {405, ""},
                                     {400, "NotImplemented"},
                                     {400, "InvalidArgument"},
                                     {400, "InvalidRequest"}})
    EXPECT_TRUE(may_not_know_a_header(status, code)) << status << code;
  for (const auto& [status, code] : {std::pair(400, ""),
                                     {400, "ExpiredToken"},
                                     {403, ""},
                                     {400, "BadDigest"},
                                     {503, "SlowDown"},
                                     {412, ""},
                                     {0, ""}})
    EXPECT_FALSE(may_not_know_a_header(status, code)) << status << code;
}

TEST(Options, TakeNoUploadForLeftBehindThatIsStillTriedAgain) {
  const S3Options options;
  const Duration longest =
      options.client.tries * (options.client.try_timeout + kLongestPause);  // of one request
  EXPECT_GE(options.orphan_age, 2 * longest);                               // a part, completing
}

TEST(Credentials, AreReadFromASectionOfTheSharedFile) {
  const char* text =
      "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B=\r\n\n"
      "[ team ]\naws_access_key_id=C\naws_secret_access_key = D\naws_session_token = E\n"
      "region = x\n[half]\naws_access_key_id = F\n";
  const auto first = parse_shared_file(text, "default");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->access_key, "A");
  EXPECT_EQ(first->secret_key, "B=");
  EXPECT_EQ(first->session_token, "");
  const auto team = parse_shared_file(text, "team");
  ASSERT_TRUE(team);
  EXPECT_EQ(team->session_token, "E");
  EXPECT_EQ(parse_shared_file(text, "half").error().code, Code::kInvalid);
  EXPECT_EQ(parse_shared_file(text, "other").error().code, Code::kNotFound);
}

TEST(Credentials, OfARoleAreReadWithTheirExpiry) {
  const auto role =
      parse_role(R"({"Code":"Success","AccessKeyId":"A","SecretAccessKey":"B","Token":"T",)"
                 R"("Expiration":"2013-05-24T00:00:00Z"})");
  ASSERT_TRUE(role);
  EXPECT_EQ(role->session_token, "T");
  EXPECT_EQ(role->expires_s, 1369353600);
  for (const char* wrong : {"", "[]", "{}", R"({"AccessKeyId":1})",
                            R"({"AccessKeyId":"A","SecretAccessKey":"B","Token":"T"})"})
    EXPECT_EQ(parse_role(wrong).error().code, Code::kCorrupt) << wrong;
}

}  // namespace
}  // namespace surefoot::s3
