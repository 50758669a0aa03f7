#include "launcher/accounting.h"

#include <algorithm>

namespace surefoot {

void Accounting::spend(Cause cause, Time until) {
  if (until <= mark) return;
  spent[static_cast<std::size_t>(cause)] += until - mark;
  mark = until;
}

void Accounting::spend_step(bool redone, Duration exposed, Time until) {
  if (until <= mark) return;
  const Duration span = until - mark;
  const Duration waited = std::clamp(exposed, Duration::zero(), span);
  spend(Cause::kSnapshot, mark + waited);
  spend(redone ? Cause::kRedone : Cause::kSteps, until);
}

Duration Accounting::elapsed() const {
  Duration sum{};
  for (const Duration each : spent) sum += each;
  return sum;
}

double Accounting::goodput() const {
  const Duration all = elapsed();
  return all > Duration::zero() ? seconds(of(Cause::kSteps)) / seconds(all) : 0.0;
}

}  // namespace surefoot
