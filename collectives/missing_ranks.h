// How every communicator says on whom a wait has waited in vain.
#pragma once

#include <string_view>
#include <vector>

#include "common/status.h"

namespace surefoot {

// "no answer from rank 1 and rank 3 in time, while waiting for the gradients of the step"; `ranks`
// in any order, may repeat.
[[nodiscard]] Error deadline_error(std::vector<int> ranks, std::string_view what);
// "lost rank 2 while waiting for the gradients of the step".
[[nodiscard]] Error lost_error(std::vector<int> ranks, std::string_view what);

}  // namespace surefoot
