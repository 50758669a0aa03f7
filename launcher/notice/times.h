// Times as metadata services write them. Pure and total.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/notice/notice.h"

namespace surefoot::notice {

//   2017-09-18T08:22:00Z  2017-09-18T08:22:00.5Z  2017-09-18T16:22:00+08:00   ISO 8601
//   Mon, 19 Sep 2016 18:29:47 GMT   21 Jan 2019 09:00:43 GMT                  RFC 1123
//   2018-08-18 12:05:33     local time, where `local` says of which offset; ISO 8601 with ' ' too
//
// Spaces around it do not matter. Nothing: it is no time, or one that does not exist.
[[nodiscard]] std::optional<WallTime> parse_time(
    std::string_view text, std::optional<std::chrono::minutes> local = std::nullopt);

// "2017-09-18T08:22:00Z"
[[nodiscard]] std::string to_text(WallTime time);

}  // namespace surefoot::notice
