// All watchers of a machine, as the job file names them.
//
// `signal` needs none: the service takes SIGTERM by itself. Nothing that happens later than start()
// is an error: a watcher that cannot do its work says so in the log and tries on.
#pragma once

#include <memory>
#include <vector>

#include "common/status.h"
#include "launcher/notice/desk.h"
#include "launcher/notice/post.h"
#include "launcher/notice/source.h"
#include "launcher/notice/watcher.h"

namespace surefoot::notice {

class Watchers {
 public:
  // kInvalid: an address that a checked job file does not have. `machine`: the name of this
  // machine.
  [[nodiscard]] static Result<std::unique_ptr<Watchers>> start(const config::Recovery& recovery,
                                                               const std::string& machine);
  ~Watchers();  // waits for a second at the longest

  // As ServiceSettings::notices wants it.
  [[nodiscard]] MachineNotices look(bool safe) { return desk_->look(safe, now()); }
  [[nodiscard]] int post_port() const { return post_ ? post_->port() : 0; }

 private:
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  std::vector<std::unique_ptr<Watcher>> watchers_;
  std::unique_ptr<PostServer> post_;
};

// Where the metadata service of this kind is asked: of `notice_endpoints` the last for it, else its
// default. kInvalid: as parse_notice_endpoint().
[[nodiscard]] Result<std::string> base_of(SourceKind kind, const config::Recovery& recovery);

}  // namespace surefoot::notice
