// What a service makes of the bytes of a request, before it does anything about it.
//
// Pure; takes any bytes, and allocates no more than a small multiple of what it is given.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "checkpoint/service.pb.h"

namespace surefoot {

struct Refusal {
  std::string_view kind;  // one word, by which refusals are counted
  std::string message;
};

// `payload`: at most as long as a message may be. The request is of this protocol, for `job_id`,
// and asks for something; or why not.
[[nodiscard]] std::variant<service::Request, Refusal> parse_request(std::string_view payload,
                                                                    std::string_view job_id);

}  // namespace surefoot
