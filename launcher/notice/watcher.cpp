#include "launcher/notice/watcher.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "common/http.h"
#include "common/log.h"
#include "launcher/notice/book.h"
#include "launcher/notice/payloads.h"

namespace surefoot::notice {
namespace {

constexpr Duration kStopLook = std::chrono::milliseconds(50);
constexpr Duration kShortestPause = std::chrono::milliseconds(500);  // after trouble
constexpr std::size_t kMostKinds = 100;  // arbitrary; of trouble that is remembered

WallTime wall_now() {
  return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

std::string words_for(const Notice& notice) {
  const char* const what = notice.kind == Kind::kReclaim     ? "this machine is taken"
                           : notice.kind == Kind::kRebalance ? "this machine may be taken"
                                                             : "maintenance of this machine";
  if (!notice.deadline) return what;
  return fmt::format("{} in {:.1f} s", what, seconds(*notice.deadline - now()));
}

}  // namespace

struct Watcher::State final : Asker {
  std::string name;
  std::unique_ptr<Source> source;
  std::shared_ptr<Desk> desk;
  Pace pace;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;
  // Of the thread alone.
  Http http{{.connect_timeout = std::chrono::seconds(2), .ca_bundle = "", .direct = true}};
  std::set<std::string> complained;

  [[nodiscard]] bool is_stopping() {
    const std::lock_guard lock(mutex);
    return stopping;
  }
  Answer ask(const Question& question) override;
  void run();
  void report(const Finding& finding, Book& book);
  void complain(const std::string& about, const std::string& kind, const std::string& message);
};

Answer Watcher::State::ask(const Question& question) {
  std::array<std::byte, kMaxAnswerBytes> body;
  HttpRequest request;
  request.method = question.method;
  request.url = question.url;
  request.headers = question.headers;
  request.body = std::as_bytes(std::span(question.body));
  request.into = body;
  request.longest_text = body.size();
  const Duration patience = std::min(question.patience, pace.longest_patience);
  const Time deadline = now() + patience;
  request.deadline = deadline;
  request.stall_timeout = patience;
  const Http::Id id = http.start(std::move(request));
  // curl keeps the deadline too, but averages.
  while (now() < deadline && !is_stopping()) {
    auto done = http.wait(std::min(deadline, now() + kStopLook));
    if (!done) continue;
    HttpAnswer& answer = done->second;
    if (answer.end != HttpAnswer::End::kAnswered) return {0, answer.problem, "", ""};
    return {answer.status, "",
            std::string(reinterpret_cast<const char*>(body.data()), answer.received),
            answer.header("etag")};
  }
  http.cancel(id);
  return {0, fmt::format("none within {:.1f} s", seconds(patience)), "", ""};
}

void Watcher::State::complain(const std::string& about, const std::string& kind,
                              const std::string& message) {
  if (complained.size() >= kMostKinds || !complained.insert(about + ": " + kind).second) return;
  spdlog::warn("notices from {}, {}: {} (said once; it is asked on)", name, about, message);
}

void Watcher::State::report(const Finding& finding, Book& book) {
  const Time at = now();
  const News news = book.take(finding, at, wall_now());
  if (finding.trouble) {
    complain(finding.about, finding.trouble->kind, finding.trouble->message);
  } else {
    const std::string prefix = finding.about + ": ";
    std::erase_if(complained, [&](const std::string& kind) {
      return kind.starts_with(prefix) && (news.ignored.empty() || kind != prefix + "past");
    });
  }
  for (const std::string& ignored : news.ignored) complain(finding.about, "past", ignored);
  for (const Change& change : news.changes) {
    desk->take(change, at);
    if (change.what == Change::What::kOver) {
      spdlog::info("notice from {}: over ({})", name, change.notice.id);
    } else {
      spdlog::warn("notice from {}: {} ({})", name, words_for(change.notice), change.notice.id);
    }
  }
}

void Watcher::State::run() {
  Book book(name, source->cancels());
  Duration trouble_pause = kShortestPause;
  while (!is_stopping()) {
    const auto findings = source->look(*this, {now(), desk->safe_ids(name)});
    if (is_stopping()) break;
    for (const Finding& finding : findings) report(finding, book);
    const bool failed = std::all_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.trouble.has_value();
    });
    const Duration pause =
        failed ? std::max(source->interval(), trouble_pause) : source->interval();
    trouble_pause = failed ? std::min(trouble_pause * 2, kLongestPause) : kShortestPause;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::min(pause, pace.longest_interval), [this] { return stopping; });
  }
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

Watcher::Watcher(std::string name, std::unique_ptr<Source> source, std::shared_ptr<Desk> desk,
                 Pace pace)
    : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->source = std::move(source);
  state_->desk = std::move(desk);
  state_->pace = pace;
  std::thread([state = state_] { state->run(); }).detach();
}

Watcher::~Watcher() {
  stop(now());
}

void Watcher::stop(Time deadline) {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_until(lock, deadline, [this] { return state_->ended; });
}

}  // namespace surefoot::notice
