// Writes the seeds of tests/fuzz/corpus: make_fuzz_corpus FOLDER. The same bytes every time. What
// fuzzing has found lies beside them, under the name of what it was.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "checkpoint/manifest.h"
#include "checkpoint/service.pb.h"
#include "checkpoint/testing/small_state.h"
#include "checkpoint/testing/test_keys.h"

namespace surefoot::testing {
namespace {

namespace fs = std::filesystem;

class Corpus {
 public:
  explicit Corpus(fs::path folder) : folder_(std::move(folder)) {}
  void add(const std::string& target, const std::string& name, std::string_view bytes) const {
    fs::create_directories(folder_ / target);
    std::ofstream out(folder_ / target / name, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    SUREFOOT_CHECK(out.good());
  }

 private:
  fs::path folder_;
};

PartHeader header_of(const SmallState& state, int part, int of, bool sealed) {
  const ChunkRange chunks = part_chunks(state.layout.chunks(), part, of);
  PartHeader header{identity_of(state, 20, 3),
                    part,
                    of,
                    chunks,
                    {state.digests.begin() + chunks.begin, state.digests.begin() + chunks.end},
                    std::nullopt};
  if (sealed) seal_digests(header, test_key(1));
  return header;
}

void add_formats(const Corpus& corpus) {
  StateLayout tiny;
  tiny.add_section("parameters", DType::kF32, {{"w", {3, 2}, 0}, {"b", {}, 0}});
  corpus.add("layout", "empty", StateLayout().to_json());
  corpus.add("layout", "tiny", tiny.to_json());
  corpus.add("layout", "moments", small_layout(10).to_json());
  const SmallState state = small_state(2, 1);
  for (const bool sealed : {false, true}) {
    const std::string kind = sealed ? "sealed" : "plain";
    std::vector<StoredPart> parts;
    for (int part = 0; part < 2; ++part) {
      const PartHeader header = header_of(state, part, 2, sealed);
      const std::string bytes = encode_part_header(header);
      parts.push_back({static_cast<std::int64_t>(bytes.size()) + header.payload_bytes(), bytes});
      corpus.add("part_header", fmt::format("{}-{}", kind, part),
                 bytes.substr(0, bytes.find_last_not_of(' ') + 1).substr(8));
    }
    corpus.add("part_header", kind + "-framed", parts[1].header);
    const std::string text = encode_manifest(*make_manifest(parts));
    corpus.add("manifest", kind, text);
    corpus.add("manifest", kind + "-cut", text.substr(0, text.size() / 2));
  }
}

service::Request request() {
  service::Request request;
  request.set_protocol(1);
  request.set_job_id("0123456789abcdef");
  return request;
}

void add_messages(const Corpus& corpus) {
  const auto add = [&](const std::string& name, const auto& message) {
    corpus.add("service_message", name, message.SerializeAsString());
  };
  service::Request hello = request();
  hello.mutable_hello()->set_attempt(3);
  hello.mutable_hello()->set_layout(small_layout(2).to_json());
  hello.mutable_hello()->set_training_hash(digest("training").hex());
  hello.mutable_hello()->add_training_lines("train.seed: 1");
  hello.mutable_hello()->set_local_size(2);
  hello.mutable_hello()->set_node_count(1);
  add("hello", hello);
  service::Request restore = request();
  restore.mutable_restore()->mutable_candidate()->set_step(20);
  restore.mutable_restore()->mutable_candidate()->set_digest(digest("state").hex());
  add("restore", restore);
  service::Request status = request();
  status.mutable_status()->set_records_from(7);
  add("status", status);
  service::Request ask = request();
  ask.mutable_ask()->set_drain(true);
  add("ask", ask);
  service::Request launch = request();
  launch.mutable_launch()->set_attempt(3);
  launch.mutable_launch()->set_command("orted -mca ess env");
  launch.mutable_launch()->add_environment("SUREFOOT_ATTEMPT=3");
  launch.mutable_launch()->set_log_folder("/job/logs/attempt-003");
  add("launch", launch);
  service::Request check = request();
  check.mutable_check()->set_seconds(10);
  check.mutable_check()->add_connect_to("10.0.0.2:4000");
  check.mutable_check()->set_put_probe("probe-0123abcd");
  check.mutable_check()->set_describe(true);
  add("check", check);
  service::Request log = request();
  log.mutable_read_log()->set_attempt(3);
  log.mutable_read_log()->set_rank(1);
  log.mutable_read_log()->set_limit(65536);
  add("read_log", log);
  service::Request end = request();
  end.mutable_end_gang()->set_below(4);
  add("end_gang", end);
  service::Reply reply;
  reply.mutable_status()->add_ranks()->set_reason("why");
  reply.mutable_status()->add_records()->add_phase_seconds(0.5);
  add("reply", reply);
}

void add_s3(const Corpus& corpus) {
  corpus.add(
      "s3_reply", "list",
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents>"
      "<Key>a%2Fb</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified><Size>7</Size>"
      "</Contents></ListBucketResult>");
  corpus.add(
      "s3_reply", "error",
      "<Error><Code>SlowDown</Code><Message>Please &amp; wait</Message><Region>r</Region></Error>");
  corpus.add(
      "s3_reply", "initiated",
      "<InitiateMultipartUploadResult><UploadId>u-1</UploadId></InitiateMultipartUploadResult>");
  corpus.add(
      "s3_reply", "uploads",
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>a</Key><UploadId>u</UploadId>"
      "<Initiated>2013-05-24T00:00:00.000Z</Initiated></Upload></ListMultipartUploadsResult>");
  corpus.add(
      "s3_reply", "parts",
      "<ListPartsResult><Part><PartNumber>1</PartNumber><LastModified>2013-05-24T00:00:00.000Z"
      "</LastModified></Part></ListPartsResult>");
  corpus.add("s3_reply", "content_range", "bytes 0-9223372036854775806/9223372036854775807");
  corpus.add("s3_credentials", "file",
             "# a comment\n[default]\naws_access_key_id = KEY\naws_secret_access_key = SECRET\n"
             "[other]\naws_access_key_id=K\naws_secret_access_key=SECRET\naws_session_token=T\n");
  corpus.add("s3_credentials", "half", "[default]\naws_secret_access_key = SECRET\n");
  corpus.add("s3_credentials", "role",
             R"({"Code":"Success","AccessKeyId":"K","SecretAccessKey":"SECRET","Token":"T",)"
             R"("Expiration":"2030-01-01T00:00:00Z"})");
}

void add_notices(const Corpus& corpus) {
  corpus.add("notice", "aws_action", R"({"action": "terminate", "time": "2026-12-01T08:22:00Z"})");
  corpus.add("notice", "aws_rebalance", R"({"noticeTime": "2020-10-26T14:14:14Z"})");
  corpus.add("notice", "aws_maintenance",
             R"([{"NotBefore": "21 Jan 2027 09:00:43 GMT", "Code": "system-reboot", )"
             R"("EventId": "instance-event-0d5", "State": "active"}])");
  corpus.add(
      "notice", "azure",
      R"({"DocumentIncarnation": 2, "Events": [{"EventId": "602d9444", "EventType": "Preempt", )"
      R"("Resources": ["me"], "EventStatus": "Scheduled", )"
      R"("NotBefore": "Tue, 01 Dec 2026 18:29:47 GMT", "DurationInSeconds": -1}, )"
      R"({"EventId": "a", "EventType": "Freeze", "Resources": ["me"], )"
      R"("EventStatus": "Started", "NotBefore": "", "DurationInSeconds": 9}]})");
  corpus.add("notice", "gcp", "TRUE");
  corpus.add("notice", "china_time", "2026-12-01 12:05:33");
  corpus.add("notice", "post", R"({"seconds": 30})");
}

void add_edits(const Corpus& corpus) {
  const auto add = [&](const std::string& name, std::initializer_list<int> bytes) {
    std::string text;
    for (const int byte : bytes) text += static_cast<char>(byte);
    corpus.add("sealed_checkpoint", name, text);
  };
  // Digests anew?, then for each edit: object, other object (each two bytes), kind, place, ...
  add("unchanged", {1});
  add("digests-anew", {0});
  add("flip", {0, 1, 0, 0, 0, 0, 50, 1, 4});
  add("cut", {0, 2, 0, 0, 0, 1, 0, 2});
  add("insert", {0, 0, 0, 0, 0, 2, 100, 0, 65});
  add("replay", {0, 1, 0, 0, 0, 3, 0, 0, 255, 255, 2, 0, 2, 0, 3, 0, 0, 255, 255});
}

}  // namespace
}  // namespace surefoot::testing

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_fuzz_corpus FOLDER\n");
    return 64;
  }
  const surefoot::testing::Corpus corpus(arguments[1]);
  surefoot::testing::add_formats(corpus);
  surefoot::testing::add_messages(corpus);
  surefoot::testing::add_notices(corpus);
  surefoot::testing::add_edits(corpus);
  surefoot::testing::add_s3(corpus);
  return 0;
}
