// What a supervisor tells a machine over ssh's standard input to have its service there, and what
// it is answered: one JSON object, then one line. `surefoot-node --from-stdin`
// (launcher/node/node.h).
//
// Keys and job file are nowhere else on the way: not in an argument, not in the environment, not in
// a log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/service_client.h"
#include "common/clock.h"
#include "common/status.h"

namespace surefoot {

struct StartRequest {
  std::string job_id;
  std::filesystem::path directory;     // of the job, on the supervisor's machine
  std::filesystem::path arena_folder;  // the same on all machines
  std::string job;                     // the resolved job file
  std::string keys;                    // to_text(server_half(...))
};
[[nodiscard]] std::string to_text(const StartRequest& request);
// kInvalid says what is wrong, or that another version of Surefoot is spoken, and never repeats the
// text.
[[nodiscard]] Result<StartRequest> parse_start_request(std::string_view text);
inline constexpr std::size_t kMaxStartRequestBytes = 4 << 20;
// From a pipe, up to its end. kRetry: that does not come by `deadline`.
[[nodiscard]] Result<StartRequest> receive_start_request(int fd, Time deadline);

struct StartReply {
  std::string endpoint;  // tcp://ADDRESS:PORT
  std::string host;      // its own name
  std::uint64_t boot = 0;
};
[[nodiscard]] std::string to_text(const StartReply& reply);
// Of all that came on standard output, since a login may have something to say too. kInvalid: no
// such line.
[[nodiscard]] Result<StartReply> parse_start_reply(std::string_view output);

// What the workers of an attempt over several machines find on each of them under the same name, in
// the arena's folder (mode 0700):
//   job.yaml      the job file (0600)
//   bin           link to the folder of Surefoot's programs there
//   service.keys  the service's half of the keys (0600), and
//   listen        "ADDRESS" or "ADDRESS FIRST-LAST": for its next life, whoever starts it
// On the supervisor's own machine the last two are empty.
struct NodeFiles {
  std::string job;
  std::filesystem::path programs;
  std::string keys;
  std::string listen;
};
Status place_node_files(const std::filesystem::path& arena_folder, const NodeFiles& files);
// What lies there now goes into `files`; what does not stays in it as it was.
void read_node_files(const std::filesystem::path& arena_folder, NodeFiles& files);
[[nodiscard]] std::filesystem::path node_job_file(const std::filesystem::path& arena_folder);
[[nodiscard]] std::filesystem::path node_programs(const std::filesystem::path& arena_folder);
[[nodiscard]] std::filesystem::path node_keys(const std::filesystem::path& arena_folder);
[[nodiscard]] std::filesystem::path node_listen(const std::filesystem::path& arena_folder);

// On the machine itself: does what is asked, finds the job's service or starts it, and answers once
// it can be asked. Blocks until `deadline` at the longest.
[[nodiscard]] Result<StartReply> start_here(const StartRequest& request, Time deadline);

}  // namespace surefoot
