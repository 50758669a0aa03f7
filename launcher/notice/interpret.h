// From an answer to a finding, for all sources over HTTP. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/notice/payloads.h"
#include "launcher/notice/source.h"

namespace surefoot::notice {

using Reader = std::function<Reading(std::string_view body)>;

// 200: what `read` makes of the body. 404: nothing is planned, where `none_is_404`. Everything
// else, redirects too, is trouble.
[[nodiscard]] Finding interpret(std::string about, const Answer& answer, bool none_is_404,
                                const Reader& read);

}  // namespace surefoot::notice
