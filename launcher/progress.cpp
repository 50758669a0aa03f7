#include "launcher/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "launcher/format.h"

namespace surefoot {
namespace {

struct Field {
  int weight;  // the smallest goes first when the line is too long
  std::string text;
};

std::string bar(const Progress& progress) {
  constexpr std::int64_t kCells = 20;
  const std::int64_t most = std::max<std::int64_t>(progress.max_steps.value, 1);
  const std::int64_t done =
      std::clamp<std::int64_t>(progress.step.value * kCells / most, 0, kCells);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(done), '#'),
                     std::string(static_cast<std::size_t>(kCells - done), '.'));
}

// Of nearly constant width, so that the line's other fields do not come and go.
std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(seconds, 0.0));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
  return duration_text(seconds);
}

std::vector<Field> fields_of(const Progress& progress) {
  std::vector<Field> fields;
  fields.push_back({1, bar(progress)});
  fields.push_back({100, fmt::format("step {}/{}", progress.step, progress.max_steps)});
  if (!progress.doing.empty())
    fields.push_back(
        {95, fmt::format("{} {}", progress.doing, duration_text(progress.doing_seconds))});
  if (progress.loss) fields.push_back({90, "loss " + number_text(*progress.loss)});
  if (progress.samples_per_second > 0)
    fields.push_back({20, fmt::format("{:.{}f} samples/s", progress.samples_per_second,
                                      progress.samples_per_second < 100 ? 1 : 0)});
  if (progress.mfu > 0) fields.push_back({15, fmt::format("MFU {:.1f} %", 100 * progress.mfu)});
  if (progress.seconds_per_step > 0 && progress.step < progress.max_steps) {
    const double left = progress.seconds_per_step *
                        static_cast<double>(progress.max_steps.value - progress.step.value);
    fields.push_back({80, clock_text(left) + " left"});
  }
  if (progress.snapshot.value >= 0)
    fields.push_back({45, fmt::format("snapshot {}", progress.snapshot)});
  if (progress.storing.value >= 0) {
    fields.push_back({50, fmt::format("storing {}", progress.storing)});
  } else if (progress.checkpoint.value >= 0) {
    fields.push_back({50, fmt::format("checkpoint {} {} ago", progress.checkpoint,
                                      clock_text(progress.checkpoint_age_seconds))});
  }
  if (progress.restarts > 0)
    fields.push_back({70, count_text(progress.restarts, "restart", "restarts")});
  return fields;
}

std::string joined(const std::vector<Field>& fields) {
  std::string line;
  for (const Field& field : fields) line += (line.empty() ? "" : "  ") + field.text;
  return line;
}

}  // namespace

std::string progress_line(const Progress& progress, int width) {
  std::vector<Field> fields = fields_of(progress);
  std::string line = joined(fields);
  while (static_cast<int>(line.size()) > width && fields.size() > 1) {
    fields.erase(std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.weight < b.weight;
    }));
    line = joined(fields);
  }
  return line;
}

bool ProgressClock::due(Step step, Step max_steps, Time now) {
  if (step == shown_) return false;
  const bool first = !at_.has_value();
  if (!first && step != max_steps && now - *at_ < interval_) return false;
  shown_ = step;
  at_ = now;
  return true;
}

}  // namespace surefoot
