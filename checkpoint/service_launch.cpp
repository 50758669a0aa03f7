// What the supervisor has done to a gang on this node: its launch, what it is asked, its end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "checkpoint/service_internal.h"
#include "common/log.h"

namespace surefoot {
namespace {

constexpr Duration kEndPatience = std::chrono::seconds(10);

void remove_attempt_folders(const std::filesystem::path& arena_folder, Attempt below) {
  constexpr std::string_view kPrefix = "attempt-";
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(arena_folder, failed)) {
    const std::string name = entry.path().filename();
    std::int64_t number = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(kPrefix) ||
        std::from_chars(name.data() + kPrefix.size(), end, number).ptr != end ||
        number >= below.value)
      continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

// That has run, was launched, or has said hello here.
Attempt ServiceImpl::newest_attempt() const {
  const Attempt run{std::max(memory_.hello().attempt(), arena_ ? arena_->last_attempt() : 0)};
  return std::max({run, launches_.newest(), newest_hello_});
}

// What is asked of a gang that was launched here, or whose hello is in hand, is told to it when it
// is there.
void ServiceImpl::ask(const Peer& peer, const service::Ask& ask) {
  const Attempt newest = newest_attempt();
  const Attempt attempt{ask.attempt()};
  if (attempt.value != 0 && attempt != newest)
    return refuse(peer, "stale", fmt::format("attempt {} runs on this node", newest));
  if (ask.drain()) {
    drain_asked_ = true;
    drain_asked_at_ = last_question_;
    drain_asked_for_ = attempt;
  }
  const bool here = arena_ && (attempt.value == 0 || arena_->gang().attempt == attempt.value);
  if (here && ask.drain()) arena_->requests().fetch_or(kRequestDrain);
  if (here && ask.checkpoint()) arena_->requests().fetch_or(kRequestCheckpoint);
  done(peer);
}

void ServiceImpl::launch(const Peer& peer, const service::Launch& request) {
  if (!peer.remote)
    return refuse(peer, "launch", "only the supervisor, by its key, can have something launched");
  Attempt newest = std::max(newest_hello_, Attempt{memory_.hello().attempt()});
  if (arena_) newest = std::max(newest, Attempt{arena_->last_attempt()});
  launch_thread_.start([this, peer, request, newest]() -> WorkThread::Outcome {
    const Status launched = launches_.launch(request, newest);
    return [this, peer, launched, attempt = request.attempt()] {
      if (!launched) {
        if (launched.error().code == Code::kStale)
          return refuse(peer, "stale", launched.error().message);
        spdlog::error("launch of attempt {}: {}", attempt, launched.error().message);
        return reply(peer, launched.error());
      }
      supervised_ = true;
      spdlog::info("launched what attempt {} is to run here", attempt);
      done(peer);
    };
  });
}

// ---- the end ----

void ServiceImpl::end_gang(const Peer& peer, const service::EndGang& request) {
  if (request.below() < 0 || request.below() > kMaxAttempt)
    return reply(peer, error(Code::kInvalid, "there is no attempt {}", request.below()));
  begin_ending(request.below() > 0 ? Attempt{request.below()} : newest_attempt().next(), peer);
}

void ServiceImpl::begin_ending(Attempt below, const std::optional<Peer>& peer) {
  if (newest_attempt() < below) {
    gang_thread_.interrupt();
    gang_expected_until_ = {};
  }
  if (const Status kept = launches_.end_below(below); !kept)
    spdlog::warn("the next service here will not know what was ended: {}", kept.error().message);
  if (arena_) arena_->end_below(below);
  endings_.push_back({peer, below, now() + kEndPatience});
  look_at_endings();
}

// Registered, or in a session that was launched.
SessionProcesses ServiceImpl::processes_below(Attempt attempt) {
  SessionProcesses found = launches_.processes_below(attempt);
  for (int rank = 0; arena_ && rank < kMaxLocalRanks; ++rank) {
    const RankLine& line = arena_->line(rank);
    const ProcessId process = registered_process(line);
    if (process.pid > 1 && process.pid != ::getpid() && line.attempt.load() < attempt.value &&
        is_alive(process))
      found.members.push_back(process);
  }
  return found;
}

// Waited for here, tick by tick, so that status is answered while the kernel tears them down. As
// nobody can join them any more, those that are found are the last.
void ServiceImpl::look_at_endings() {
  std::erase_if(endings_, [this](Ending& ending) {
    const auto [left, maybe_more] = processes_below(ending.below);
    for (const ProcessId& process : left) (void)send_signal(process, SIGKILL);
    if (left.empty() && !maybe_more) {
      remove_attempt_folders(settings_.arena_folder, ending.below);
      if (ending.peer) done(*ending.peer);
      return true;
    }
    if (now() < ending.deadline) return false;
    const Error failed =
        left.empty() ? error(Code::kRestart,
                             "a process that may be of an earlier attempt hides its environment "
                             "and does not end")
                     : error(Code::kRestart, "{} processes do not end after SIGKILL, first {}",
                             left.size(), left.front().pid);
    if (ending.peer) reply(*ending.peer, failed);
    if (!ending.peer) spdlog::error("{}", failed.message);
    return true;
  });
}

}  // namespace surefoot
