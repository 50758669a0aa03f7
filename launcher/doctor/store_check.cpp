#include "launcher/doctor/store_check.h"

#include <random>

namespace surefoot::doctor {
namespace {

constexpr std::int64_t kMaxProbeBytes = 4096;

// The name that check_node() allows to be put and removed.
std::string probe_name() {
  std::random_device device;
  return fmt::format("probe-{:08x}{:08x}", device(), device());
}

Status put_and_get(Store& store, const std::string& name, Time deadline, StoreFacts& facts) {
  const Time begin = now();
  SUREFOOT_TRY(put_if_absent(store, name, name, deadline));
  const Time put = now();
  facts.put_seconds = seconds(put - begin);
  SUREFOOT_ASSIGN(const std::string found, read_object(store, name, kMaxProbeBytes, deadline));
  facts.get_seconds = seconds(now() - put);
  if (found != name)
    return error(Code::kCorrupt, "{}/{} reads back as something else", store.url(), name);
  const Status again = put_if_absent(store, name, name, deadline);
  facts.twice = again.has_value();
  if (!again && again.error().code != Code::kExists) return again.error();
  return {};
}

}  // namespace

StoreFacts probe_store(Store& store, Time deadline, Time last) {
  StoreFacts facts;
  facts.url = store.url();
  const std::string name = probe_name();
  Status done = put_and_get(store, name, deadline, facts);
  // After a put that failed it may be there all the same.
  const Status removed = store.remove(name, last);
  if (done && !removed) done = removed;
  if (!done) {
    facts.fault = done.error().message;
    facts.retry = done.error().code == Code::kRetry || done.error().code == Code::kOutcomeUnknown;
  }
  return facts;
}

Finding check_store(const StoreFacts& facts) {
  const std::string check = "store";
  if (!facts.fault.empty()) {
    return bad(check, facts.fault,
               facts.retry ? "try again; then the network, the endpoint (checkpoint.s3) or the disk"
                           : "checkpoint.to: a place that this user can write to (s3: credentials, "
                             "bucket, policy)");
  }
  const std::string found = fmt::format("{}: put {:.1f} ms, get {:.1f} ms, removed", facts.url,
                                        facts.put_seconds * 1e3, facts.get_seconds * 1e3);
  if (!facts.twice) return ok(check, found);
  return bad(check, found + ", but a second object of one name was taken",
             "a store that heeds If-None-Match: two machines that publish could not be told apart");
}

MadeFolders::MadeFolders(const std::filesystem::path& folder) {
  std::error_code none;
  for (std::filesystem::path path = folder; !path.empty() && !std::filesystem::exists(path, none);
       path = path.parent_path())
    missing_.push_back(path);
}

MadeFolders::~MadeFolders() {
  std::error_code ignored;
  // Fails, as it should, where something is in it by now.
  for (const std::filesystem::path& path : missing_) {
    if (!std::filesystem::is_directory(path, ignored)) continue;
    std::filesystem::remove(path, ignored);
  }
}

}  // namespace surefoot::doctor
