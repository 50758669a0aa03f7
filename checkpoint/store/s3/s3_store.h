// The Store in a bucket of any S3-compatible service.
//
// One thread per object, and no thread of its own: transfers move while a call runs. Memory: at
// most `parallel` parts of `part_bytes` (parts are larger where 10,000 of them would not do, and
// then as many fewer are in flight), or as much read ahead. Nothing is written to a local disk.
//
// put_if_absent. Small objects are one PUT, others a multipart upload, both with `If-None-Match:
// *`. A service may ignore or refuse that header, so one that has not shown that it honours it is
// asked once per object of this class, with a small object of its own (".tmp-probe-..."),
// separately for the two kinds. Where it does not, the fall-back is: look, write, look who won
// (each object carries the random id of its write, x-amz-meta-surefoot-write). What that promises,
// and what not:
//   - an object that stood there before the call began is never replaced;
//   - of writers whose calls overlap one object stands afterwards, whole; one that finds another's
//     says kExists;
//   - a writer may be told that it won and be replaced by another whose call had begun before that
//     one's object appeared.
// Rule (commit) is safe with that: who puts a manifest has seen all parts of its set and looks
// again afterwards, and publishers of one set write the same bytes, so whichever stands names a
// whole set (commit.h); that of another attempt's set of the step is read back, and replaced where
// it is damaged. A part has one writer: its name holds step, attempt and number. Only job.json is
// not safe: two jobs of one name whose first writes of it overlap, with all their tries, may both
// believe that the folder is theirs. From then on each refuses the other's manifests, by their job
// id.
//
// A reset or time-out after which nobody knows whether the object was written: tried again, and
// where that does not settle it the object's write id does. kOutcomeUnknown only if that cannot be
// read either.
//
// Multipart uploads that were left behind (a process was killed, the answer to a beginning was
// lost) are aborted: those of the same name when it has been written; others when a store is opened
// for writing, and after each multipart upload, once nobody has touched them for `orphan_age`, by
// the service's clock. What fails on the way is aborted at once, some seconds beyond the deadline
// if need be.
//
// read. A large range is fetched in parallel; ranges of one size that follow each other are read
// ahead, `parallel` at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "checkpoint/store/s3/client.h"
#include "checkpoint/store/s3/reader.h"
#include "checkpoint/store/s3/replies.h"

namespace surefoot::s3 {

// How the service checks what it gets, besides the SHA-256 that is part of the signature.
enum class Checksum {
  kMd5,    // Content-MD5, and the ETag of a part must be its MD5: every service knows it
  kCrc32,  // x-amz-checksum-crc32: cheaper, for services that know it
  kNone,   // for services that refuse both or whose ETags are no MD5s
};

struct S3Options {
  std::string endpoint;  // empty: AWS
  std::string region = "us-east-1";
  std::string bucket;
  std::string prefix;  // the job's folder: no '/' at either end; empty: the whole bucket
  PathStyle path_style = PathStyle::kAuto;
  Checksum checksum = Checksum::kMd5;
  std::int64_t part_bytes = 16 << 20;
  int parallel = 4;
  // Longer than a part takes with all its tries, and then completing: nothing of an upload that is
  // alive is older.
  Duration orphan_age = std::chrono::hours(2);
  ClientOptions client;  // its region is taken from here
};

class S3Store final : public Store {
 public:
  // Looks into the bucket, so that what cannot work is known at once. kInvalid: address,
  // credentials or permissions are wrong. Unless `read_only`, what was left behind is cleared away.
  [[nodiscard]] static Result<std::unique_ptr<S3Store>> open(S3Options options, bool read_only,
                                                             Time deadline);

  Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                       Time deadline) override;
  Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
              Time deadline) override;
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override;
  Status remove(const std::string& name, Time deadline) override;
  [[nodiscard]] std::string url() const override;

  // Does the service honour put-if-absent? Nothing: nobody has had to ask yet. For logs and tests.
  [[nodiscard]] std::optional<bool> honours_put() const { return honours_put_; }
  [[nodiscard]] std::optional<bool> honours_complete() const { return honours_complete_; }

 private:
  struct Standing {
    bool there = false;
    std::string write_id;  // empty: the service does not keep it
    std::string etag;
  };
  using Body = std::span<const std::byte>;

  // What is not to be seen: probes.
  static constexpr std::string_view kTemporary = ".tmp-";

  S3Store(S3Options options, Address address);
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] Request request(const char* method, const std::string& key, const char* what,
                                Time deadline) const;
  void add_checksum(Request& request) const;
  Status in_time(const std::string& name, Time deadline) const;

  // Temporaries too, in the service's order.
  Result<std::vector<ObjectInfo>> list_all(const std::string& prefix, Time deadline);
  Finished put(const std::string& key, Body body, const std::string& write_id, bool conditional,
               Time deadline);
  Status put_small(const std::string& name, Body body, Time deadline);
  Status put_large(const std::string& name, std::int64_t bytes, const ByteSource& source,
                   Time deadline);
  // What stands there, and is it what was written under this id?
  [[nodiscard]] Result<Standing> look(const std::string& key, Time deadline);
  Status settle_put(const std::string& key, const std::string& write_id, bool conditional,
                    const Finished& finished, Time deadline);

  [[nodiscard]] Result<std::string> initiate(const std::string& key, const std::string& write_id,
                                             Time deadline);
  [[nodiscard]] Result<std::vector<UploadedPart>> send_parts(const std::string& key,
                                                             const std::string& upload,
                                                             std::int64_t bytes,
                                                             const ByteSource& source,
                                                             Time deadline);
  Request part_request(const std::string& key, const std::string& upload, std::int64_t number,
                       Body body, Time deadline) const;
  Finished complete(const std::string& key, const std::string& upload,
                    const std::vector<UploadedPart>& parts, bool conditional, Time deadline);
  // Has a few seconds of its own, since what fails fails at the deadline as a rule.
  void abort(const std::string& key, const std::string& upload);
  // The object stands, so all uploads of its name are left behind: by an earlier life, or by a try
  // to begin whose answer was lost. clear_left_behind() aborts them.
  void abort_others(const std::string& key, Time deadline);
  void abort_all(Time until);
  // Writes the probe, once more; `conditional`: if it is absent.
  using ProbeWrite = std::function<Finished(const std::string& probe, Body body, bool conditional)>;
  Result<bool> honours(std::optional<bool>& known, const char* what, const ProbeWrite& write,
                       Time deadline);
  [[nodiscard]] Result<bool> honours_put(Time deadline);
  [[nodiscard]] Result<bool> honours_complete(Time deadline);

  using Uploads = std::vector<std::pair<std::string, std::string>>;  // key, id
  [[nodiscard]] Result<Uploads> orphans(const std::string& key_prefix, bool of_any_age,
                                        Time deadline);
  // Both by the service's clock; without one (-1) nothing is.
  [[nodiscard]] bool is_old(std::int64_t time_s, std::int64_t now_s) const;
  [[nodiscard]] Result<bool> is_untouched(const std::string& key, const std::string& upload,
                                          Time deadline);
  void clear_left_behind(Time deadline);

  S3Options options_;
  Client client_;
  Reader reader_;
  std::optional<bool> honours_put_;
  std::optional<bool> honours_complete_;
  Uploads to_abort_;
  bool can_list_uploads_ = true;
};

}  // namespace surefoot::s3
