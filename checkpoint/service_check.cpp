// What a service tells the supervisor about its node and the logs on it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/node_check.h"
#include "checkpoint/service_internal.h"

namespace surefoot {
namespace {

constexpr std::int64_t kMaxPiece = 1 << 20;

// An attempt that was not launched here has no logs here, and one that has said nothing yet none
// either.
Result<service::LogReply> piece_of(const std::filesystem::path& file, std::int64_t offset,
                                   std::int64_t limit) {
  service::LogReply reply;
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd && errno == ENOENT) return reply;
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0)
    return error(Code::kRetry, "cannot read {}: {}", file.string(), errno_text(errno));
  if (!S_ISREG(info.st_mode)) return error(Code::kInvalid, "{} is not a file", file.string());
  reply.set_size(info.st_size);
  std::string& text = *reply.mutable_text();
  text.resize(static_cast<std::size_t>(
      std::clamp<std::int64_t>(info.st_size - offset, 0, std::min(limit, kMaxPiece))));
  if (text.empty()) return reply;
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), offset);
  if (got < 0) return error(Code::kRetry, "cannot read {}: {}", file.string(), errno_text(errno));
  text.resize(static_cast<std::size_t>(got));
  return reply;
}

}  // namespace

void ServiceImpl::check(const Peer& peer, const service::Check& request) {
  check_thread_.start([this, peer, request]() -> WorkThread::Outcome {
    NodeTools tools{settings_.open_store, settings_.describe, settings_.look_at_gpus,
                    settings_.arena_folder, [this] { return check_thread_.stopping(); }};
    service::Reply message;
    *message.mutable_check() = check_node(request, tools);
    return [this, peer, message = std::move(message)] { reply(peer, message); };
  });
}

void ServiceImpl::read_log(const Peer& peer, const service::ReadLog& request) {
  const bool sane = request.rank() >= -1 && request.offset() >= 0 && request.limit() >= 0;
  if (!sane) return reply(peer, error(Code::kInvalid, "there is no such piece of a log"));
  service::Reply nothing;
  nothing.mutable_log();
  const auto folder = launches_.log_folder(Attempt{request.attempt()});
  if (!folder) return reply(peer, nothing);
  const std::string name =
      request.rank() < 0 ? daemon_log_name() : fmt::format("rank-{}.log", request.rank());
  log_thread_.start([this, peer, request, file = *folder / name]() -> WorkThread::Outcome {
    auto piece = piece_of(file, request.offset(), request.limit());
    return [this, peer, piece = std::move(piece)] {
      if (!piece) return reply(peer, piece.error());
      service::Reply message;
      *message.mutable_log() = *piece;
      reply(peer, message);
    };
  });
}

}  // namespace surefoot
