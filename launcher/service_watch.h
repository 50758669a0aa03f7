// Asks a machine's checkpoint service for its status again and again, on a thread of its own, so
// that a machine that says nothing keeps nobody waiting.
//
// What it learns goes to the inbox, in order. After gone() or silent() it asks no more until it is
// told to watch anew. All methods: the driver's thread; none blocks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/service_client.h"
#include "launcher/task_thread.h"

namespace surefoot {

struct WatchReports {
  std::function<void(const service::StatusReply&, Time at)> status;  // `at`: when it came
  std::function<void()> gone;                      // its process has ended, the machine lives
  std::function<void(const std::string&)> silent;  // "has not answered for 5 s"
};

class ServiceWatch {
 public:
  ServiceWatch(std::shared_ptr<Inbox> inbox, std::string job_id, WatchReports reports);
  ~ServiceWatch();  // leaves the thread to end by itself
  ServiceWatch(const ServiceWatch&) = delete;

  // `silence`: how long no answer may come. `pid`: of the service where it is a process of this
  // machine, so that its end is seen at once; 0: of another machine.
  void watch(const ServiceAddress& address, Duration silence, std::int32_t pid);
  void rest();  // asks no more; what is under way is dropped
  void set_pace(Duration pace);
  void now_at_once();  // the next question does not wait for its turn
  // The first record that is wanted next; shared with who asks for a status besides.
  [[nodiscard]] std::uint64_t records_from() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace surefoot
