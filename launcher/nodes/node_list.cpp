#include "launcher/nodes/node_list.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace surefoot {

std::string to_text(const NodeList& list) {
  nlohmann::ordered_json json = {{"attempt", list.attempt.value},
                                 {"job_id", list.job_id},
                                 {"keys_file", list.keys_file.string()},
                                 {"log_folder", list.log_folder.string()},
                                 {"nodes", nlohmann::ordered_json::array()}};
  for (const ListedNode& node : list.nodes)
    json["nodes"].push_back({{"name", node.name}, {"endpoint", node.endpoint}});
  return json.dump(1) + "\n";
}

Result<NodeList> parse_node_list(std::string_view text) {
  const Error wrong = error(Code::kInvalid, "this is no list of an attempt's machines");
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [](const nlohmann::json& in, const char* key) {
    return in.is_object() && in.contains(key) && in[key].is_string();
  };
  if (!is_text(json, "job_id") || !is_text(json, "keys_file") || !is_text(json, "log_folder") ||
      !json.contains("attempt") || !json["attempt"].is_number_integer() ||
      !json.contains("nodes") || !json["nodes"].is_array())
    return wrong;
  NodeList list{Attempt{json["attempt"].get<std::int64_t>()},
                json["job_id"].get<std::string>(),
                json["keys_file"].get<std::string>(),
                json["log_folder"].get<std::string>(),
                {}};
  for (const auto& node : json["nodes"]) {
    if (!is_text(node, "name") || !is_text(node, "endpoint")) return wrong;
    list.nodes.push_back({node["name"].get<std::string>(), node["endpoint"].get<std::string>()});
  }
  return list;
}

std::string launched_command(const std::vector<std::string>& words) {
  std::string command = fmt::format("{}", fmt::join(words, " "));
  constexpr std::string_view kProfile = "( test ! -r ./.profile || . ./.profile;";
  const std::size_t begin = command.find(kProfile);
  const std::size_t end = command.rfind(')');
  if (begin != command.npos && end != command.npos && end > begin)
    command = command.substr(begin + kProfile.size(), end - begin - kProfile.size());
  const std::size_t first = command.find_first_not_of(' ');
  return first == command.npos ? "" : "exec " + command.substr(first);
}

}  // namespace surefoot
