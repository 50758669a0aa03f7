#include "launcher/store_probe.h"

#include "common/file.h"
#include "common/ids.h"
#include "common/log.h"

namespace surefoot {

StoreProbe::StoreProbe(std::filesystem::path note, const std::string& job_id)
    : note_(std::move(note)), name_("probe-" + job_id + make_job_id()) {
  if (auto left = read_file(note_.string())) old_name_ = *left;
}

Result<StoreProbe::Part> StoreProbe::part(Time deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [this] { return !putting_; }))
    return error(Code::kRetry, "checkpoint.to does not answer another machine that writes to it");
  if (!putter_.empty()) return Part::kFind;
  putting_ = true;
  if (Status noted = write_file_atomically(note_, name_); !noted)
    spdlog::warn("{}", noted.error().message);
  return Part::kPut;
}

void StoreProbe::put_by(const std::string& machine) {
  const std::lock_guard lock(mutex_);
  putting_ = false;
  putter_ = machine;
  changed_.notify_all();
}

std::string StoreProbe::putter() const {
  const std::lock_guard lock(mutex_);
  return putter_;
}

bool StoreProbe::take() {
  const std::lock_guard lock(mutex_);
  if (putter_.empty()) return false;
  putter_.clear();
  std::error_code ignored;
  std::filesystem::remove(note_, ignored);
  return true;
}

}  // namespace surefoot
