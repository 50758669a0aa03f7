#include "launcher/service_watch.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "common/address.h"
#include "common/process.h"
#include "launcher/format.h"

namespace surefoot {
namespace {

using namespace std::chrono_literals;

// Of one question. A busy machine answers late; what takes longer is asked anew.
constexpr Duration kPatience = 1s;
constexpr Duration kConnectPatience = 300ms;

// Whether the machine says that nobody listens there: the service has ended, and the machine lives.
// What cannot be told is not so.
bool is_refused(const std::string& endpoint) {
  const auto address = parse_tcp_endpoint(endpoint);
  if (!address) return false;
  const Fd fd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int connected = ::connect(fd.get(), address->name(), address->bytes);
  int failure = connected == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    pollfd item{fd.get(), POLLOUT, 0};
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kConnectPatience);
    if (::poll(&item, 1, static_cast<int>(patience.count())) != 1) return false;
    socklen_t size = sizeof failure;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  return failure == ECONNREFUSED;
}

struct Target {
  ServiceAddress address{""};
  Duration silence{};
  std::int32_t pid = 0;
};

}  // namespace

struct ServiceWatch::Shared {
  std::shared_ptr<Inbox> inbox;
  std::string job_id;
  WatchReports reports;
  std::mutex mutex;
  std::condition_variable changed;
  bool closing = false;
  std::optional<Target> target;
  std::uint64_t round = 0;  // of watch() and rest(): news of an earlier one are dropped
  Duration pace = 100ms;
  bool at_once = false;
  std::atomic<std::uint64_t> records_next{0};

  // Has the loop run `report` unless the watch has been told something else since.
  template <class Report>
  static void tell(const std::shared_ptr<Shared>& self, std::uint64_t round, Report report) {
    self->inbox->put([self, round, report = std::move(report)] {
      {
        const std::lock_guard lock(self->mutex);
        if (self->closing || self->round != round) return;
      }
      report(self->reports);
    });
  }

  static void run(const std::shared_ptr<Shared>& self) {
    std::unique_lock lock(self->mutex);
    for (;;) {
      self->changed.wait(lock, [&] { return self->closing || self->target.has_value(); });
      if (self->closing) return;
      const Target target = *self->target;
      const std::uint64_t round = self->round;
      lock.unlock();
      watch(self, target, round);
      lock.lock();
      if (self->round == round) self->target.reset();
    }
  }

  // Until it is told something else, or there is nobody to be asked.
  static void watch(const std::shared_ptr<Shared>& self, const Target& target,
                    std::uint64_t round) {
    ServiceClient client(target.address, self->job_id);
    Time answered = now();
    std::optional<ProcessId> process;
    if (target.pid > 0) {
      auto found = process_of(target.pid);
      if (found) process = *found;
      // Ended before anybody looked: the machine is not silent.
      if (!found && found.error().code == Code::kNotFound)
        return tell(self, round, [](const WatchReports& reports) { reports.gone(); });
    }
    while (self->wait_for_turn(round)) {
      if (process && !is_alive(*process))
        return tell(self, round, [](const WatchReports& reports) { reports.gone(); });
      service::Request request;
      request.mutable_status()->set_records_from(self->records_next.load());
      auto reply = client.call(std::move(request), now() + kPatience);
      const Time at = now();
      if (reply) {
        answered = at;
        self->note_records(reply->status());
        tell(self, round, [status = reply->status(), at](const WatchReports& reports) {
          reports.status(status, at);
        });
      } else if (target.pid == 0 && is_refused(target.address.endpoint)) {
        return tell(self, round, [](const WatchReports& reports) { reports.gone(); });
      } else if (at - answered >= target.silence) {
        return tell(self, round,
                    [text = fmt::format("it has not answered for {}",
                                        duration_text(seconds(target.silence)))](
                        const WatchReports& reports) { reports.silent(text); });
      }
    }
  }

  // An arena that was made anew counts its records from the start.
  void note_records(const service::StatusReply& status) {
    const bool anew = status.records_next() < records_next.load();
    records_next = anew ? 0 : status.records_next();
  }

  bool wait_for_turn(std::uint64_t round) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, pace, [&] { return closing || this->round != round || at_once; });
    at_once = false;
    return !closing && this->round == round;
  }
};

ServiceWatch::ServiceWatch(std::shared_ptr<Inbox> inbox, std::string job_id, WatchReports reports)
    : shared_(std::make_shared<Shared>()) {
  shared_->inbox = std::move(inbox);
  shared_->job_id = std::move(job_id);
  shared_->reports = std::move(reports);
  std::thread([shared = shared_] { Shared::run(shared); }).detach();
}

ServiceWatch::~ServiceWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.notify_all();
}

void ServiceWatch::watch(const ServiceAddress& address, Duration silence, std::int32_t pid) {
  const std::lock_guard lock(shared_->mutex);
  ++shared_->round;
  shared_->target = Target{address, silence, pid};
  shared_->at_once = true;
  shared_->changed.notify_all();
}

void ServiceWatch::rest() {
  const std::lock_guard lock(shared_->mutex);
  ++shared_->round;
  shared_->target.reset();
  shared_->changed.notify_all();
}

void ServiceWatch::set_pace(Duration pace) {
  const std::lock_guard lock(shared_->mutex);
  if (pace < shared_->pace) shared_->at_once = true;
  shared_->pace = pace;
  shared_->changed.notify_all();
}

void ServiceWatch::now_at_once() {
  const std::lock_guard lock(shared_->mutex);
  shared_->at_once = true;
  shared_->changed.notify_all();
}

std::uint64_t ServiceWatch::records_from() const {
  return shared_->records_next.load();
}

}  // namespace surefoot
