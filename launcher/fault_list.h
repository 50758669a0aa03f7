// The faults injected into a job, over all its runs: <job directory>/faults, a line each.
//
// A fault fires once in the life of a job, and is known by its index, so the list only grows: a run
// that names faults which an earlier one named too gets their old places, new ones are appended.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/status.h"

namespace surefoot {

// Each text of `given` takes the place of an equal one in `known` that no other has taken, or a new
// place at the end. Pure.
[[nodiscard]] std::vector<std::string> merge_faults(std::vector<std::string> known,
                                                    const std::vector<std::string>& given);

// kInvalid: more than the arena has marks for. Blocks on the file system.
[[nodiscard]] Result<std::vector<std::string>> remember_faults(
    const std::filesystem::path& job_directory, const std::vector<std::string>& given);

}  // namespace surefoot
