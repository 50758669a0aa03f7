#include "launcher/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace surefoot {
namespace {

namespace core = supervisor;

constexpr double kLongestNotice = 1e6;  // seconds; arbitrary

Result<core::NodeId> node_named(const std::string& name, const core::Rules& rules,
                                const core::Fleet& fleet, const std::string& host) {
  std::string names;
  for (core::NodeId node = 0; node < static_cast<core::NodeId>(fleet.size()); ++node) {
    const std::string& known = rules.fleet.alone ? host : fleet[node].host.name;
    if (name == known || name == fleet[node].host.name) return node;
    names += (names.empty() ? "" : ", ") + known;
  }
  return error(Code::kInvalid, "there is no machine {}; there are: {}", name,
               names.empty() ? "none yet" : names);
}

}  // namespace

Result<core::NoticeReceived> notice_asked_for(const nlohmann::json& request,
                                              const core::Rules& rules, const core::Fleet& fleet,
                                              const std::string& host, Time at) {
  const auto name = request.find("node");
  if (name == request.end() || !name->is_string())
    return error(Code::kInvalid, "which machine is to be drained?");
  core::NoticeReceived notice;
  SUREFOOT_ASSIGN(notice.node, node_named(name->get<std::string>(), rules, fleet, host));
  const auto left = request.find("seconds");
  if (left != request.end() && !left->is_number())
    return error(Code::kInvalid, "in how many seconds does the machine go? Not a number: {}",
                 left->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (left != request.end()) {
    const double in = std::clamp(left->get<double>(), 0.0, kLongestNotice);
    notice.leaves = at + from_seconds(in);
  }
  return notice;
}

}  // namespace surefoot
