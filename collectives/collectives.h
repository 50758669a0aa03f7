// Small exchanges between all ranks, on top of any Communicator. For start-up, restore, evaluation
// and agreement: messages of a few bytes to a few kilobytes, P - 1 messages per rank. Every rank
// must call the same function in the same order. All block until `deadline` at the longest;
// kRestart names the missing ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"

namespace surefoot {

// Every rank's bytes, by rank. Sizes may differ.
[[nodiscard]] Result<std::vector<std::string>> all_gather(Communicator& communicator,
                                                          std::string_view mine, Time deadline,
                                                          std::string_view what);
// The bytes of `root`, on every rank.
[[nodiscard]] Result<std::string> broadcast(Communicator& communicator, std::string_view bytes,
                                            int root, Time deadline, std::string_view what);
// An error on one rank is an error on all: returns the error of the lowest rank that has one, with
// "rank 3: " before it.
[[nodiscard]] Status agree(Communicator& communicator, const Status& mine, Time deadline,
                           std::string_view what);

}  // namespace surefoot
