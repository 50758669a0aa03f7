#include "collectives/missing_ranks.h"

#include <algorithm>
#include <string>

namespace surefoot {
namespace {

std::string list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += fmt::format("rank {}", ranks[i]);
  }
  return text;
}

}  // namespace

Error deadline_error(std::vector<int> ranks, std::string_view what) {
  return error(Code::kRestart, "no answer from {} in time, while waiting for {}",
               list(std::move(ranks)), what);
}

Error lost_error(std::vector<int> ranks, std::string_view what) {
  return error(Code::kRestart, "lost {} while waiting for {}", list(std::move(ranks)), what);
}

}  // namespace surefoot
