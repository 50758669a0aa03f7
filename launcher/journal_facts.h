// What the journal keeps as single values, as rows of its table `facts(key, value)`.
#pragma once

#include <map>
#include <string>

#include "common/process.h"
#include "launcher/journal.h"

namespace surefoot {

using Facts = std::map<std::string, std::string>;

inline constexpr std::int64_t kJournalApplication =
    0x53464a31;                                     // "SFJ1", in the file's header. Do not change.
inline constexpr std::int64_t kJournalVersion = 2;  // 1: without the last three columns of attempts

// Missing or unreadable values read as the type's zero: the file's integrity was checked before.
[[nodiscard]] Facts to_facts(const supervisor::History& history);
[[nodiscard]] supervisor::History history_of(const Facts& facts);
[[nodiscard]] Facts to_facts(const ProcessId& supervisor);
[[nodiscard]] ProcessId supervisor_of(const Facts& facts);
[[nodiscard]] Facts to_facts(const supervisor::Stop& stop);
[[nodiscard]] std::optional<supervisor::Stop> stop_of(const Facts& facts);
[[nodiscard]] Facts to_facts(const JournalResult& result);
[[nodiscard]] std::optional<JournalResult> result_of(const Facts& facts);
[[nodiscard]] Facts to_facts(const JournalJob& job);
[[nodiscard]] JournalJob job_of(const Facts& facts);

}  // namespace surefoot
