#include "launcher/nodes/log_mirror.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/file.h"

namespace surefoot {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // the most that is answered

Status append(const std::filesystem::path& file, std::string_view text) {
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  const Fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  while (fd && !text.empty()) {
    const ssize_t put = ::write(fd.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) break;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (!fd || !text.empty())
    return error(Code::kNoSpace, "cannot write {}: {}", file.string(), errno_text(errno));
  return {};
}

}  // namespace

LogMirror::LogMirror(std::filesystem::path folder, std::string host, Attempt attempt,
                     std::vector<int> ranks)
    : attempt_(attempt) {
  for (const int rank : ranks) logs_.push_back({rank, folder / fmt::format("rank-{}.log", rank)});
  logs_.push_back({-1, folder / fmt::format("daemon-{}.log", host)});
}

Result<bool> LogMirror::pull(const Call& call, Time deadline) {
  std::int64_t budget = kMostPerPull;
  for (std::size_t done = 0; done < logs_.size(); ++done) {
    const std::size_t at = (first_ + done) % logs_.size();
    for (std::int64_t left = 1; left > 0;) {
      if (budget <= 0 || now() >= deadline) {
        first_ = at;
        return false;
      }
      SUREFOOT_ASSIGN(left, pull_piece(logs_[at], call, deadline, budget));
    }
  }
  return true;
}

Result<std::int64_t> LogMirror::pull_piece(const Log& log, const Call& call, Time deadline,
                                           std::int64_t& budget) const {
  struct stat info {};
  const std::int64_t have = ::stat(log.file.c_str(), &info) == 0 ? info.st_size : 0;
  service::Request request;
  request.mutable_read_log()->set_attempt(attempt_.value);
  request.mutable_read_log()->set_rank(log.rank);
  request.mutable_read_log()->set_offset(have);
  request.mutable_read_log()->set_limit(std::min(kPiece, budget));
  SUREFOOT_ASSIGN(const service::Reply reply, call(std::move(request), deadline));
  const service::LogReply& piece = reply.log();
  const auto came = static_cast<std::int64_t>(piece.text().size());
  if (came == 0) return 0;
  SUREFOOT_TRY(append(log.file, piece.text()));
  budget -= came;
  return std::max<std::int64_t>(piece.size() - have - came, 0);
}

}  // namespace surefoot
