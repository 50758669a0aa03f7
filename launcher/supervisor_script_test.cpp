// Scripts: events in, the supervisor's narration out, side by side in testdata/*.txt.
//
//   supervisor_script_test --rewrite     writes what the core says now; to be committed only by
//   someone who can explain the change
//
// A file is a list of blocks: lines of a command, `----`, the answer, an empty line. Commands:
// `rules KEY=VALUE...`, `history KEY=VALUE...` (what the journal knows), `tell` followed by one
// event a line (`SECONDS Name key=value ...`), `books` (prints history and accounting).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "common/test_paths.h"
#include "launcher/supervisor.h"

namespace surefoot::supervisor {
namespace {

bool g_rewrite = false;
bool g_fleet = false;  // the script names machines

using Words = std::map<std::string, std::string>;

// `key=value key="a value" flag`; the name is under "".
Words words_of(const std::string& line) {
  Words words;
  std::istringstream in(line);
  std::string word;
  while (in >> word) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) {
      words[words.contains("") ? word : ""] = words.contains("") ? "1" : word;
      continue;
    }
    std::string value = word.substr(equals + 1);
    if (value.starts_with('"')) {
      std::string more;
      while (!(value.size() > 1 && value.ends_with('"')) && in >> more) value += " " + more;
      value = value.substr(1, value.size() - 2);
    }
    words[word.substr(0, equals)] = value;
  }
  return words;
}

struct Arguments {
  Words words;
  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto found = words.find(key);
    return found == words.end() ? otherwise : found->second;
  }
  [[nodiscard]] std::int64_t number(const std::string& key, std::int64_t otherwise) const {
    return words.contains(key) ? std::atoll(text(key).c_str()) : otherwise;
  }
};

Time at_seconds(double seconds) {
  return Time(std::chrono::milliseconds(std::llround(seconds * 1000)));
}

Stage stage_named(const std::string& text) {
  for (int i = 0; i < 6; ++i) {
    if (name(static_cast<Stage>(i)) == text) return static_cast<Stage>(i);
  }
  return Stage::kLaunching;
}

Event exit_event(const Arguments& a, Time at, Attempt attempt) {
  GangExited e{attempt,
               static_cast<int>(a.number("code", -1)),
               static_cast<int>(a.number("signal", 0)),
               {},
               at};
  e.culprit.rank = static_cast<int>(a.number("rank", -1));
  e.culprit.host = a.text("host");
  e.culprit.step = Step{a.number("step", 0)};
  e.culprit.phase = phase_named(a.text("phase")).value_or(Phase::kStarting);
  e.culprit.reason = a.text("reason");
  e.culprit.node = static_cast<NodeId>(a.number("node", -1));
  if (a.words.contains("died")) e.died = at_seconds(std::atof(a.text("died").c_str()));
  return {at, e};
}

// "a b:2 c*"; *: the supervisor's own machine
std::vector<HostSpec> hosts_of(const std::string& text) {
  std::vector<HostSpec> hosts;
  std::istringstream in(text);
  for (std::string host; in >> host;) {
    const bool here = host.ends_with('*');
    if (here) host.pop_back();
    const std::size_t colon = host.find(':');
    const int slots = colon == std::string::npos ? 0 : std::atoi(host.c_str() + colon + 1);
    hosts.push_back({host.substr(0, colon), slots, here});
  }
  return hosts;
}

ServiceAnswered answer_event(const Arguments& a) {
  return {Step{a.number("ready", -1)},
          Step{a.number("durable", -1)},
          static_cast<NodeId>(a.number("node", 0)),
          {a.text("boot"), a.text("numerics"), a.text("training")},
          a.number("here", 0) != 0};
}

Event event_of(const std::string& kind, const Arguments& a, Time at, const History& journal) {
  const Attempt attempt{a.number("attempt", 0)};
  const std::string message = a.text("message");
  const auto node = static_cast<NodeId>(a.number("node", 0));
  if (kind == "JobOpened") return {at, JobOpened{journal, a.number("gang_alive", 0) != 0}};
  if (kind == "ServiceAnswered") return {at, answer_event(a)};
  if (kind == "HostsListed") return {at, HostsListed{hosts_of(a.text("hosts"))}};
  if (kind == "ServiceLost") return {at, ServiceLost{node}};
  if (kind == "ServiceStartFailed") return {at, ServiceStartFailed{message, node}};
  if (kind == "NodeLost") return {at, NodeLost{node, message}};
  if (kind == "GangLaunched") return {at, GangLaunched{attempt}};
  if (kind == "LaunchFailed") return {at, LaunchFailed{attempt, message}};
  if (kind == "StageReached") return {at, StageReached{attempt, stage_named(a.text("stage")), at}};
  if (kind == "StepFinished")
    return {at, StepFinished{attempt, Step{a.number("step", 0)}, at,
                             std::chrono::milliseconds(a.number("exposed_ms", 0))}};
  if (kind == "FaultFired") return {at, FaultFired{attempt}};
  if (kind == "GangExited") return exit_event(a, at, attempt);
  if (kind == "GangEnded") return {at, GangEnded{attempt}};
  if (kind == "GangNotEnded") return {at, GangNotEnded{attempt, message}};
  if (kind == "TracesCollected") return {at, TracesCollected{attempt}};
  if (kind == "Interrupted") return {at, Interrupted{}};
  if (kind == "NoticeReceived") {
    NoticeReceived notice{std::nullopt, node};
    if (a.words.contains("leaves")) notice.leaves = at_seconds(std::atof(a.text("leaves").c_str()));
    return {at, notice};
  }
  if (kind == "CancelAsked") return {at, CancelAsked{}};
  if (kind == "JobFinished") return {at, JobFinished{}};
  if (kind == "FinishFailed") return {at, FinishFailed{message, a.number("may_pass", 0) != 0}};
  if (kind == "ArenaFlushed") return {at, ArenaFlushed{message.empty(), message}};
  if (kind == "ArenaFreed") return {at, ArenaFreed{message.empty(), message}};
  EXPECT_EQ(kind, "TimerFired") << "no such event";
  return {at, TimerFired{}};
}

// Of the one machine of most scripts nothing is said.
std::string members_text(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members)
    text += fmt::format("{}{}:{}", text.empty() ? " on=" : ",", member.node, member.workers);
  return g_fleet ? text : "";
}

std::string text_of(const Effect& effect) {
  std::string text(name(effect));
  if (const auto* e = std::get_if<LaunchGang>(&effect))
    text += fmt::format(" attempt={}{}", e->attempt, members_text(e->members));
  if (const auto* e = std::get_if<StartService>(&effect); e != nullptr && e->node >= 0)
    text += e->node > 0 || g_fleet ? fmt::format(" node={} spare={}", e->node, e->spare) : "";
  if (const auto* e = std::get_if<FinishJob>(&effect); e != nullptr && g_fleet)
    text += fmt::format(" node={}", e->node);
  if (const auto* e = std::get_if<FlushAndKeepArena>(&effect); e != nullptr && g_fleet)
    text += fmt::format(" nodes={}", fmt::join(e->nodes, ","));
  if (const auto* e = std::get_if<EndGang>(&effect)) text += fmt::format(" attempt={}", e->attempt);
  if (const auto* e = std::get_if<RequestDrain>(&effect))
    text += fmt::format(" attempt={}", e->attempt);
  if (const auto* e = std::get_if<CollectTraces>(&effect))
    text += fmt::format(" attempt={}", e->attempt);
  if (const auto* e = std::get_if<RecordAttemptEnd>(&effect)) {
    text += fmt::format(
        " attempt={} {}{} steps={}..{} code={} signal={} rank={} step={} phase={} \"{}\"",
        e->end.attempt, name(e->end.outcome), e->end.injected ? " injected" : "", e->end.first_step,
        e->end.last_step, e->end.code, e->end.signal, e->end.culprit.rank, e->end.culprit.step,
        name(e->end.culprit.phase), e->end.culprit.reason);
  }
  if (const auto* e = std::get_if<RecordRecovery>(&effect)) {
    const Recovery& r = e->recovery;
    text += fmt::format(
        " attempt={} detect={:.3f} wait={:.3f} launch={:.3f} load={:.3f} restore={:.3f} "
        "first_step={:.3f}",
        r.attempt, seconds(r.detect), seconds(r.wait), seconds(r.launch), seconds(r.load),
        seconds(r.restore), seconds(r.first_step));
  }
  if (const auto* e = std::get_if<Stop>(&effect))
    text += fmt::format(" {} {} \"{}\"", e->exit_code, name(e->state), e->line);
  return text;
}

class Script {
 public:
  std::string answer(const std::vector<std::string>& lines) {
    const Arguments a{words_of(lines[0])};
    const std::string command = a.text("");
    if (command == "rules") return set_rules(a);
    if (command == "history") return set_history(a);
    if (command == "books") return books();
    std::string text;
    for (std::size_t i = 1; i < lines.size(); ++i) text += tell(lines[i]);
    return text;
  }

 private:
  std::string set_rules(const Arguments& a) {
    rules_.max_steps = Step{a.number("max_steps", 3)};
    rules_.max_failures = a.number("max_failures", 3);
    rules_.max_failures_total = a.number("max_failures_total", 100);
    rules_.max_preemptions = a.number("max_preemptions", -1);
    rules_.injected_faults = a.number("injected_faults", 0);
    rules_.faults_count = a.number("faults_count", 0) != 0;
    FleetRules& fleet = rules_.fleet;
    g_fleet = a.words.contains("nodes");
    fleet.alone = !g_fleet;
    fleet.min_nodes = static_cast<int>(a.number("nodes", 1));
    fleet.max_nodes = static_cast<int>(a.number("max_nodes", 10));
    fleet.micro_batches = a.number("micro_batches", 1000);
    fleet.looks_again = a.number("looks_again", 0) != 0;
    return "ok\n";
  }
  std::string set_history(const Arguments& a) {
    journal_.attempt = Attempt{a.number("attempt", 0)};
    journal_.attempt_open = a.number("attempt_open", 0) != 0;
    journal_.finished_step = Step{a.number("finished_step", 0)};
    journal_.numerics_id = a.text("numerics");
    journal_.training_hash = a.text("training");
    journal_.failures_in_row = a.number("failures_in_row", 0);
    journal_.failures_total = a.number("failures_total", 0);
    std::istringstream gang(a.text("gang"));
    for (std::string machine; gang >> machine;) journal_.gang.push_back(machine);
    for (const JobState state :
         {JobState::kDone, JobState::kInterrupted, JobState::kFailed, JobState::kCancelled}) {
      if (a.text("state") == name(state)) journal_.state = state;
    }
    return "ok\n";
  }
  std::string tell(const std::string& line) {
    std::istringstream in(line);
    double seconds = 0;
    std::string kind;
    std::string rest;
    in >> seconds >> kind;
    std::getline(in, rest);
    const Event event =
        event_of(kind, Arguments{words_of(kind + rest)}, at_seconds(seconds), journal_);
    Decision decision = decide(rules_, std::move(state_), event);
    state_ = std::move(decision.next);
    std::string text = fmt::format("{:.1f} {}: {} [{}{}]\n", seconds, kind, decision.reason,
                                   name(state_.doing), decision.record ? ", recorded" : "");
    for (const Effect& effect : decision.effects) text += "    " + text_of(effect) + "\n";
    return text;
  }
  std::string books() {
    const History& h = state_.history;
    std::string text = fmt::format(
        "attempt={}{} finished_step={} failures_in_row={} failures_total={} forgiven={} "
        "preemptions={} steps_lost={} goodput={:.2f}\n",
        h.attempt, h.attempt_open ? " open" : "", h.finished_step, h.failures_in_row,
        h.failures_total, h.failures_forgiven, h.preemptions, h.steps_lost, h.accounting.goodput());
    for (std::size_t i = 0; i < kCauseCount; ++i) {
      if (h.accounting.spent[i] > Duration::zero())
        text += fmt::format("{}={:.3f} ", kCauseNames[i], seconds(h.accounting.spent[i]));
    }
    return text + "\n";
  }

  Rules rules_;
  History journal_;
  State state_;
};

// The file with every answer as it is now.
std::string told_anew(std::istream& in) {
  Script script;
  std::string out;
  std::string line;
  std::vector<std::string> block;
  while (std::getline(in, line)) {
    if (line == "----") {
      while (std::getline(in, line) && !line.empty()) {
      }
      out += "----\n" + script.answer(block) + "\n";
      block.clear();
      continue;
    }
    out += line + "\n";
    if (!line.empty() && line[0] != '#') block.push_back(line);
  }
  return out;
}

std::filesystem::path folder() {
  return source_folder() / "launcher" / "testdata";
}

TEST(SupervisorScripts, TellWhatTheFilesSay) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 10u);
  for (const auto& file : files) {
    std::ifstream in(file);
    std::stringstream was;
    was << in.rdbuf();
    const std::string now = told_anew(was);
    if (g_rewrite) {
      std::ofstream(file) << now;
    } else {
      EXPECT_EQ(was.str(), now)
          << file << " (supervisor_script_test --rewrite accepts a change that you can explain)";
    }
  }
}

}  // namespace
}  // namespace surefoot::supervisor

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  surefoot::supervisor::g_rewrite = argc > 1 && std::string(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
