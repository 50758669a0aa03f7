#include "checkpoint/service_message.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include "checkpoint/service_client.h"

namespace surefoot {

std::variant<service::Request, Refusal> parse_request(std::string_view payload,
                                                      std::string_view job_id) {
  // Protobuf prints a line for each text that is not UTF-8: strangers could fill the log.
  static const auto quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  service::Request request;
  if (!request.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return Refusal{"unreadable", "the request cannot be parsed"};
  if (request.protocol() != kProtocol) {
    return Refusal{"protocol", fmt::format("protocol version {} was spoken, this service speaks "
                                           "{}: use programs of one build",
                                           request.protocol(), kProtocol)};
  }
  if (request.job_id() != job_id)
    return Refusal{"job", fmt::format("this is the service of job {}", job_id)};
  if (request.what_case() == service::Request::WHAT_NOT_SET)
    return Refusal{"empty", "the request asks for nothing this service knows"};
  return request;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
    const bool pair = length == 2 && i + 1 < text.size() &&
                      (static_cast<unsigned char>(text[i + 1]) & 0xC0) == 0x80;
    const bool whole = length == 1 || pair;
    out += whole ? text.substr(i, length) : std::string_view("?");
    i += whole ? length : 1;
  }
  return out;
}

}  // namespace surefoot
