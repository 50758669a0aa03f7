// Strong types for what must not be mixed up.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <string>

namespace surefoot {

template <class Tag>
struct Id {
  std::int64_t value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
  [[nodiscard]] Id next() const { return Id{value + 1}; }
};

// One optimizer update, numbered from 1. Step 0 is the initial weights.
using Step = Id<struct StepTag>;
// One gang of workers from launch to exit, numbered from 1. 0: not assigned yet.
using Attempt = Id<struct AttemptTag>;

// 16 lower-case hex digits from the system's random source; made once per job.
[[nodiscard]] std::string make_job_id();

}  // namespace surefoot

template <class Tag>
struct fmt::formatter<surefoot::Id<Tag>> : fmt::formatter<std::int64_t> {
  template <class Context>
  auto format(const surefoot::Id<Tag>& id, Context& context) const {
    return fmt::formatter<std::int64_t>::format(id.value, context);
  }
};
