#include "launcher/fault_list.h"

#include <algorithm>
#include <sstream>

#include "common/file.h"
#include "configs/fault.h"

namespace surefoot {

std::vector<std::string> merge_faults(std::vector<std::string> known,
                                      const std::vector<std::string>& given) {
  std::vector<bool> taken(known.size());
  for (const std::string& text : given) {
    std::size_t place = 0;
    while (place < taken.size() && (taken[place] || known[place] != text)) ++place;
    if (place < taken.size()) {
      taken[place] = true;
    } else {
      known.push_back(text);
    }
  }
  return known;
}

Result<std::vector<std::string>> remember_faults(const std::filesystem::path& job_directory,
                                                 const std::vector<std::string>& given) {
  const std::filesystem::path file = job_directory / "faults";
  std::vector<std::string> known;
  auto content = read_file(file);
  if (!content && content.error().code != Code::kNotFound) return content.error();
  std::istringstream lines(content ? *content : "");
  for (std::string line; std::getline(lines, line);) known.push_back(line);
  const std::vector<std::string> all = merge_faults(known, given);
  if (all.size() > static_cast<std::size_t>(kMaxFaults)) {
    return error(
        Code::kInvalid,
        "{} faults are more than the {} that a job can have in its life (run it with --fresh)",
        all.size(), kMaxFaults);
  }
  if (all.size() == known.size()) return all;
  std::string text;
  for (const std::string& fault : all) text += fault + "\n";
  SUREFOOT_TRY(write_file_atomically(file, text));
  return all;
}

}  // namespace surefoot
