// Ranks as threads of one process: for tests, and as the model of what the port promises.
//
// A LocalGang owns everything and must outlive its communicators' use. Each rank's communicator is
// used by one thread. There is no buffering: a send completes when its receive has taken the bytes,
// the strictest behaviour that the port allows, so that code which needs buffering hangs here and
// not on a cluster.
//
// lose(rank) plays a rank that dies: every wait of another rank that is not complete, now and
// later, ends with kRestart and names it. The lost rank's thread must not call anything any more.
#pragma once

#include <memory>

#include "collectives/communicator.h"

namespace surefoot {

class LocalGang {
 public:
  explicit LocalGang(int ranks);
  ~LocalGang();
  LocalGang(const LocalGang&) = delete;
  LocalGang& operator=(const LocalGang&) = delete;

  // Lives as long as the gang.
  [[nodiscard]] Communicator& communicator(int rank);
  // From any thread.
  void lose(int rank);

 private:
  class Shared;
  class Member;
  std::unique_ptr<Shared> shared_;
};

}  // namespace surefoot
