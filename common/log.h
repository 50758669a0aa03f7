// The log of a process: spdlog, one line an event, to standard error.
//
// Line: `2026-11-30T15:51:44.123Z info  worker 3/1@host: message`; the middle field is set once
// with init_log. Who first decides what went wrong logs it, once; others pass the error on.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace surefoot {

// `who` names the process: "surefoot", "node", "worker attempt/rank@host".
void init_log(const std::string& who);

}  // namespace surefoot
