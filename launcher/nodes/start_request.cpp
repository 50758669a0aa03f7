#include "launcher/nodes/start_request.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/arena.h"
#include "common/file.h"
#include "configs/job.h"
#include "configs/job_directory.h"
#include "launcher/nodes/network.h"

namespace surefoot {
namespace {

constexpr std::string_view kReplyMark = "surefoot-node ";
constexpr Duration kAsk = std::chrono::seconds(1);
// A service that runs without a tcp side looks for keys once a second.
constexpr Duration kBetweenAsks = std::chrono::milliseconds(50);

std::string text_in(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

Status make_private_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  struct stat info {};
  if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
      ::lstat(folder.c_str(), &info) != 0)
    return error(Code::kNoSpace, "cannot make {}: {}", folder.string(), errno_text(errno));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0)
    return error(Code::kInvalid, "{} is open to others, or theirs", folder.string());
  return {};
}

Status write_private_file(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = path.string() + ".new";
  ::unlink(temporary.c_str());
  const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  while (fd && !text.empty()) {
    const ssize_t put = ::write(fd.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) break;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (!fd || !text.empty() || ::rename(temporary.c_str(), path.c_str()) != 0)
    return error(Code::kNoSpace, "cannot write {}: {}", path.string(), errno_text(errno));
  return {};
}

Status place_link(const std::filesystem::path& link, const std::filesystem::path& target) {
  const std::filesystem::path temporary = link.string() + ".new";
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0 ||
      ::rename(temporary.c_str(), link.c_str()) != 0)
    return error(Code::kNoSpace, "cannot make {}: {}", link.string(), errno_text(errno));
  return {};
}

Result<std::string> listen_of(const config::Resources& resources) {
  const char* connection = std::getenv("SSH_CONNECTION");
  SUREFOOT_ASSIGN(std::string address,
                  choose_address(resources.network(), connection == nullptr ? "" : connection,
                                 interface_addresses()));
  return resources.ports().empty() ? address : address + " " + resources.ports();
}

Result<std::string> endpoint_of(ServiceClient& client, const std::filesystem::path& log,
                                Time deadline) {
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  for (;; std::this_thread::sleep_for(kBetweenAsks)) {
    SUREFOOT_ASSIGN(const service::Reply reply,
                    client.call(request, std::min(deadline, now() + kAsk)));
    if (!reply.status().endpoint().empty()) return reply.status().endpoint();
    if (now() > deadline)
      return error(Code::kRetry, "the service has no address for the supervisor; its log is {}",
                   log.string());
  }
}

// It becomes part of files' names here, and of what people read.
bool is_host_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return c > ' ' && c < 0x7f && c != '/'; });
}

// A service that listens on this machine's loopback only, when others are to reach it: of a start
// without resources.network, or by a worker. It ends and leaves the memory to its next life.
Status end_if_unreachable(ServiceClient& client, const std::string& listen, Time deadline) {
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  SUREFOOT_ASSIGN(service::Reply reply, client.call(request, deadline));
  const std::string address = address_of_endpoint(reply.status().endpoint());
  if (!is_loopback(address) || is_loopback(listen.substr(0, listen.find(' ')))) return {};
  request.mutable_shutdown();
  SUREFOOT_ASSIGN(reply, client.call(request, deadline));
  return {};
}

}  // namespace

std::string to_text(const StartRequest& request) {
  return nlohmann::ordered_json{{"protocol", kProtocol},
                                {"version", SUREFOOT_VERSION},
                                {"job_id", request.job_id},
                                {"directory", request.directory.string()},
                                {"arena_folder", request.arena_folder.string()},
                                {"keys", request.keys},
                                {"job", request.job}}
      .dump();
}

Result<StartRequest> parse_start_request(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return error(Code::kInvalid, "what came on standard input is no request to start a service");
  if (json.value("protocol", nlohmann::json()) != kProtocol ||
      text_in(json, "version") != SUREFOOT_VERSION)
    return error(Code::kInvalid, "has Surefoot {}, and {} is asked for", SUREFOOT_VERSION,
                 text_in(json, "version"));
  StartRequest request{text_in(json, "job_id"), text_in(json, "directory"),
                       text_in(json, "arena_folder"), text_in(json, "job"), text_in(json, "keys")};
  if (request.job_id.empty() || !request.directory.is_absolute() ||
      !request.arena_folder.is_absolute() || request.job.empty() || request.keys.empty())
    return error(Code::kInvalid, "the request to start a service is not whole");
  SUREFOOT_TRY([&]() -> Status {
    auto keys = parse_service_keys(request.keys);
    return keys ? Status() : Status(keys.error());
  }());
  return request;
}

Result<StartRequest> receive_start_request(int fd, Time deadline) {
  std::string text;
  std::array<char, 65536> block{};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
    pollfd item{fd, POLLIN, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (ready == 0 && now() >= deadline)
      return error(Code::kRetry, "the request to start a service does not come");
    const ssize_t got = ready > 0 ? ::read(fd, block.data(), block.size()) : -1;
    if (got == 0) return parse_start_request(text);
    if (got > 0) text.append(block.data(), static_cast<std::size_t>(got));
    if (got < 0 && ready > 0 && errno != EINTR)
      return error(Code::kRetry, "standard input cannot be read: {}", errno_text(errno));
    if (text.size() > kMaxStartRequestBytes)
      return error(Code::kInvalid, "the request to start a service is over 4 MiB");
  }
}

std::string to_text(const StartReply& reply) {
  return std::string(kReplyMark) +
         nlohmann::ordered_json{
             {"endpoint", reply.endpoint}, {"host", reply.host}, {"boot", reply.boot}}
             .dump() +
         "\n";
}

Result<StartReply> parse_start_reply(std::string_view output) {
  const std::size_t at = output.rfind(kReplyMark);
  const bool at_start = at == 0 || (at != output.npos && output[at - 1] == '\n');
  const std::string_view line =
      at_start ? output.substr(at + kReplyMark.size()) : std::string_view();
  const auto json = nlohmann::json::parse(line.substr(0, line.find('\n')), nullptr, false);
  const bool is_whole = json.is_object() &&
                        !address_of_endpoint(text_in(json, "endpoint")).empty() &&
                        is_host_name(text_in(json, "host"));
  if (!is_whole || !json.contains("boot") || !json["boot"].is_number_unsigned())
    return error(Code::kInvalid, "it did not answer as surefoot-node does");
  return StartReply{text_in(json, "endpoint"), text_in(json, "host"),
                    json["boot"].get<std::uint64_t>()};
}

std::filesystem::path node_job_file(const std::filesystem::path& arena_folder) {
  return arena_folder / "job.yaml";
}
std::filesystem::path node_programs(const std::filesystem::path& arena_folder) {
  return arena_folder / "bin";
}
std::filesystem::path node_keys(const std::filesystem::path& arena_folder) {
  return arena_folder / "service.keys";
}
std::filesystem::path node_listen(const std::filesystem::path& arena_folder) {
  return arena_folder / "listen";
}

Status place_node_files(const std::filesystem::path& arena_folder, const NodeFiles& files) {
  SUREFOOT_TRY(make_private_folder(arena_folder));
  SUREFOOT_TRY(write_private_file(node_job_file(arena_folder), files.job));
  SUREFOOT_TRY(place_link(node_programs(arena_folder), files.programs));
  if (files.keys.empty()) return {};
  SUREFOOT_TRY(write_private_file(node_listen(arena_folder), files.listen));
  return write_private_file(node_keys(arena_folder), files.keys);
}

void read_node_files(const std::filesystem::path& arena_folder, NodeFiles& files) {
  const auto learn = [](const std::filesystem::path& file, std::string& text) {
    if (auto found = read_file(file)) text = *std::move(found);
  };
  learn(node_job_file(arena_folder), files.job);
  learn(node_listen(arena_folder), files.listen);
  learn(node_keys(arena_folder), files.keys);
  std::error_code failed;
  auto programs = std::filesystem::read_symlink(node_programs(arena_folder), failed);
  if (!failed) files.programs = std::move(programs);
}

Result<StartReply> start_here(const StartRequest& request, Time deadline) {
  NodeFiles files{request.job, program_directory(), {}, {}};
  SUREFOOT_TRY(place_node_files(request.arena_folder, files));
  const LoadOutcome loaded =
      load_job(node_job_file(request.arena_folder), {.sets = {}, .check_files = false});
  if (!loaded.faults.empty())
    return error(Code::kInvalid, "cannot read the job file: {}", loaded.faults.front().text());
  const config::Job& job = loaded.job.job;
  if (arena_folder(job.checkpoint().arena(), request.job_id) != request.arena_folder)
    return error(Code::kInvalid, "would keep the snapshots elsewhere than in {}",
                 request.arena_folder.string());
  const JobDirectory directory{request.directory};
  SUREFOOT_TRY(directory.claim(job.name(), request.job_id));
  files.keys = request.keys;
  SUREFOOT_ASSIGN(files.listen, listen_of(job.resources()));
  SUREFOOT_TRY(place_node_files(request.arena_folder, files));

  ServiceClient client(request.arena_folder, request.job_id);
  ServiceLaunch launch;
  launch.program = files.programs / "surefoot-node";
  launch.job_file = node_job_file(request.arena_folder);
  launch.job_directory = request.directory;
  launch.supervised = true;
  SUREFOOT_TRY(ensure_service(client, launch, deadline));
  SUREFOOT_TRY(end_if_unreachable(client, files.listen, deadline));
  SUREFOOT_TRY(ensure_service(client, launch, deadline));
  SUREFOOT_ASSIGN(const std::string endpoint,
                  endpoint_of(client, directory.logs() / "node.log", deadline));
  return StartReply{endpoint, host_name(), self_process().boot};
}

}  // namespace surefoot
