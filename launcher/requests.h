// What verbs ask the supervisor for over its control socket (control.h), as what its core is told.
//
//   {"ask": "status"}                                -> fleet_report.h, as JSON
//   {"ask": "drain", "node": NAME, "seconds": 28.5}  -> {"node": NAME, "what": "a sentence"};
//                                                       without `seconds`: nobody knows when it
//                                                       goes
//   {"ask": "cancel"}                                -> {"what": "a sentence", "pid": N}
//
// Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/status.h"
#include "launcher/supervisor.h"

namespace surefoot {

// `host`: the supervisor's own name, by which the only machine of a job is known too. kInvalid: no
// machine of that name, and which there are.
[[nodiscard]] Result<supervisor::NoticeReceived> notice_asked_for(const nlohmann::json& request,
                                                                  const supervisor::Rules& rules,
                                                                  const supervisor::Fleet& fleet,
                                                                  const std::string& host, Time at);

}  // namespace surefoot
