// The S3 store over networks and services that fail: a proxy with faults before SeaweedFS.
//
// The program is its own helper: `faults_test --put ENDPOINT PREFIX NAME BYTES` writes one object,
// to be killed on the way.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checkpoint/store/s3/s3_store.h"
#include "checkpoint/store/s3/testing/probe.h"
#include "checkpoint/store/s3/testing/proxy.h"
#include "checkpoint/store/s3/testing/servers.h"

namespace surefoot::s3 {
namespace {

using namespace std::chrono_literals;
using Kind = Fault::Kind;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kLarge = 20 * kMiB + 12345;  // three parts of 8 MiB, the last one short
constexpr const char* kSecondPart = "partNumber=2";
constexpr const char* kComplete = "object?uploadId=";

std::unique_ptr<S3Server> server;

std::string content_of(std::int64_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < content.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(content.data() + i, &word, std::min<std::size_t>(8, content.size() - i));
  }
  return content;
}

class S3Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!server) GTEST_SKIP() << "weed is not installed: run tools/install_python.sh";
    proxy = std::make_unique<FaultProxy>(server->port());
  }
  S3Options options() {
    S3Options options = server->options(prefix);
    options.endpoint = proxy->endpoint();
    options.part_bytes = 8 * kMiB;
    options.client.http.stall_timeout = 1s;
    return options;
  }
  std::unique_ptr<S3Store> open() { return open(options()); }
  std::unique_ptr<S3Store> open(const S3Options& options) {
    return S3Store::open(options, false, later).value();
  }
  // Asks beforehand what is asked once, so that faults meet what they are meant for.
  void warm_up(S3Store& store) {
    ASSERT_TRUE(put_if_absent(store, "warm-up/small", "x", later));
    ASSERT_TRUE(put_if_absent(store, "warm-up/large", content_of(9 * kMiB, 1), later));
    proxy->clear();
  }
  // Past the proxy.
  std::string standing(const std::string& name) {
    const auto direct = S3Store::open(server->options(prefix), true, later).value();
    auto content = read_object(*direct, name, 64 * kMiB, later);
    return content ? *content : "error: " + content.error().message;
  }
  std::vector<std::string> uploads() { return open_uploads(*server, prefix + "/"); }

  std::unique_ptr<FaultProxy> proxy;
  std::string prefix =
      std::string("faults/") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::string large = content_of(kLarge, 2);
  Time later = now() + 2min;
};

TEST_F(S3Faults, GoesOnAfterABusyService) {
  const auto store = open();
  warm_up(*store);
  proxy->add(
      {.kind = Kind::kAnswer, .match = "PUT", .times = 2, .status = 503, .code = "SlowDown"});
  proxy->add({.kind = Kind::kAnswer, .match = "PUT", .times = 1, .status = 500});
  proxy->add({.kind = Kind::kAnswer, .match = "GET", .times = 2, .status = 429});
  EXPECT_TRUE(put_if_absent(*store, "object", "content", later));
  EXPECT_EQ(read_object(*store, "object", 100, later).value(), "content");
  EXPECT_EQ(proxy->faults_done(), 5);
}

TEST_F(S3Faults, SaysWhyItGaveUp) {
  S3Options few = options();
  few.client.tries = 2;
  const auto store = open(few);
  warm_up(*store);
  proxy->add(
      {.kind = Kind::kAnswer, .match = "PUT", .times = 9, .status = 503, .code = "SlowDown"});
  const auto put = put_if_absent(*store, "object", "content", later);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kRetry);
  EXPECT_NE(put.error().message.find("SlowDown"), std::string::npos) << put.error().message;
  EXPECT_NE(put.error().message.find(prefix + "/object"), std::string::npos);
}

TEST_F(S3Faults, SendsAPartAgainThatWasCutOff) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kCutRequest, .match = kSecondPart, .times = 2, .amount = 3 * kMiB});
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_EQ(proxy->faults_done(), 2);
  EXPECT_TRUE(standing("object") == large);
  EXPECT_TRUE(uploads().empty());
}

TEST_F(S3Faults, SendsAPartAgainThatStalls) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kStall, .match = kSecondPart, .times = 1, .amount = kMiB});
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_EQ(proxy->faults_done(), 1);
  EXPECT_TRUE(standing("object") == large);
}

TEST_F(S3Faults, FindsOutThatALostAnswerWasGood) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kLoseAnswer, .match = "PUT", .times = 1});
  EXPECT_TRUE(put_if_absent(*store, "small", "content", later));
  EXPECT_EQ(standing("small"), "content");
  proxy->add({.kind = Kind::kLoseAnswer, .match = "POST", .times = 2});  // begin and complete
  EXPECT_TRUE(put_if_absent(*store, "large", large, later));
  EXPECT_TRUE(standing("large") == large);
  EXPECT_EQ(proxy->faults_done(), 3);
  EXPECT_TRUE(uploads().empty());
}

TEST_F(S3Faults, BelievesOnlyAnAnswerThatSaysThatTheObjectIsWhole) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kAnswer, .match = kComplete, .status = 200});
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_EQ(proxy->faults_done(), 1);
  EXPECT_TRUE(standing("object") == large);
}

TEST_F(S3Faults, WaitsForAServiceThatPutsALargeObjectTogetherSilently) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kDelay, .match = kComplete, .amount = 12000});
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_EQ(proxy->faults_done(), 1);
  EXPECT_EQ(proxy->seen(kComplete), 1);
}

TEST_F(S3Faults, AbortsAnUploadAlsoAfterTheDeadline) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kBlackHole, .match = kSecondPart, .times = 99});
  EXPECT_EQ(put_if_absent(*store, "object", large, now() + 1500ms).error().code, Code::kRetry);
  EXPECT_TRUE(uploads().empty());
}

TEST_F(S3Faults, IsNotMistakenAboutPutIfAbsentByALostAnswerOrAnotherMistake) {
  const auto store = open();
  proxy->add({.kind = Kind::kAnswer, .match = "probe", .status = 400, .code = "BadDigest"});
  EXPECT_EQ(put_if_absent(*store, "object", "content", later).error().code, Code::kInvalid);
  EXPECT_FALSE(store->honours_put());
  proxy->add({.kind = Kind::kLoseAnswer, .match = "probe", .times = 1});
  ASSERT_TRUE(put_if_absent(*store, "object", "content", later));
  EXPECT_EQ(store->honours_put(), true);
  EXPECT_EQ(proxy->faults_done(), 2);
}

TEST_F(S3Faults, AsksForTheReasonWhenAnAnswerWithoutBodyRefuses) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kAnswer, .match = "HEAD", .status = 400});
  proxy->add({.kind = Kind::kAnswer, .match = "GET", .status = 400, .code = "ExpiredToken"});
  EXPECT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_EQ(proxy->faults_done(), 2);
}

TEST_F(S3Faults, SendsChecksumsThatAServiceWasToldOf) {
  S3Options crc32 = options();
  crc32.checksum = Checksum::kCrc32;
  const auto store = open(crc32);
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_TRUE(standing("object") == large);
  const auto has = [](const std::string& header, const char* line) {
    return header.find(line) != std::string::npos;
  };
  for (const std::string& begun : proxy->headers("?uploads="))
    EXPECT_TRUE(has(begun, "x-amz-checksum-algorithm: CRC32")) << begun;
  const auto parts = proxy->headers("object?partNumber");
  EXPECT_EQ(parts.size(), 3u);
  for (const std::string& part : parts) EXPECT_TRUE(has(part, "x-amz-checksum-crc32: ")) << part;
}

TEST_F(S3Faults, FindsAnothersObjectAfterALostAnswer) {
  const auto store = open();
  warm_up(*store);
  const auto other = S3Store::open(server->options(prefix), false, later).value();
  ASSERT_TRUE(put_if_absent(*other, "object", "theirs", later));
  proxy->add({.kind = Kind::kLoseAnswer, .match = "PUT", .times = 1});
  EXPECT_EQ(put_if_absent(*store, "object", "ours", later).error().code, Code::kExists);
  EXPECT_EQ(standing("object"), "theirs");
}

TEST_F(S3Faults, SaysThatItDoesNotKnowWhenNobodyTells) {
  S3Options few = options();
  few.client.tries = 2;
  const auto store = open(few);
  warm_up(*store);
  proxy->add({.kind = Kind::kLoseAnswer, .match = "PUT", .times = 1});
  proxy->add({.kind = Kind::kAnswer, .match = "", .times = 99, .status = 503});
  const auto put = put_if_absent(*store, "object", "content", later);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kOutcomeUnknown);
  proxy->clear();
  EXPECT_EQ(put_if_absent(*store, "object", "content", later).error().code, Code::kExists);
}

TEST_F(S3Faults, EndsAtTheDeadlineBeforeABlackHole) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kBlackHole, .match = "", .times = 999});
  const Time deadline = now() + 1500ms;
  const auto put = put_if_absent(*store, "object", "content", deadline);
  const auto list = store->list("", deadline);
  std::vector<std::byte> into(1);
  const auto read = store->read("object", 0, into, deadline);
  EXPECT_GE(now(), deadline);
  EXPECT_EQ(put.error().code, Code::kOutcomeUnknown) << put.error().message;
  EXPECT_EQ(list.error().code, Code::kRetry);
  EXPECT_EQ(read.error().code, Code::kRetry);
  for (const std::string& named :
       {prefix + "/object", "127.0.0.1:" + std::to_string(proxy->port())})
    EXPECT_NE(put.error().message.find(named), std::string::npos) << put.error().message;
}

TEST_F(S3Faults, WorksOverASlowLine) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kThrottle, .match = "", .times = 99, .amount = 8 * kMiB});
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_TRUE(read_object(*store, "object", 64 * kMiB, later).value() == large);
}

TEST_F(S3Faults, ReadsAgainWhatWasCutOff) {
  const auto store = open();
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  proxy->add({.kind = Kind::kCutAnswer, .match = "object", .times = 3, .amount = kMiB});
  EXPECT_TRUE(read_object(*store, "object", 64 * kMiB, later).value() == large);
  EXPECT_EQ(proxy->faults_done(), 3);
  std::string whole(large.size(), '\0');
  proxy->add({.kind = Kind::kCutAnswer, .match = "object", .times = 2, .amount = kMiB});
  ASSERT_TRUE(store->read("object", 0, std::as_writable_bytes(std::span(whole)), later));
  EXPECT_TRUE(whole == large);
}

TEST_F(S3Faults, FetchesCredentialsAgainAndSetsItsClock) {
  std::string access_key = kTestAccessKey;
  S3Options changing = options();
  changing.client.credentials.environment = [&](const std::string& name) {
    return name == "AWS_ACCESS_KEY_ID" ? access_key : test_environment()(name);
  };
  const auto store = open(changing);
  warm_up(*store);
  access_key = kSecondAccessKey;
  proxy->add({.kind = Kind::kAnswer, .match = "PUT", .status = 400, .code = "ExpiredToken"});
  proxy->add({.kind = Kind::kAnswer,
              .match = "PUT",
              .amount = 300,
              .status = 403,
              .code = "RequestTimeTooSkewed"});
  EXPECT_TRUE(put_if_absent(*store, "object", "content", later));
  const auto tries = proxy->headers("/object");
  ASSERT_EQ(tries.size(), 3u);
  EXPECT_NE(tries[0].find(kTestAccessKey), std::string::npos);
  EXPECT_NE(tries[1].find(kSecondAccessKey), std::string::npos);
  const auto sent_s = [](const std::string& header) {
    std::string time = header.substr(header.find("x-amz-date: ") + 12, 16);
    for (const int at : {13, 11}) time.insert(static_cast<std::size_t>(at), ":");
    for (const int at : {6, 4}) time.insert(static_cast<std::size_t>(at), "-");
    return parse_iso_time(time);
  };
  ASSERT_GT(sent_s(tries[0]), 0);
  EXPECT_GE(sent_s(tries[2]) - sent_s(tries[0]), 299);
}

TEST_F(S3Faults, LooksForOtherCredentialsWhenTheServiceDoesNotKnowThem) {
  int asked = 0;
  S3Options changed = options();
  changed.client.credentials.environment = [&](const std::string& name) {
    return name == "AWS_ACCESS_KEY_ID" && asked++ == 0 ? "unknown" : test_environment()(name);
  };
  EXPECT_TRUE(S3Store::open(changed, false, later));
  EXPECT_EQ(asked, 2);
}

TEST_F(S3Faults, LeavesNoUploadWhenASourceFails) {
  const auto store = open();
  warm_up(*store);
  std::int64_t given = 0;
  const ByteSource source = [&]() -> Result<std::span<const std::byte>> {
    if (given >= 17 * kMiB) return error(Code::kCorrupt, "the source is bad");
    const auto piece =
        as_bytes(std::string_view(large).substr(static_cast<std::size_t>(given), kMiB));
    given += kMiB;
    return piece;
  };
  EXPECT_EQ(store->put_if_absent("object", kLarge, source, later).error().code, Code::kCorrupt);
  EXPECT_TRUE(uploads().empty());
  EXPECT_TRUE(store->list("object", later)->empty());
}

TEST_F(S3Faults, LeavesNoUploadWhenAServiceRefusesAPart) {
  const auto store = open();
  warm_up(*store);
  proxy->add({.kind = Kind::kAnswer,
              .match = kSecondPart,
              .times = 2,
              .status = 403,
              .code = "AccessDenied"});
  EXPECT_EQ(put_if_absent(*store, "object", large, later).error().code, Code::kInvalid);
  EXPECT_TRUE(uploads().empty());
}

class S3Killed : public S3Faults {
 protected:
  // Kills a process when it is in the middle of an upload of `name`.
  void kill_while_uploading(const std::string& name) {
    proxy->add({.kind = Kind::kThrottle, .match = "partNumber", .times = 99, .amount = kMiB});
    ChildProcess child(
        {"/proc/self/exe", "--put", proxy->endpoint(), prefix, name, std::to_string(large.size())},
        {}, "/dev/null");
    ASSERT_TRUE(eventually([&] { return proxy->seen("/" + name + "?partNumber=2") > 0; }));
    ::kill(child.pid(), SIGKILL);
    child.wait();
    proxy->clear();
    ASSERT_EQ(uploads(), std::vector<std::string>{prefix + "/" + name});
  }
};

TEST_F(S3Killed, IsTakenUpByTheNextLifeThatWritesTheSame) {
  kill_while_uploading("object");
  const auto store = open();
  ASSERT_TRUE(put_if_absent(*store, "object", large, later));
  EXPECT_TRUE(uploads().empty());
  EXPECT_TRUE(standing("object") == large);
}

TEST_F(S3Killed, IsClearedAwayOnceNobodyHasTouchedItForLong) {
  kill_while_uploading("object");
  open();  // a young one may be somebody's at work
  EXPECT_EQ(uploads().size(), 1u);
  S3Options impatient = options();
  impatient.orphan_age = 0s;
  open(impatient);
  EXPECT_TRUE(uploads().empty());
}

TEST_F(S3Faults, SparesAnUploadWhoseThousandAndFirstPartIsYoung) {
  const auto answer = [&](const char* match, const std::string& body) {
    proxy->add({.kind = Kind::kAnswer, .match = match, .status = 200, .body = body});
  };
  const auto open_with_second_page = [&](const std::string& time) {
    answer("&uploads=",
           "<ListMultipartUploadsResult><Upload><Key>" + prefix +
               "/object</Key><UploadId>one</UploadId><Initiated>2013-05-24T00:00:00Z</Initiated>"
               "</Upload></ListMultipartUploadsResult>");
    answer("max-parts=",
           "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>1000"
           "</NextPartNumberMarker><Part><LastModified>2013-05-24T00:00:00Z</LastModified></Part>"
           "</ListPartsResult>");
    answer("part-number-marker=1000", "<ListPartsResult><Part><LastModified>" + time +
                                          "</LastModified></Part></ListPartsResult>");
    open();
  };
  open_with_second_page("2999-01-01T00:00:00Z");
  EXPECT_EQ(proxy->faults_done(), 3);
  EXPECT_EQ(proxy->seen("DELETE"), 0);
  open_with_second_page("2013-05-24T00:00:01Z");
  EXPECT_EQ(proxy->faults_done(), 6);
  EXPECT_EQ(proxy->seen("DELETE"), 1);
}

TEST_F(S3Faults, ClearsAwayAProbeThatWasLeftBehind) {
  const auto store = open();
  ASSERT_TRUE(put_if_absent(*store, ".tmp-probe-0", "x", later));
  EXPECT_TRUE(store->list("", later)->empty());
  open();
  std::string into(1, ' ');
  EXPECT_TRUE(store->read(".tmp-probe-0", 0, std::as_writable_bytes(std::span(into)), later));
  S3Options impatient = options();
  impatient.orphan_age = 0s;
  open(impatient);
  EXPECT_EQ(
      store->read(".tmp-probe-0", 0, std::as_writable_bytes(std::span(into)), later).error().code,
      Code::kNotFound);
}

int put_one(char** arguments) {
  S3Options options;
  options.endpoint = arguments[2];
  options.bucket = "surefoot";
  options.prefix = arguments[3];
  options.part_bytes = 8 * kMiB;
  options.client.credentials.environment = test_environment();
  const auto store = S3Store::open(options, false, now() + 1min).value();
  const std::string content = content_of(std::atoll(arguments[5]), 2);
  return put_if_absent(*store, arguments[4], content, now() + 1min) ? 0 : 1;
}

}  // namespace
}  // namespace surefoot::s3

int main(int count, char** arguments) {
  if (count == 6 && std::string_view(arguments[1]) == "--put")
    return surefoot::s3::put_one(arguments);
  ::testing::InitGoogleTest(&count, arguments);
  surefoot::s3::server = surefoot::s3::S3Server::seaweedfs();
  const int failed = RUN_ALL_TESTS();
  surefoot::s3::server.reset();
  return failed;
}
