#include "launcher/before_launch.h"

#include <nlohmann/json.hpp>

#include "launcher/doctor/gpu_checks.h"
#include "launcher/doctor/programs.h"
#include "launcher/needs.h"

namespace surefoot {
namespace {

using doctor::Finding;

constexpr const char* kWorker = "worker";

// Loads its libraries while the GPUs are looked at.
doctor::Check ask_worker(const std::filesystem::path& file, const std::vector<std::string>& sets,
                         const std::filesystem::path& programs, Duration patience) {
  return {{kWorker}, patience, [&file, &sets, &programs](const doctor::Asked& asked) {
            const auto said = doctor::describe(programs / "surefoot-worker", file, sets, asked);
            if (said) return asked.say(doctor::ok(kWorker, said->dump()));
            asked.say(said.error().code == Code::kInvalid
                          ? doctor::bad(kWorker, said.error().message, "")
                          : doctor::not_checked(kWorker, said.error().message));
          }};
}

// Of a GPU it does not take: without what stands before it.
std::string words_of_worker(const std::string& found) {
  const std::size_t at = found.find("resources.device: ");
  return found.substr(at == std::string::npos ? 0 : at);
}

}  // namespace

Result<Fitness> look_before_launch(const config::Job& job, const std::filesystem::path& file,
                                   const std::vector<std::string>& sets,
                                   const std::filesystem::path& programs) {
  Fitness fitness;
  const doctor::GpuNeed need = doctor::gpu_need_of(job.resources(), visible_devices(),
                                                   job.resources().workers_per_node().max());
  if (need.use != doctor::GpuUse::kUsed) return fitness;
  const Duration patience = std::chrono::milliseconds(job.recovery().check_timeout());
  std::vector<doctor::Check> checks = doctor::gpu_checks(need, programs, patience);
  checks.push_back(ask_worker(file, sets, programs, patience));
  std::vector<Finding> findings = doctor::run_checks(checks);
  // It has something to say too where there is no GPU: that comes first.
  std::vector<Finding> of_worker;
  std::erase_if(findings, [&](Finding& finding) {
    if (finding.check != kWorker) return false;
    of_worker.push_back(std::move(finding));
    return true;
  });
  doctor::LaunchCheck check = doctor::judge_before_launch(findings);
  if (!check.faults.empty()) return error(Code::kInvalid, "{}", doctor::first_fault(check));
  for (const Finding& finding : of_worker) {
    if (finding.verdict == doctor::Verdict::kBad)
      return error(Code::kInvalid, "{}", words_of_worker(finding.found));
    if (finding.verdict != doctor::Verdict::kOk)
      return error(Code::kRetry, "surefoot-worker --describe: {}", finding.found);
    fitness.flops_per_sample =
        flops_per_sample_of(nlohmann::json::parse(finding.found, nullptr, false));
  }
  fitness.warnings = std::move(check.warnings);
  return fitness;
}

}  // namespace surefoot
