#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <vector>

#include "common/file.h"
#include "launcher/journal.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

std::optional<Attempt> attempt_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  constexpr std::string_view kPrefix = "attempt-";
  Attempt attempt;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  if (std::from_chars(name.data() + kPrefix.size(), end, attempt.value).ptr != end)
    return std::nullopt;
  return attempt;
}

std::vector<Attempt> attempts_in(const JobDirectory& directory) {
  std::vector<Attempt> attempts;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(directory.logs(), none)) {
    if (const auto attempt = attempt_of(entry.path())) attempts.push_back(*attempt);
  }
  std::sort(attempts.begin(), attempts.end());
  return attempts;
}

// Prints what files have got since the last look, each line with the file it is from.
class Printer {
 public:
  void print(const fs::path& file, const std::string& label) {
    auto content = read_file(file);
    if (!content) return;
    std::size_t& done = printed_[file];
    while (done < content->size()) {
      const std::size_t end = content->find('\n', done);
      if (end == std::string::npos) break;  // the rest of the line comes later
      std::printf("%s| %.*s\n", label.c_str(), static_cast<int>(end - done),
                  content->c_str() + done);
      done = end + 1;
    }
    std::fflush(stdout);
  }
  void print_attempt(const JobDirectory& directory, Attempt attempt, std::optional<int> rank) {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(directory.attempt_logs(attempt), none))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      const std::string stem = file.stem().string();
      if (rank && stem != fmt::format("rank-{}", *rank)) continue;
      print(file, fmt::format("{} {}", attempt, stem));
    }
  }

 private:
  std::map<fs::path, std::size_t> printed_;
};

bool runs(const JobDirectory& directory) {
  auto view = read_journal(directory.root, 0);
  return view && view->supervisor && is_alive(*view->supervisor);
}

}  // namespace

int logs_verb(const LogsArguments& arguments) {
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  const std::vector<Attempt> attempts = attempts_in(found->directory);
  if (attempts.empty())
    return complain(error(Code::kNotFound, "no attempt of {} has written a log yet",
                          found->directory.root.string()));
  const Attempt first = arguments.attempt.value_or(attempts.back());
  if (std::find(attempts.begin(), attempts.end(), first) == attempts.end()) {
    return complain(error(Code::kNotFound, "attempt {} has no logs; there are attempts {} to {}",
                          first, attempts.front(), attempts.back()));
  }
  Printer printer;
  for (bool more = true; more;) {
    more = arguments.follow && runs(found->directory);
    for (const Attempt attempt : attempts_in(found->directory)) {
      const bool wanted = arguments.attempt ? attempt == *arguments.attempt : attempt >= first;
      if (wanted) printer.print_attempt(found->directory, attempt, arguments.rank);
    }
    if (more) ::usleep(200000);
  }
  return kExitOk;
}

}  // namespace surefoot
