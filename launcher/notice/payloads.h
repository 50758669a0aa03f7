// What metadata services answer, read into findings. Pure and total: whatever the bytes are, a
// function gives events, none, or trouble; of a list the entries that can be read count although
// others cannot. All text in what they return is printable and short.
//
// `lead`: how long a machine is reckoned to have after a notice that names no time.
#pragma once

#include <string_view>

#include "launcher/notice/notice.h"

namespace surefoot::notice {

struct Reading {
  std::vector<Sighting> sightings;
  std::optional<Trouble> trouble;
};

// {"action": "terminate", "time": "2017-09-18T08:22:00Z"}; hibernate leaves less than that: `lead`
// at the most.
[[nodiscard]] Reading read_aws_action(std::string_view body, Duration lead);
// {"noticeTime": "2020-10-26T14:14:14Z"}: when it was said, no deadline.
[[nodiscard]] Reading read_aws_rebalance(std::string_view body);
// [{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": ..., "EventId": ..., "State": "active"}]
[[nodiscard]] Reading read_aws_maintenance(std::string_view body);

// TRUE, FALSE
[[nodiscard]] Reading read_gcp_preempted(std::string_view body, Duration lead);
// NONE, MIGRATE_ON_HOST_MAINTENANCE (no time: it goes on by itself), TERMINATE_ON_HOST_MAINTENANCE
// (in `lead`)
[[nodiscard]] Reading read_gcp_maintenance(std::string_view body, Duration lead);

// {"Events": [...]} of which `Resources` names this machine, upper and lower case being the same.
// Started: in `lead`. Freezes of less than 9 s are left out.
[[nodiscard]] Reading read_azure_events(std::string_view body, std::string_view machine,
                                        Duration lead);

// A time and nothing else, of a machine of alibaba, tencent or volcengine; without a zone: that of
// China. An empty body: nothing is planned.
[[nodiscard]] Reading read_termination_time(std::string_view body);

// The content of recovery.notice_file, or of a POST: the number of seconds that are left, also as
// {"seconds": 30}; nothing: `lead`.
[[nodiscard]] Reading read_seconds(std::string_view body, Duration lead);

// A session token of aws or alibaba that can be sent in a header; else empty.
[[nodiscard]] std::string read_token(std::string_view body);
// The name of an azure machine, an ETag of gcp: letters, digits, '-', '_' and '.'; else empty.
[[nodiscard]] std::string read_word(std::string_view body);

// Every byte that is not printable ASCII becomes '?', and it is cut to 120 of them.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace surefoot::notice
