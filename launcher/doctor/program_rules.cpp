#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/doctor/programs.h"
#include "launcher/format.h"

namespace surefoot::doctor {

Finding check_programs(const std::string& folder, const std::vector<std::string>& missing) {
  if (missing.empty()) return ok("programs", "all in " + folder);
  std::string names;
  for (const std::string& program : missing) names += (names.empty() ? "" : ", ") + program;
  return bad("programs", fmt::format("{} missing from {}", names, folder),
             "build them (make), or put them beside surefoot");
}

std::vector<LibraryFile> parse_libraries(const std::string& listed) {
  std::vector<LibraryFile> libraries;
  std::istringstream lines(listed);
  for (std::string line; std::getline(lines, line);) {
    // "libmpi.so.40 => /lib/libmpi.so.40 (0x00007f...)" or "libmpi.so.40 => not found"
    std::istringstream words(line);
    std::string name, arrow, path;
    if (words >> name >> arrow >> path && arrow == "=>")
      libraries.push_back({name, path == "not" ? "" : path});
  }
  return libraries;
}

std::string path_of(const std::vector<LibraryFile>& libraries, const std::string& prefix) {
  for (const LibraryFile& library : libraries) {
    if (library.name.starts_with(prefix)) return library.path;
  }
  return "";
}

Finding check_libraries(const std::vector<LibraryFile>& libraries) {
  const std::string check = "libraries";
  std::string missing;
  for (const LibraryFile& library : libraries) {
    if (library.path.empty()) missing += (missing.empty() ? "" : ", ") + library.name;
  }
  if (!missing.empty()) {
    return bad(check, "surefoot-worker does not find " + missing,
               "install them (tools/packages.txt), or LD_LIBRARY_PATH, or resources.bundle");
  }
  std::string found;
  for (const char* prefix : {"libtorch_cpu", "libtorch_cuda", "libopenblas", "libmkl", "libmpi",
                             "libcudart", "libnccl"}) {
    const std::string path = path_of(libraries, prefix);
    if (!path.empty()) found += (found.empty() ? "" : ", ") + path;
  }
  if (path_of(libraries, "libtorch_cuda").empty()) found += "; no GPU in this libtorch";
  return ok(check, found);
}

// "surefoot 1f..; libtorch 1.13.0; OpenBLAS 0.3.21 ... kernel SkylakeX; AVX512; threads 1"
Finding check_numerics(const std::string& numerics_id) {
  const std::string check = "blas";
  if (numerics_id.find("BLAS unknown") != std::string::npos ||
      numerics_id.find("kernel unknown") != std::string::npos) {
    return warn(check, numerics_id,
                "OpenBLAS: apt-get install libopenblas0-pthread; the reference BLAS is several "
                "times slower, and its kernel is not known");
  }
  return ok(check, numerics_id);
}

JobNeeds needs_of(const nlohmann::json& description, int workers) {
  const auto number = [&](const char* key) -> std::int64_t {
    const auto at = description.find(key);
    return at != description.end() && at->is_number() ? at->get<std::int64_t>() : 0;
  };
  return {number("state_bytes"), number("arena_bytes"),
          number("gradient_buffer_bytes") + number("receive_bytes"), workers};
}

Finding check_arena(const JobNeeds& needs, const SharedMemoryFacts& facts,
                    std::int64_t held_bytes) {
  const std::string check = "arena";
  const std::int64_t there = facts.free_bytes + held_bytes;
  const std::string found =
      fmt::format("three snapshots take {}, {} has {} for them", bytes_text(needs.arena_bytes),
                  facts.folder, bytes_text(there));
  if (there >= needs.arena_bytes) return ok(check, found);
  const std::string size = bytes_text(facts.total_bytes + needs.arena_bytes - there);
  return bad(check, found,
             facts.memory
                 ? fmt::format("mount it larger, {} at least (containers: --shm-size), or set "
                               "checkpoint.arena to a folder with more room",
                               size)
                 : "free some, or set checkpoint.arena to a folder with more room");
}

Finding check_job_memory(const JobNeeds& needs, const SharedMemoryFacts& shared,
                         std::int64_t held_bytes, const MemoryFacts& memory) {
  const std::string check = "job memory";
  const std::int64_t arena =
      shared.memory ? std::max<std::int64_t>(needs.arena_bytes - held_bytes, 0) : 0;
  const std::int64_t needed = arena + needs.workers * needs.worker_bytes;
  std::int64_t there = memory.available_bytes + memory.swap_bytes - memory.swap_used_bytes;
  std::string whose = "the machine";
  if (memory.cgroup_bytes >= 0 && memory.cgroup_bytes < there) {
    there = memory.cgroup_bytes;
    whose = "its control group";
  }
  const std::string found = fmt::format(
      "snapshots, gradients and receive buffers of {} take {} and activations beside; {} has {}",
      count_text(needs.workers, "worker", "workers"), bytes_text(needed), whose, bytes_text(there));
  if (needed <= there) return ok(check, found);
  return bad(check, found,
             whose == "the machine"
                 ? "fewer resources.workers_per_node, or a machine with more memory"
                 : "raise its limit (containers: --memory; systemd: MemoryMax=), or fewer "
                   "resources.workers_per_node");
}

Finding check_checkpoint_room(const JobNeeds& needs, const std::string& folder,
                              std::int64_t free_bytes, int keep, bool keeps_some) {
  const std::string check = "checkpoint room";
  // A new one is read back before the oldest is removed.
  const std::int64_t needed = (keep + 1) * needs.state_bytes;
  std::string found = fmt::format("{}: {} free; {} of {} take {}", folder, bytes_text(free_bytes),
                                  count_text(keep + 1, "checkpoint", "checkpoints"),
                                  bytes_text(needs.state_bytes), bytes_text(needed));
  if (keeps_some) found += ", and what keep_every keeps comes on top";
  if (free_bytes >= needed) return ok(check, found);
  const std::string cure = "free some, fewer checkpoint.keep, or another checkpoint.to";
  return free_bytes < needs.state_bytes ? bad(check, found, cure) : warn(check, found, cure);
}

Finding check_mpirun(const MpirunFacts& facts) {
  const std::string check = "mpirun";
  if (facts.late) return not_checked(check, facts.fault);
  if (!facts.fault.empty())
    return bad(check, facts.fault, "apt-get install openmpi-bin (4.1), and its folder in PATH");
  if (facts.version.find("Open MPI") == std::string::npos) {
    return bad(check, facts.version + " is not Open MPI",
               "put Open MPI 4.1's mpirun first in PATH");
  }
  const std::string text = facts.version.substr(facts.version.find_first_of("0123456789"));
  if (!text.starts_with("4.")) {
    return bad(check, facts.version + ", whose options are others",
               "Open MPI 4.1: what Surefoot passes is known to work with it");
  }
  if (!facts.runs) {
    return bad(check,
               fmt::format("{}, but it starts no program: {}", facts.version, facts.run_fault),
               "run it by hand: mpirun --oversubscribe -np 1 true");
  }
  const std::string found =
      facts.version + ", runs" + (facts.root ? " as root (--allow-run-as-root is passed)" : "");
  if (text.starts_with("4.1")) return ok(check, found);
  return warn(check, found, "Open MPI 4.1 is what this was measured and tested with");
}

Finding check_reduction(const Measured& facts) {
  const std::string check = "reduction";
  if (!facts.unavailable.empty()) return not_checked(check, facts.unavailable);
  if (!facts.fault.empty())
    return bad(check, facts.fault, "the workers of a job would fail just so; see mpirun above");
  return ok(check, fmt::format("{} ranks of this machine sum {} in {:.2f} ms, {:.2f} GB/s (in CPU "
                               "memory, beside what else runs now)",
                               facts.ranks, bytes_text(static_cast<std::int64_t>(facts.bytes)),
                               facts.seconds * 1e3, facts.bytes / facts.seconds / 1e9));
}

Finding check_ssh(const SshFacts& facts, bool needed) {
  const std::string check = "ssh";
  if (facts.late) return not_checked(check, facts.fault);
  if (facts.fault.empty()) return ok(check, facts.version);
  if (!needed) return ok(check, facts.fault + "; no other machine is named");
  return bad(check, facts.fault, "apt-get install openssh-client, or set resources.ssh");
}

}  // namespace surefoot::doctor
