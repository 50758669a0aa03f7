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

// For a reply: protobuf refuses texts that are not UTF-8, and what stands in shared memory or comes
// out of a program may be anything.
[[nodiscard]] std::string as_utf8(std::string_view text);

}  // namespace surefoot
