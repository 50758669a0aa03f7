// What to do after a try of a request: take the answer, wait and try again, or give up and why.
//
// Pure: time, randomness and the number of tries are arguments. A request is tried again when the
// fault lies with the way to the service or with its load (5xx, 429, SlowDown, resets, time-outs),
// after a pause drawn from [0, base * 2^tries), so that many nodes do not come back at the same
// moment ("full jitter"). What the user has to change is reported at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/http.h"
#include "common/status.h"

namespace surefoot::s3 {

// No pause between two tries is longer, whatever the service asks for.
inline constexpr Duration kLongestPause = std::chrono::seconds(20);

// How a try ended.
struct Outcome {
  using End = HttpAnswer::End;
  End end = End::kAnswered;
  int status = 0;
  std::string code;        // of the error's body; empty: none
  std::string message;     // the service's or the transport's own words
  std::string region;      // where the service says the bucket is
  Duration retry_after{};  // of the answer's Retry-After, else 0
};

struct Tries {
  int done = 1;                  // this one included
  bool credentials_new = false;  // they were looked for anew for this request already
  bool clock_set = false;        // the time was taken from the service already
  int most = 8;
};

struct Decision {
  enum class What {
    kTake,            // the answer is what was asked for
    kWait,            // try again after `wait`
    kNewCredentials,  // look for credentials again, then try again at once
    kSetClock,        // take the time from the answer's Date, then try again at once
    kGiveUp,          // `code` and `reason`
  } what;
  Duration wait{};
  Code code = Code::kRetry;
  std::string reason;  // a sentence for the user
};

// `random`: 64 random bits.
[[nodiscard]] Decision decide_retry(const Outcome& outcome, const Tries& tries,
                                    std::uint64_t random);

// Is this how services refuse a header that they do not know? Others say so of other mistakes too:
// whoever asks makes sure that the same request without the header is taken.
[[nodiscard]] bool may_not_know_a_header(int status, std::string_view code);

// May the service have done what this try asked for, or do it still, though it was not confirmed?
[[nodiscard]] bool may_have_happened(const Outcome& outcome);

}  // namespace surefoot::s3
