// What a service is told, and what it answers.
#include "checkpoint/layout.h"
#include "checkpoint/service_message.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {

void service_message(std::string_view bytes) {
  const auto parsed = parse_request(bytes, "0123456789abcdef");
  if (const auto* request = std::get_if<service::Request>(&parsed)) {
    SUREFOOT_CHECK(request->what_case() != service::Request::WHAT_NOT_SET);
    if (request->has_hello()) {
      (void)StateLayout::from_json(request->hello().layout());
      (void)Digest::from_hex(request->hello().training_hash());
    }
    if (request->has_restore()) (void)Digest::from_hex(request->restore().candidate().digest());
  } else {
    SUREFOOT_CHECK(!std::get<Refusal>(parsed).message.empty());
  }
  // The other end of the line, and what a service reads back in its next life.
  service::Reply reply;
  if (reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    (void)reply.SerializeAsString();
  service::Memory memory;
  if (memory.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    (void)StateLayout::from_json(memory.hello().layout());
}

}  // namespace surefoot::fuzz
