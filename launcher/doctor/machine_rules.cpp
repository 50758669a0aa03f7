#include <fmt/format.h>

#include <algorithm>

#include "launcher/doctor/machine.h"
#include "launcher/format.h"

namespace surefoot::doctor {
namespace {

std::string limit_text(std::uint64_t value, bool bytes) {
  if (value == kUnlimited) return "unlimited";
  return bytes ? bytes_text(static_cast<std::int64_t>(value)) : std::to_string(value);
}

Finding check_open_files(const Limit& limit, int workers) {
  const std::string check = "open files";
  const std::uint64_t needed = kFilesBase + kFilesPerWorker * static_cast<std::uint64_t>(workers);
  std::string found = fmt::format("limit {} (hard {})", limit_text(limit.soft, false),
                                  limit_text(limit.hard, false));
  if (limit.soft >= needed) return ok(check, found);
  found += workers > 0
               ? fmt::format(", {} may need {}", count_text(workers, "worker", "workers"), needed)
               : fmt::format(", less than {}", needed);
  return bad(check, found,
             limit.hard >= needed
                 ? fmt::format("ulimit -n {}", needed)
                 : fmt::format("nofile {} in /etc/security/limits.conf, then log in anew", needed));
}

Finding check_locked_memory(const LimitFacts& facts) {
  const std::string check = "locked memory";
  const std::string found = "limit " + limit_text(facts.locked_bytes.soft, true);
  if (!facts.rdma || facts.locked_bytes.soft == kUnlimited) return ok(check, found);
  return warn(check, found + ", and RDMA has to lock all that it sends from",
              facts.locked_bytes.hard == kUnlimited
                  ? "ulimit -l unlimited"
                  : "memlock unlimited in /etc/security/limits.conf, then log in anew "
                    "(containers: --ulimit memlock=-1)");
}

Finding check_core_files(const LimitFacts& facts) {
  const std::string check = "core files";
  if (facts.core_bytes.soft == 0) return ok(check, "none are written; logs have the stack");
  const std::string found = fmt::format(
      "limit {}, to \"{}\"", limit_text(facts.core_bytes.soft, true), facts.core_pattern);
  if (facts.core_pattern.starts_with('|')) return ok(check, found);
  return warn(check,
              found +
                  ": a worker that dies writes its memory to disk before it is gone, and the "
                  "next attempt waits for that",
              "ulimit -c 0");
}

}  // namespace

Finding check_processors(const ProcessorFacts& facts, const ProcessorNeed& need) {
  const std::string check = "processors";
  std::string found = count_text(facts.usable, "processor", "processors");
  if (facts.cores > 0 && facts.cores < facts.usable)
    found += fmt::format(" on {}", count_text(facts.cores, "core", "cores"));
  double there = facts.usable;
  if (facts.quota && *facts.quota < there) {
    there = *facts.quota;
    found += fmt::format(", held to {:.3g} by its control group", there);
  }
  found += fmt::format(", load {:.1f}", facts.load);
  const int needed = need.workers * need.threads;
  if (needed == 0) return ok(check, found);
  found += fmt::format("; the job has {} of {} here", count_text(need.workers, "worker", "workers"),
                       count_text(need.threads, "thread", "threads"));
  if (needed <= there) return ok(check, found);
  const int fit = static_cast<int>(there) / need.threads;
  return warn(check, found,
              fit > 0 ? fmt::format("resources.workers_per_node: {}", fit)
                      : "a machine with more processors, or fewer threads_per_worker (other bits)");
}

Finding check_memory(const MemoryFacts& facts) {
  const std::string check = "memory";
  std::string found = fmt::format("{} of {} available", bytes_text(facts.available_bytes),
                                  bytes_text(facts.total_bytes));
  if (facts.cgroup_bytes >= 0)
    found += fmt::format(", {} left in its control group", bytes_text(facts.cgroup_bytes));
  found += facts.swap_bytes > 0
               ? fmt::format(", {} of {} swap used", bytes_text(facts.swap_used_bytes),
                             bytes_text(facts.swap_bytes))
               : ", no swap";
  if (facts.stalled_percent) {
    found += fmt::format(", processes waited for memory {:.1f} % of the last minute",
                         *facts.stalled_percent);
    if (*facts.stalled_percent >= kStalledPercent) {
      return warn(check, found,
                  "see who has it: ps -eo rss,pid,args --sort=-rss | head; df -h /dev/shm");
    }
  }
  return ok(check, found);
}

Finding check_shared_memory(const SharedMemoryFacts& facts) {
  const std::string check = "shared memory";
  if (!facts.fault.empty()) return bad(check, facts.fault, "see the message");
  std::string found = fmt::format("{}: {} of {} free", facts.folder, bytes_text(facts.free_bytes),
                                  bytes_text(facts.total_bytes));
  if (facts.arenas > 0) {
    found += fmt::format(", {} held by the snapshots of {}", bytes_text(facts.arenas_bytes),
                         count_text(facts.arenas, "job", "jobs"));
  }
  if (!facts.memory) {
    return warn(check, found + "; it is no memory but a disk, at whose speed each step is kept",
                "checkpoint.arena: a folder on a tmpfs, such as /dev/shm");
  }
  if (facts.total_bytes <= kContainerDefaultBytes) {
    return warn(check, found + ", which is what a container gets that asks for nothing",
                "docker run --shm-size=8g, or mount -o remount,size=8g " + facts.folder);
  }
  return ok(check, found);
}

std::vector<Finding> check_limits(const LimitFacts& facts, int workers) {
  return {check_open_files(facts.open_files, workers), check_locked_memory(facts),
          check_core_files(facts)};
}

void apply_logind_conf(const std::string& text, LogindFacts& facts) {
  std::string section;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    std::erase_if(line, [](unsigned char c) { return std::isspace(c); });
    if (line.starts_with('[')) section = line;
    const std::size_t equals = line.find('=');
    if (section != "[Login]" || equals == std::string::npos) continue;
    std::string value = line.substr(equals + 1);
    std::transform(value.begin(), value.end(), value.begin(), ::tolower);
    // As systemd.syntax(7) has booleans.
    const bool yes = value == "yes" || value == "true" || value == "on" || value == "1";
    const bool no = value == "no" || value == "false" || value == "off" || value == "0";
    if (!yes && !no) continue;
    const std::string key = line.substr(0, equals);
    if (key == "RemoveIPC") facts.remove_ipc = yes;
    if (key == "KillUserProcesses") facts.kill_user_processes = yes;
  }
}

Finding check_logind(const LogindFacts& facts) {
  const std::string check = "logind";
  if (!facts.runs) return ok(check, "systemd-logind does not run here");
  if (facts.uid <= kLastSystemUid) {
    return ok(check, fmt::format("user {} is a system user: logging out ends and removes nothing",
                                 facts.uid));
  }
  if (facts.kill_user_processes) {
    return warn(check, "KillUserProcesses=yes: logging out ends the job and its services",
                "loginctl enable-linger, and systemd-run --user --scope surefoot run JOB; or "
                "KillUserProcesses=no in /etc/systemd/logind.conf");
  }
  if (facts.remove_ipc && facts.arena_in_dev_shm && !facts.lingers) {
    return warn(check,
                fmt::format("RemoveIPC=yes: when user {} has logged out everywhere, the snapshots "
                            "in /dev/shm are removed",
                            facts.uid),
                "loginctl enable-linger, or RemoveIPC=no in /etc/systemd/logind.conf");
  }
  return ok(check, facts.remove_ipc ? facts.lingers ? "RemoveIPC=yes, but the user lingers"
                                                    : "RemoveIPC=yes, but the arena lies elsewhere"
                                    : "RemoveIPC=no");
}

}  // namespace surefoot::doctor
