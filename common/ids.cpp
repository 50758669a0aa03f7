#include "common/ids.h"

#include <sys/random.h>

#include "common/status.h"

namespace surefoot {

std::string make_job_id() {
  std::uint64_t number = 0;
  SUREFOOT_CHECK(::getrandom(&number, sizeof number, 0) == sizeof number);
  return fmt::format("{:016x}", number);
}

std::string_view name(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not found";
    case Code::kExists:
      return "exists";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kStale:
      return "stale";
    case Code::kRetry:
      return "retry";
    case Code::kRestart:
      return "restart";
    case Code::kOutcomeUnknown:
      return "outcome unknown";
    case Code::kNoSpace:
      return "no space";
  }
  return "?";
}

}  // namespace surefoot
