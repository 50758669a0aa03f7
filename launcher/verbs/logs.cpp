#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <vector>

#include "launcher/journal.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kPause = 200'000;  // microseconds between looks

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

// Prints what files have got since the last look, each line with the attempt and the file it is
// from.
class Printer {
 public:
  void print_attempt(const JobDirectory& directory, Attempt attempt, std::optional<int> rank) {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(directory.attempt_logs(attempt), none)) {
      const fs::path& file = entry.path();
      const bool is_log = file.extension() == ".log" || file.filename() == "traces.txt";
      const bool wanted = !rank || file.filename() == fmt::format("rank-{}.log", *rank);
      if (is_log && wanted) files.push_back(file);
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files)
      print(file, fmt::format("{} {}", attempt, file.stem().string()));
    std::fflush(stdout);
  }
  // What ends without an end of line.
  void print_rest() {
    for (auto& [file, log] : logs_) {
      if (!log.rest.empty()) print_line(log.label, log.rest);
      log.rest.clear();
    }
  }

 private:
  struct Log {
    std::string label;
    std::streamoff read = 0;
    std::string rest;  // of a line whose end comes later
  };

  void print(const fs::path& file, const std::string& label) {
    Log& log = logs_[file];
    log.label = label;
    std::ifstream in(file, std::ios::binary);
    in.seekg(log.read);
    char block[64 << 10];
    while (in.read(block, sizeof block), in.gcount() > 0) {
      log.read += in.gcount();
      log.rest.append(block, static_cast<std::size_t>(in.gcount()));
      std::size_t done = 0;
      for (std::size_t end; (end = log.rest.find('\n', done)) != std::string::npos; done = end + 1)
        print_line(label, std::string_view(log.rest).substr(done, end - done));
      log.rest.erase(0, done);
    }
  }
  static void print_line(const std::string& label, std::string_view line) {
    std::printf("%s| %.*s\n", label.c_str(), static_cast<int>(line.size()), line.data());
  }

  std::map<fs::path, Log> logs_;
};

bool runs(const JobDirectory& directory) {
  auto view = read_journal(directory.root, 0);
  return view && view->supervisor && is_alive(*view->supervisor);
}

}  // namespace

int logs_verb(const LogsArguments& arguments) {
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  std::vector<Attempt> attempts = attempts_in(found->directory);
  while (attempts.empty() && arguments.follow && runs(found->directory)) {
    ::usleep(kPause);
    attempts = attempts_in(found->directory);
  }
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
    // Asked before the last look, so that nothing written until the end is missed.
    more = arguments.follow && runs(found->directory);
    for (const Attempt attempt : attempts_in(found->directory)) {
      const bool wanted = arguments.attempt ? attempt == *arguments.attempt : attempt >= first;
      if (wanted) printer.print_attempt(found->directory, attempt, arguments.rank);
    }
    if (more) ::usleep(kPause);
  }
  printer.print_rest();
  return kExitOk;
}

}  // namespace surefoot
