// Expansion of variables in the texts of a job file.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot::configs {

// `$NAME` and `${NAME}` become environment variables, `$$` a dollar sign, `{name}` the job's name;
// other braces stay as they are. kInvalid: a variable is not set, `$` before something else, or the
// result is not a text that a job file can hold (empty, not UTF-8, control characters, or `{name}`
// once more). Reads the environment.
[[nodiscard]] Result<std::string> expand(std::string_view text, std::string_view job_name);

// The text that expands to `text`.
[[nodiscard]] std::string escape(std::string_view text);

}  // namespace surefoot::configs
