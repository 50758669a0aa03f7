#include "launcher/doctor/gpu_checks.h"

#include <fmt/format.h>

#include "launcher/doctor/nvidia.h"
#include "launcher/doctor/programs.h"
#include "launcher/nvidia/nvml.h"

namespace surefoot::doctor {

std::vector<Check> gpu_checks(const GpuNeed& need, const std::filesystem::path& programs,
                              Duration patience) {
  const bool used = need.use != GpuUse::kUnused;
  std::vector<Check> checks;
  checks.push_back({{"gpu driver"}, patience, [need](const Asked& asked) {
                      for (const Finding& finding : check_gpus(look_at_gpus(), need))
                        asked.say(finding);
                    }});
  checks.push_back({{"xid"}, patience, [used](const Asked& asked) {
                      const bool gpus = count_cards("/") > 0;
                      asked.say(check_xid(gpus ? look_at_kernel_log("/dev/kmsg") : KernelLogFacts(),
                                          gpus, used));
                    }});
  checks.push_back(
      {{"cuda driver", "cuda runtime", "nccl"}, patience, [programs, used](const Asked& asked) {
         // Of those that the worker's program loads, where it loads any.
         const auto libraries = list_libraries(programs / "surefoot-worker", asked);
         const auto file = [&](const char* prefix) {
           return libraries ? path_of(*libraries, prefix) : std::string();
         };
         const CudaFacts facts = look_at_cuda(file("libcudart"), file("libnccl"));
         for (const Finding& finding : check_cuda(facts, count_cards("/"), used))
           asked.say(finding);
       }});
  return checks;
}

LaunchCheck judge_before_launch(const std::vector<Finding>& findings) {
  LaunchCheck out;
  for (const Finding& finding : findings) {
    const bool tolerable =
        finding.check == "gpu clocks" || finding.check == "gpu memory" || finding.check == "xid";
    const bool unknown = finding.check == "gpu driver" && finding.verdict == Verdict::kNotChecked;
    const bool bad = finding.verdict == Verdict::kBad || unknown;
    if (!bad && finding.verdict != Verdict::kWarn) continue;
    std::string line = finding.check + (finding.on.empty() ? "" : " " + finding.on) + ": " +
                       finding.found + (finding.cure.empty() ? "" : " -> " + finding.cure);
    (bad && !tolerable ? out.faults : out.warnings).push_back(std::move(line));
  }
  return out;
}

std::string first_fault(const LaunchCheck& check) {
  if (check.faults.empty()) return "";
  std::string line = "resources.device: cuda: " + check.faults.front();
  if (check.faults.size() > 1)
    line += fmt::format(" (and {} more: `surefoot doctor` with the job file says them all)",
                        check.faults.size() - 1);
  return line;
}

LaunchCheck look_before_launch(const GpuNeed& need, const std::filesystem::path& programs,
                               Duration patience) {
  if (need.use != GpuUse::kUsed) return {};
  return judge_before_launch(run_checks(gpu_checks(need, programs, patience)));
}

}  // namespace surefoot::doctor
