#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/file.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

bool is_job_directory(const fs::path& folder) {
  return fs::exists(folder / "job.yaml") && fs::exists(folder / "job.json");
}

Result<FoundJob> read_job(const fs::path& folder) {
  FoundJob found;
  found.directory.root = folder;
  LoadOptions options;
  options.check_files = false;
  LoadOutcome outcome = load_job(found.directory.job_file(), options);
  if (!outcome.faults.empty()) return error(Code::kInvalid, "{}", outcome.faults.front().text());
  found.job = std::move(outcome.job.job);
  SUREFOOT_ASSIGN(const std::string text, read_file(folder / "job.json"));
  const auto object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object() || !object.contains("id") || !object["id"].is_string()) {
    return error(Code::kCorrupt, "{} is damaged", (folder / "job.json").string());
  }
  found.id = object["id"].get<std::string>();
  return found;
}

// The job in `runs` whose journal changed last.
Result<FoundJob> newest_in(const fs::path& runs) {
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(runs, none)) {
    if (!is_job_directory(entry.path())) continue;
    const auto changed = fs::last_write_time(entry.path() / "journal.db", none);
    if (none) continue;
    if (!newest || changed > newest->first) newest = {changed, entry.path()};
  }
  if (!newest) return error(Code::kNotFound, "there is no job in {}", runs.parent_path().string());
  return read_job(newest->second);
}

}  // namespace

Result<FoundJob> find_job(const std::string& where) {
  std::error_code failed;
  const fs::path path = fs::absolute(where.empty() ? "." : where, failed).lexically_normal();
  const fs::path folder = path.has_filename() ? path : path.parent_path();
  if (fs::is_directory(folder, failed)) {
    if (is_job_directory(folder)) return read_job(folder);
    if (folder.filename() == "runs") return newest_in(folder);
    return newest_in(folder / "runs");
  }
  if (!fs::exists(path, failed)) return error(Code::kNotFound, "there is no {}", path.string());
  LoadOptions options;
  options.check_files = false;
  const LoadOutcome outcome = load_job(path, options);
  if (!outcome.faults.empty()) return error(Code::kInvalid, "{}", outcome.faults.front().text());
  const JobDirectory directory = JobDirectory::of(outcome.job, "");
  if (!is_job_directory(directory.root)) {
    return error(Code::kNotFound, "{} has not run yet: there is no {}", path.string(),
                 directory.root.string());
  }
  return read_job(directory.root);
}

int complain(const Error& error) {
  std::fprintf(stderr, "surefoot: %s\n", error.message.c_str());
  if (error.code == Code::kNotFound || error.code == Code::kNoSpace) return kExitNoInput;
  return error.code == Code::kInvalid ? kExitWrongUse : kExitTryLater;
}

nlohmann::json invalid_job_json(const std::vector<Fault>& faults) {
  nlohmann::json list = nlohmann::json::array();
  for (const Fault& fault : faults) {
    list.push_back({{"file", fault.file},
                    {"line", fault.line},
                    {"column", fault.column},
                    {"key", fault.key},
                    {"message", fault.message}});
  }
  return {{"valid", false}, {"faults", list}};
}

int complain_about(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) std::fprintf(stderr, "%s\n", fault.text().c_str());
  return kExitWrongUse;
}

}  // namespace surefoot
