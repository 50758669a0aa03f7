#include <cstdio>
#include <nlohmann/json.hpp>

#include "launcher/verbs/verbs.h"

namespace surefoot {

int nodes_verb(const NodesArguments& arguments) {
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  auto view = read_journal(found->directory.root, 0);
  if (!view) return complain(view.error());
  const FleetReport report = ask_fleet(*found).value_or(fleet_report(*view));
  if (arguments.json) {
    nlohmann::json object = to_json(report);
    object["job"] = found->job.name();
    std::printf("%s\n",
                object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::fputs(nodes_screen(found->job.name(), report).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace surefoot
