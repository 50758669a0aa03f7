// Where a job's files lie. Pure path arithmetic, but for the job's id.
//
//   <dir>/job.yaml       the job file as it ran: everything filled in
//   <dir>/job.json       {"id": ..., "name": ...}
//   <dir>/journal.db     the supervisor's journal
//   <dir>/service.keys   how supervisor and services know each other; mode 0600
//   <dir>/probe          name of the object by which machines prove that they see one store
//   <dir>/service/       what services remember of the job, a file a machine
//   <dir>/logs/          attempt-003/rank-1.log, node.log
//   <dir>/metrics/       metrics.jsonl and TensorBoard event files
//   <dir>/final/         model.safetensors, config.json
//   <dir>/checkpoints/   unless checkpoint.to says otherwise: <to>/<name>/job.json, step-.../
#pragma once

#include <filesystem>
#include <string>

#include "common/ids.h"
#include "common/status.h"
#include "configs/job.h"

namespace surefoot {

struct JobDirectory {
  std::filesystem::path root;  // absolute

  // `--dir`, or runs/<name>/ beside the job file.
  [[nodiscard]] static JobDirectory of(const LoadedJob& job, const std::string& dir_option);
  [[nodiscard]] std::filesystem::path job_file() const { return root / "job.yaml"; }
  [[nodiscard]] std::filesystem::path journal() const { return root / "journal.db"; }
  [[nodiscard]] std::filesystem::path logs() const { return root / "logs"; }
  [[nodiscard]] std::filesystem::path attempt_logs(Attempt attempt) const;  // logs/attempt-003
  [[nodiscard]] std::filesystem::path metrics() const { return root / "metrics"; }
  [[nodiscard]] std::filesystem::path service_keys() const { return root / "service.keys"; }
  // What services remember of the job: a file for each machine, <host>.json.
  [[nodiscard]] std::filesystem::path service_history() const { return root / "service"; }
  [[nodiscard]] std::filesystem::path final_model() const { return root / "final"; }
  // Folder of this job's checkpoints: <checkpoint.to>/<name>, absolute. Only where that is a
  // folder (store_url.h).
  [[nodiscard]] std::filesystem::path checkpoints(const config::Job& job) const;

  // Reads the id from job.json, or makes the folder, an id and the file. Safe when several
  // processes do it at once: all get the same id.
  [[nodiscard]] Result<std::string> job_id(const std::string& name) const;
  // For a job that has its id already, on a machine that may not see the supervisor's folder: makes
  // a stand-in where there is none, or takes over that of an earlier job. kInvalid: another job's
  // supervisor has the folder, or it cannot be made.
  [[nodiscard]] Status claim(const std::string& name, const std::string& id) const;
  // The same, but makes nothing. kNotFound: no job has been here.
  [[nodiscard]] Result<std::string> existing_job_id(const std::string& name) const;
};

}  // namespace surefoot
