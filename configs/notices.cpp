#include "configs/notices.h"

#include <charconv>

#include "configs/store_url.h"

namespace surefoot {
namespace {

using Recovery = config::Recovery;

bool is_cloud(Recovery::NoticeSource source) {
  return source != Recovery::signal && source != Recovery::file && source != Recovery::http;
}

}  // namespace

Result<ListenAddress> parse_listen(std::string_view text) {
  const auto colon = text.rfind(':');
  const std::string_view port = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  ListenAddress address;
  const auto [end, fault] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_number = fault == std::errc() && end == port.data() + port.size() &&
                         port.front() != '-' && address.port <= 65535;
  if (!is_number || colon == 0) return error(Code::kInvalid, "allowed is ADDRESS:PORT");
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

Result<NoticeEndpoint> parse_notice_endpoint(std::string_view text) {
  const auto equals = text.find('=');
  NoticeEndpoint endpoint;
  if (equals == std::string_view::npos ||
      !Recovery::NoticeSource_Parse(std::string(text.substr(0, equals)), &endpoint.source) ||
      !is_cloud(endpoint.source)) {
    return error(Code::kInvalid,
                 "allowed is SOURCE=URL with a cloud as SOURCE, such as aws=http://127.0.0.1:8080");
  }
  endpoint.url = text.substr(equals + 1);
  if (const auto url = parse_endpoint(endpoint.url); !url)
    return error(Code::kInvalid, "allowed is SOURCE=http://HOST:PORT: {}", url.error().message);
  if (endpoint.url.ends_with('/')) endpoint.url.pop_back();
  return endpoint;
}

}  // namespace surefoot
