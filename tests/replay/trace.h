// Recorded histories of spot fleets, as other projects have published them.
//
// The form is told from the text itself:
//   events      `time_ms, add|remove, node`                  Oobleck's; no header, sorted by time
//   ticks       `[time_ms, "add"|"remove"|"no-op", {"nodes": [...], ...}]` a line          Parcae's
//   counts      `time, machines alive from then on`          Parcae's in milliseconds, Bamboo's in
//               seconds or hours, two rows a change
//   lifetimes   a header that names `lifetime_s` and `end_op`, one machine a row       Google's VMs
// Times of counts have no unit: with a fraction they are hours; whole, and more than 30 days when
// read as seconds, they are milliseconds; else seconds. `unit` overrules that.
//
// What happens at one moment is one change, however many rows it has: machines go in bursts, and
// bursts are what matters. None of these records when a machine was told to go.
//
// Pure. A text that is in none of these forms is kInvalid, with its line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace surefoot::replay {

struct Change {
  double at = 0;  // seconds
  int joined = 0;
  int lost = 0;
  friend bool operator==(const Change&, const Change&) = default;
};

struct Lifetime {
  double seconds = 0;
  bool lost = false;  // false: its owner stopped it, so all that is known is that it lived so long
  friend bool operator==(const Lifetime&, const Lifetime&) = default;
};

struct Trace {
  std::string form;                 // "events", "ticks", "counts", "lifetimes"
  std::vector<Change> changes;      // rising in time; empty for lifetimes
  double seconds = 0;               // time of the last row
  std::vector<Lifetime> lifetimes;  // of "lifetimes" only
};

// What a number of `counts` is in seconds: 1e-3, 1, 3600.
[[nodiscard]] Result<Trace> parse_trace(std::string_view text, std::optional<double> unit = {});

// The part [from, from + length), with what is alive at `from` joining at 0.
[[nodiscard]] Trace part_of(const Trace& trace, double from, double length);

// A fleet for a record of lifetimes, over `length` seconds: `machines` of them, each with a
// lifetime drawn by `seed`; one that is lost is replaced `replaced_after` seconds later.
//
// Lifetimes come from the Kaplan-Meier estimate (J. Am. Stat. Assoc. 53, 1958): just after a moment
// t at which d machines were lost of n that lived so long, S(t) = S(t-) (1 - d/n). Machines that
// were stopped count in n up to their end and are no losses. One whose draw lies below the end of
// the curve outlives the record's longest life and is not lost.
[[nodiscard]] Trace fleet_of_lifetimes(const Trace& trace, int machines, double length,
                                       double replaced_after, std::uint64_t seed);

}  // namespace surefoot::replay
