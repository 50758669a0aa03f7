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

}  // namespace surefoot
