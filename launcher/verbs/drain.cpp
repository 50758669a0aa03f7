#include <cstdio>
#include <nlohmann/json.hpp>

#include "configs/units.h"
#include "launcher/control.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {

int drain_verb(const DrainArguments& arguments) {
  nlohmann::json request = {{"ask", "drain"}, {"node", arguments.node}};
  if (arguments.in) {
    const auto in = configs::parse_duration(*arguments.in);
    if (!in)
      return complain(error(Code::kInvalid, "--in {}: {}", *arguments.in, in.error().message));
    request["seconds"] = static_cast<double>(*in) / 1000;
  }
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  auto answer = ask_supervisor(found->directory.root, request, now() + kSupervisorPatience);
  if (!answer && answer.error().code == Code::kNotFound) {
    return complain(error(Code::kRetry, "{}: nothing to drain, no supervisor runs",
                          found->directory.root.string()));
  }
  if (!answer) return complain(answer.error());
  if (arguments.json) {
    std::printf("%s\n", answer->dump().c_str());
  } else {
    std::printf("%s: %s\n", arguments.node.c_str(), answer->value("what", "").c_str());
  }
  return kExitOk;
}

}  // namespace surefoot
