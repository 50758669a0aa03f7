#include "launcher/doctor/programs.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/launch_book.h"

namespace surefoot::doctor {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Result<ProgramEnd> run(std::vector<std::string> argv, const Asked& asked,
                       std::vector<std::string> environment = {}) {
  ProgramRun run;
  run.argv = std::move(argv);
  run.environment = std::move(environment);
  run.deadline = asked.deadline;
  run.stop = asked.stop;
  return run_program(run);
}

bool is_late(const Result<ProgramEnd>& end) {
  return end && end->why != ProgramEnd::Why::kExited;
}

// Why it has not succeeded.
std::string fault_of(const std::string& program, const Result<ProgramEnd>& end) {
  if (!end) return end.error().message;
  const std::string said = last_line(end->errors.empty() ? end->output : end->errors);
  const std::string tail = said.empty() ? "" : ": " + said;
  if (end->why != ProgramEnd::Why::kExited)
    return fmt::format("{}: no answer in time{}", program, tail);
  if (end->status.signal != 0)
    return fmt::format("{} was ended by signal {}{}", program, end->status.signal, tail);
  return fmt::format("{} leaves with {}{}", program, end->status.code, tail);
}

// Its first two bytes; empty: it cannot be read.
std::string read_start(const fs::path& file) {
  std::string start(2, '\0');
  return std::ifstream(file, std::ios::binary).read(start.data(), 2) ? start : "";
}

// The line that is a JSON object; libraries may have printed before it.
json object_in(const std::string& text) {
  const std::size_t start = text.rfind("\n{");
  json object = json::parse(start == std::string::npos ? text : text.substr(start + 1), nullptr,
                            /*allow_exceptions=*/false);
  return object.is_object() ? object : json();
}

// What follows `begin` in the first line that begins so; empty: there is none.
std::string line_with(const std::string& text, const std::string& begin) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(begin)) return line.substr(begin.size());
  }
  return "";
}

// As the supervisor starts them (launcher/mpirun/command.h), in short. What mpirun leaves behind
// when it is ended lies in `folder`.
std::vector<std::string> mpirun_words(int ranks, const fs::path& folder) {
  std::vector<std::string> words = {"mpirun"};
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  for (const std::string& word : {std::string("--oversubscribe"), std::string("--bind-to"),
                                  std::string("none"), std::string("-np"), std::to_string(ranks)})
    words.push_back(word);
  for (const auto& [key, value] : {std::pair{"mpi_yield_when_idle", std::string("1")},
                                   {"odls_base_sigkill_timeout", "0"},
                                   {"pml", "ob1"},
                                   {"btl", "self,vader,tcp"},
                                   {"btl_vader_backing_directory", folder.string()},
                                   {"orte_tmpdir_base", folder.string()}}) {
    words.insert(words.end(), {"--mca", key, value});
  }
  return words;
}

// That of a job which mpirun itself runs would make ours part of it.
void leave_outer_gang() {
  for (const std::string& prefix : kept_from_workers()) {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (text.starts_with(prefix)) names.push_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
  }
}

}  // namespace

Result<std::vector<LibraryFile>> list_libraries(const fs::path& program, const Asked& asked) {
  // What ldd does; the program itself is not begun. In a bundle it is a script, which does so once
  // it knows where the libraries are (tools/in_bundle.sh).
  const auto start = read_start(program);
  const char* how = start == "#!" ? "SUREFOOT_LIST_LIBRARIES=1" : "LD_TRACE_LOADED_OBJECTS=1";
  const auto end = run({program.string()}, asked, {how});
  if (!end || !end->succeeded()) return error(Code::kRetry, "{}", fault_of(program.string(), end));
  return parse_libraries(end->output);
}

Result<json> describe(const fs::path& worker, const fs::path& job,
                      const std::vector<std::string>& sets, const Asked& asked) {
  leave_outer_gang();
  std::vector<std::string> words = {worker.string(), job.string(), "--describe"};
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  const auto end = run(std::move(words), asked);
  if (!end || !end->succeeded()) {
    return error(is_late(end) ? Code::kRetry : Code::kInvalid, "{}",
                 fault_of("surefoot-worker --describe", end));
  }
  json object = object_in(end->output);
  if (!object.is_object())
    return error(Code::kInvalid, "surefoot-worker --describe prints no JSON object");
  return object;
}

MpirunFacts look_at_mpirun(const fs::path& scratch, const Asked& asked) {
  leave_outer_gang();
  MpirunFacts facts;
  facts.root = ::geteuid() == 0;
  const auto version = run({"mpirun", "--version"}, asked);
  if (!version || !version->succeeded()) {
    facts.late = is_late(version);
    facts.fault = fault_of("mpirun --version", version);
    return facts;
  }
  facts.version = version->output.substr(0, version->output.find('\n'));
  std::vector<std::string> words = mpirun_words(1, scratch);
  words.emplace_back("true");
  const auto ran = run(std::move(words), asked);
  facts.runs = ran && ran->succeeded();
  facts.late = is_late(ran);
  if (!facts.runs) (facts.late ? facts.fault : facts.run_fault) = fault_of("mpirun true", ran);
  return facts;
}

Measured measure(const fs::path& program, int ranks, const std::vector<std::string>& environment,
                 const fs::path& scratch, const Asked& asked) {
  leave_outer_gang();
  Measured facts;
  const std::string name = program.filename().string();
  if (std::error_code none; !fs::exists(program, none)) {
    facts.unavailable = program.string() + ", which measures it, is not there";
    return facts;
  }
  std::vector<std::string> words = mpirun_words(ranks, scratch);
  words.push_back(program.string());
  auto end = run(std::move(words), asked, environment);
  const json object = end && end->succeeded() ? object_in(end->output) : json();
  if (!object.is_object()) {
    // What mpirun says of its end comes after what the rank that failed first said.
    if (const auto own = line_with(end ? end->errors : "", name + ": "); !own.empty())
      end->errors = own;
    (is_late(end) ? facts.unavailable : facts.fault) = fault_of(name, end);
    return facts;
  }
  const auto number = [&](const char* key) {
    const auto at = object.find(key);
    return at != object.end() && at->is_number() ? at->get<double>() : 0.0;
  };
  facts.ranks = ranks;
  facts.bytes = number("bytes");
  facts.seconds = number("seconds");
  facts.bus_bandwidth = number("bus_bandwidth");
  if (number("ranks") != ranks || !(facts.seconds > 0)) facts.fault = name + " prints nonsense";
  return facts;
}

SshFacts look_at_ssh(const std::string& command, const Asked& asked) {
  SshFacts facts;
  const auto end = run({"/bin/sh", "-c", command + " -V"}, asked);
  if (!end || !end->succeeded()) {
    facts.late = is_late(end);
    facts.fault = fault_of(command + " -V", end);
  } else {
    facts.version = last_line(end->errors.empty() ? end->output : end->errors);
  }
  return facts;
}

}  // namespace surefoot::doctor
