// Takes notices as HTTP POSTs, for `recovery.notices: [http]`.
//
//   POST /notice      body: empty, a number of seconds, or {"seconds": 30}      -> 200, 400
//
// Who reaches the address can make this machine leave the job, and nothing else; by default it is
// this machine alone. At most 4 KiB are read. A POST while an earlier one stands is the same
// notice: the earlier deadline counts.
#pragma once

#include <memory>
#include <string>

#include "configs/notices.h"
#include "launcher/notice/desk.h"

namespace surefoot::notice {

class PostServer {
 public:
  // Threads of its own. An address that cannot be had (yet) is tried again every few seconds, and
  // the log says so once; it names the port too.
  PostServer(ListenAddress address, Duration lead, std::shared_ptr<Desk> desk);
  ~PostServer();  // as stop() without patience
  PostServer(const PostServer&) = delete;
  PostServer& operator=(const PostServer&) = delete;

  [[nodiscard]] int port() const;  // 0: not listening yet
  // Who dribbles a request beyond the deadline is left to the end of the process.
  void stop(Time deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace surefoot::notice
