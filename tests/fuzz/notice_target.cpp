// What clouds' metadata services answer, and what is made of it.
#include <algorithm>

#include "common/check.h"
#include "launcher/notice/book.h"
#include "launcher/notice/payloads.h"
#include "launcher/notice/times.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {
namespace {

bool is_printable(std::string_view text) {
  return text.size() <= 200 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Whatever was read can be told; the same again is no news.
void tell(const notice::Reading& reading) {
  const notice::WallTime wall{std::chrono::sys_days(std::chrono::year{2026} / 11 / 30)};
  const Time at{std::chrono::hours(1000)};
  notice::Book book("any", /*cancels=*/true);
  const notice::Finding finding{"any", reading.sightings, reading.trouble};
  for (const notice::Change& change : book.take(finding, at, wall).changes) {
    SUREFOOT_CHECK(is_printable(change.notice.id) && is_printable(change.notice.what));
    SUREFOOT_CHECK(!change.notice.deadline || *change.notice.deadline >= at);
  }
  SUREFOOT_CHECK(book.take(finding, at, wall).changes.empty());
  if (reading.trouble) SUREFOOT_CHECK(is_printable(reading.trouble->kind));
}

}  // namespace

void notice(std::string_view bytes) {
  const Duration lead = std::chrono::seconds(30);
  tell(notice::read_aws_action(bytes, lead));
  tell(notice::read_aws_rebalance(bytes));
  tell(notice::read_aws_maintenance(bytes));
  tell(notice::read_gcp_preempted(bytes, lead));
  tell(notice::read_gcp_maintenance(bytes, lead));
  tell(notice::read_azure_events(bytes, "me", lead));
  tell(notice::read_termination_time(bytes));
  tell(notice::read_seconds(bytes, lead));
  SUREFOOT_CHECK(notice::read_token(bytes).find('\n') == std::string::npos);
  SUREFOOT_CHECK(is_printable(notice::read_word(bytes)));
  if (const auto time = notice::parse_time(bytes)) (void)notice::to_text(*time);
}

}  // namespace surefoot::fuzz
