// The addresses of `recovery.notice_*`. Pure.
//
//   notice_listen       ADDRESS:PORT, an IPv6 address in brackets
//   notice_endpoints    SOURCE=http[s]://HOST[:PORT], SOURCE a cloud of `notices`
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "configs/job.pb.h"

namespace surefoot {

struct ListenAddress {
  std::string host;  // without brackets
  int port = 0;      // 0: the system chooses
};
// kInvalid: it is none.
[[nodiscard]] Result<ListenAddress> parse_listen(std::string_view text);

struct NoticeEndpoint {
  config::Recovery::NoticeSource source = config::Recovery::signal;
  std::string url;  // without '/' at its end
};
// kInvalid: what is wrong, after "found \"...\", ".
[[nodiscard]] Result<NoticeEndpoint> parse_notice_endpoint(std::string_view text);

}  // namespace surefoot
