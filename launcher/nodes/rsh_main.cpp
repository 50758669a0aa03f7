// surefoot-rsh NODES_FILE HOST COMMAND...: what mpirun takes for a remote shell (plm_rsh_agent).
//
// No shell is reached: the job's service on that machine is asked to start the command (Open MPI's
// daemon), in a session that it ends with the gang. So a recovery needs no ssh, and a machine that
// was cut off ends its daemon itself. Leaves with 0 once it is started, not when it ends; else 1,
// with the reason on standard error, which is mpirun's log.
#include <algorithm>
#include <cstdio>

#include "checkpoint/service_client.h"
#include "common/file.h"
#include "launcher/nodes/node_list.h"

namespace surefoot {
namespace {

// Of a service that was alive when the attempt was decided on.
constexpr Duration kPatience = std::chrono::seconds(10);

Status launch(const std::string& file, const std::string& host,
              const std::vector<std::string>& words) {
  SUREFOOT_ASSIGN(const std::string text, read_file(file));
  SUREFOOT_ASSIGN(const NodeList list, parse_node_list(text));
  const auto node = std::find_if(list.nodes.begin(), list.nodes.end(),
                                 [&](const ListedNode& one) { return one.name == host; });
  if (node == list.nodes.end()) return error(Code::kInvalid, "{} is not in {}", host, file);
  SUREFOOT_ASSIGN(const ServiceKeys keys, read_service_keys(list.keys_file));
  service::Request request;
  request.mutable_launch()->set_attempt(list.attempt.value);
  request.mutable_launch()->set_command(launched_command(words));
  request.mutable_launch()->set_log_folder(list.log_folder.string());
  ServiceClient client(ServiceAddress::elsewhere(node->endpoint, client_half(keys)), list.job_id);
  auto reply = client.call(std::move(request), now() + kPatience);
  return reply ? Status() : Status(reply.error());
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: surefoot-rsh NODES_FILE HOST COMMAND...\n", stderr);
    return 64;
  }
  const Status launched = launch(argv[1], argv[2], {argv + 3, argv + argc});
  if (launched) return 0;
  std::fprintf(stderr, "surefoot-rsh: %s: %s\n", argv[2], launched.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace surefoot

int main(int argc, char** argv) {
  return surefoot::run(argc, argv);
}
