#include "launcher/observer.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace surefoot {
namespace {

using supervisor::Event;
using supervisor::Stage;

constexpr int kSignalled = 128;  // mpirun adds the number of the signal that ended a rank
constexpr int kLostPeer =
    76;  // a worker's exit code: it asks for a restart, since somebody else is gone

Phase phase_of(const service::RankStatus& rank) {
  return phase_named(rank.phase()).value_or(Phase::kStarting);
}

// What a service tells of the past lies in the past.
Duration ago(double value) {
  return from_seconds(std::max(value, 0.0));
}

// The number that follows `before`, from `at` on.
std::optional<int> number_after(std::string_view text, std::string_view before,
                                std::size_t from = 0) {
  const std::size_t at = text.find(before, from);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string digits(text.substr(at + before.size(), 12));
  char* end = nullptr;
  const long value = std::strtol(digits.c_str(), &end, 10);
  if (end == digits.c_str()) return std::nullopt;
  return static_cast<int>(value);
}

std::string ended_text(int code, int signal) {
  const char* name = signal != 0 ? ::sigabbrev_np(signal) : nullptr;
  if (name != nullptr) return fmt::format("ended by SIG{}", name);
  if (signal != 0) return fmt::format("ended by signal {}", signal);
  return fmt::format("left with exit code {}", code);
}

const service::RankStatus* rank_named(const GangEndFacts& facts, int rank) {
  if (!facts.status) return nullptr;
  for (const auto& line : facts.status->ranks()) {
    if (line.rank() == rank && line.attempt() == facts.attempt.value) return &line;
  }
  return nullptr;
}

// The rank that says itself why it left; of several the one that said so first.
const service::RankStatus* rank_with_own_reason(const GangEndFacts& facts) {
  const service::RankStatus* first = nullptr;
  if (!facts.status) return first;
  for (const auto& line : facts.status->ranks()) {
    const bool own = line.attempt() == facts.attempt.value && line.exit_code() > 0 &&
                     line.exit_code() != kLostPeer &&
                     line.exit_code() != supervisor::kExitInterrupted;
    if (own && (first == nullptr || line.seconds_in_phase() > first->seconds_in_phase()))
      first = &line;
  }
  return first;
}

// The rank that is gone without a word, where there is just one.
const service::RankStatus* only_silent_rank(const GangEndFacts& facts) {
  const service::RankStatus* silent = nullptr;
  if (!facts.status) return nullptr;
  for (const auto& line : facts.status->ranks()) {
    if (line.attempt() != facts.attempt.value || line.alive() || line.exit_code() >= 0) continue;
    if (silent != nullptr) return nullptr;
    silent = &line;
  }
  return silent;
}

// `line`: null when the rank had not come so far. Its own words first, then its log's.
supervisor::Culprit culprit_of(const GangEndFacts& facts, int rank, const service::RankStatus* line,
                               int code, int signal) {
  supervisor::Culprit culprit;
  culprit.rank = rank;
  if (line != nullptr) {
    culprit.step = Step{line->step()};
    culprit.phase = phase_of(*line);
    culprit.reason = line->reason();
  }
  const auto log = facts.rank_logs.find(rank);
  if (culprit.reason.empty() && signal == 0 && log != facts.rank_logs.end())
    culprit.reason = last_error(log->second, true);
  if (culprit.reason.empty()) culprit.reason = ended_text(code, signal);
  return culprit;
}

}  // namespace

std::optional<Stage> stage_of(const service::StatusReply& status, Attempt attempt, int workers,
                              bool worker_seen) {
  int lines = 0;
  int restoring = 0;
  int evaluating = 0;
  int finishing = 0;
  int starting = 0;
  for (const auto& rank : status.ranks()) {
    if (rank.attempt() != attempt.value) continue;
    ++lines;
    const Phase phase = phase_of(rank);
    starting += phase == Phase::kStarting ? 1 : 0;
    restoring += phase == Phase::kRestoring ? 1 : 0;
    evaluating += phase == Phase::kEvaluation ? 1 : 0;
    finishing += phase == Phase::kFinishing || phase == Phase::kDone ? 1 : 0;
  }
  if (lines == 0 && !worker_seen) return std::nullopt;
  if (lines < workers || starting > 0) return Stage::kLoading;
  if (restoring > 0) return Stage::kRestoring;
  if (finishing > 0) return Stage::kFinishing;
  return evaluating > 0 ? Stage::kEvaluating : Stage::kStepping;
}

NamedByMpirun named_by_mpirun(std::string_view mpirun_log) {
  NamedByMpirun named;
  // "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."
  if (const auto rank = number_after(mpirun_log, "noticed that process rank ")) {
    named.rank = *rank;
    named.signal = number_after(mpirun_log, "exited on signal ").value_or(0);
    return named;
  }
  // "  Process name: [[45230,1],1]\n  Exit code:    3"
  const std::size_t at = mpirun_log.find("Process name: [[");
  if (at == std::string_view::npos) return named;
  named.rank = number_after(mpirun_log, "],", at).value_or(-1);
  named.code = number_after(mpirun_log, "Exit code:", at).value_or(-1);
  return named;
}

std::string last_error(std::string_view rank_log, bool any) {
  std::string_view last;
  std::string_view error;
  while (!rank_log.empty()) {
    const std::string_view line = rank_log.substr(0, rank_log.find('\n'));
    rank_log.remove_prefix(std::min(rank_log.size(), line.size() + 1));
    if (line.empty()) continue;
    last = line;
    // "2026-11-30T15:51:44.123Z error   worker 3/1@host: message", see common/log.h
    const std::size_t level = line.find("Z error ");
    const std::size_t message = level == 23 ? line.find(": ", level) : std::string_view::npos;
    if (message != std::string_view::npos) error = line.substr(message + 2);
  }
  return std::string(error.empty() && any ? last : error);
}

supervisor::GangExited gang_exited(const GangEndFacts& facts) {
  supervisor::GangExited exited;
  exited.attempt = facts.attempt;
  exited.code = facts.mpirun.code;
  exited.signal = facts.mpirun.signal;
  exited.died = facts.at;
  if (exited.code == 0 || exited.code == supervisor::kExitInterrupted) return exited;

  const NamedByMpirun named = named_by_mpirun(facts.mpirun_log);
  const service::RankStatus* line = rank_with_own_reason(facts);
  if (line != nullptr) {
    exited.code = line->exit_code();
    exited.signal = 0;
    exited.culprit = culprit_of(facts, line->rank(), line, line->exit_code(), 0);
  } else if (named.rank >= 0) {
    line = rank_named(facts, named.rank);
    exited.signal = named.signal;
    exited.code = named.signal != 0 ? -1 : named.code;
    exited.culprit = culprit_of(facts, named.rank, line, named.code, named.signal);
  } else if (facts.mpirun.signal != 0) {
    exited.culprit.reason = "mpirun " + ended_text(-1, facts.mpirun.signal);
  } else if (facts.mpirun.code > 0) {
    // mpirun does not always print who it was; the reason must be the same then, since it is
    // compared with the last one.
    line = only_silent_rank(facts);
    exited.signal = facts.mpirun.code > kSignalled ? facts.mpirun.code - kSignalled : 0;
    exited.code = exited.signal != 0 ? -1 : facts.mpirun.code;
    exited.culprit =
        culprit_of(facts, line != nullptr ? line->rank() : -1, line, exited.code, exited.signal);
  }
  if (line != nullptr) exited.died = facts.at - ago(line->seconds_in_phase());
  return exited;
}

std::optional<supervisor::Culprit> awaited_rank(const std::vector<RankPlace>& ranks) {
  const auto place = [](const RankPlace& rank) { return std::pair(rank.step, rank.phase); };
  const auto behind =
      std::min_element(ranks.begin(), ranks.end(), [&](const RankPlace& a, const RankPlace& b) {
        return std::pair(place(a), a.rank) < std::pair(place(b), b.rank);
      });
  if (behind == ranks.end()) return std::nullopt;
  const auto is_behind = [&](const RankPlace& rank) { return place(rank) == place(*behind); };
  const auto is_there = [&](const RankPlace& rank) { return rank.node == behind->node; };
  const auto count = std::count_if(ranks.begin(), ranks.end(), is_behind);
  if (count == static_cast<std::ptrdiff_t>(ranks.size())) return std::nullopt;
  const bool machine = std::all_of(ranks.begin(), ranks.end(), [&](const RankPlace& rank) {
    return is_behind(rank) == is_there(rank);
  });
  if (count > 1 && !machine) return std::nullopt;
  supervisor::Culprit culprit;
  culprit.rank = behind->rank;
  culprit.host = behind->host;
  culprit.step = behind->step;
  culprit.phase = behind->phase;
  culprit.node = behind->node;
  return culprit;
}

void Observer::follow(Attempt attempt, int workers) {
  attempt_ = attempt;
  workers_ = workers;
  stage_.reset();
  newest_ = Step{-1};
}

void Observer::reach(Stage stage, Time when, Time at, std::vector<Event>& events) {
  if (stage_ == stage) return;
  stage_ = stage;
  events.push_back({at, supervisor::StageReached{attempt_, stage, when}});
}

std::vector<Event> Observer::observe(const service::StatusReply& status, bool worker_seen,
                                     Time at) {
  std::vector<Event> events;
  const bool first = !faults_.has_value();
  if (first) faults_.emplace();
  for (const int fault : status.fired_faults()) {
    if (faults_->insert(fault).second && !first)
      events.push_back({at, supervisor::FaultFired{attempt_}});
  }

  const auto stage = stage_of(status, attempt_, workers_, worker_seen);
  double since_change = 0;
  bool any = false;
  for (const auto& rank : status.ranks()) {
    if (rank.attempt() != attempt_.value) continue;
    since_change = any ? std::min(since_change, rank.seconds_in_phase()) : rank.seconds_in_phase();
    any = true;
  }
  const Time changed = at - ago(since_change);

  // A step that is finished was reached through stepping, also when the gang has gone on since.
  const bool stepped = std::any_of(
      status.records().begin(), status.records().end(),
      [&](const auto& record) { return record.attempt() == attempt_.value && record.step() > 0; });
  if (stepped && (!stage_ || *stage_ < Stage::kStepping)) {
    // Its first step began when its phases did, however late the answer came.
    Time when = changed;
    for (const auto& record : status.records()) {
      double spent = 0;
      for (const double phase : record.phase_seconds()) spent += phase;
      if (record.attempt() == attempt_.value && record.step() > 0)
        when = std::min(when, at - ago(record.age_seconds() + spent));
    }
    reach(Stage::kStepping, when, at, events);
  } else if (stage && *stage <= Stage::kStepping) {
    reach(*stage, changed, at, events);
  }
  for (const auto& record : status.records()) {
    if (record.kind() != 0 || record.attempt() != attempt_.value || record.step() < 1 ||
        Step{record.step()} <= newest_)
      continue;
    newest_ = Step{record.step()};
    if (stage_ && *stage_ > Stage::kStepping) stage_ = Stage::kStepping;  // as the core takes it
    const auto snapshot = static_cast<int>(Phase::kSnapshot);
    const double exposed =
        record.phase_seconds_size() > snapshot ? record.phase_seconds(snapshot) : 0;
    events.push_back({at, supervisor::StepFinished{attempt_, newest_,
                                                   at - ago(record.age_seconds()), ago(exposed)}});
  }
  if (stage && *stage > Stage::kStepping) reach(*stage, changed, at, events);
  return events;
}

}  // namespace surefoot
