#include "configs/fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <random>

#include "configs/suggest.h"
#include "configs/yaml_tree.h"

namespace surefoot {
namespace {

using Action = InjectedFault::Action;
using Target = InjectedFault::Target;

struct ActionName {
  std::string_view name;
  Action action;
};
constexpr std::array<ActionName, 3> kActions = {
    {{"kill", Action::kKill}, {"term", Action::kTerm}, {"stop", Action::kStop}}};
struct TargetName {
  std::string_view name;
  Target target;
};
constexpr std::array<TargetName, 4> kTargets = {{{"all", Target::kAll},
                                                 {"service", Target::kService},
                                                 {"supervisor", Target::kSupervisor},
                                                 {"mpirun", Target::kMpirun}}};

// The phases that a step passes through. Starting, restoring and done belong to no step, so a fault
// there would never fire.
constexpr std::array<Phase, 7> kPhases = {
    Phase::kData,     Phase::kForwardBackward, Phase::kReduction, Phase::kUpdate,
    Phase::kSnapshot, Phase::kEvaluation,      Phase::kFinishing};
constexpr std::size_t kRandomPhases = 5;  // those of every step

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <class... Args>
Error wrong(std::string_view fault, fmt::format_string<Args...> format, Args&&... args) {
  return error(Code::kInvalid, "fault {}: {}", configs::quote(fault),
               fmt::format(format, std::forward<Args>(args)...));
}

struct Option {
  std::string_view name;
  std::string_view value;
};
Option option_of(std::string_view word) {
  const std::size_t equals = word.find('=');
  return equals == std::string_view::npos ? Option{word, ""}
                                          : Option{word.substr(0, equals), word.substr(equals + 1)};
}

// A whole number in decimal digits from `min` to `max`.
template <class Number>
Result<Number> number_of(std::string_view fault, const Option& option, Number min, Number max) {
  Number value = 0;
  const char* end = option.value.data() + option.value.size();
  const auto [at, code] = std::from_chars(option.value.data(), end, value);
  if (code != std::errc() || at != end || value < min || value > max) {
    return wrong(fault, "{} is {}, allowed is a whole number from {} to {}", option.name,
                 configs::quote(option.value), min, max);
  }
  return value;
}

std::string phase_names() {
  std::string out;
  for (const Phase phase : kPhases)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", name(phase));
  return out;
}

Result<Phase> phase_of(std::string_view fault, std::string_view word) {
  const std::optional<Phase> phase = phase_named(word);
  if (!phase || std::find(kPhases.begin(), kPhases.end(), *phase) == kPhases.end()) {
    return wrong(fault, "phase is {}, allowed are {}", configs::quote(word), phase_names());
  }
  return *phase;
}

Status read_target(std::string_view text, std::string_view word, InjectedFault& fault) {
  for (const TargetName& target : kTargets) {
    if (target.name == word) {
      fault.target = target.target;
      return {};
    }
  }
  const Option option = option_of(word);
  if (option.name != "rank") {
    return wrong(text, "{} is no target, allowed are rank=N, all, service, supervisor, mpirun",
                 configs::quote(word));
  }
  fault.target = Target::kRank;
  SUREFOOT_ASSIGN(
      fault.rank,
      number_of<int>(text, option, 0, 1'000'000));  // arbitrary: it counts modulo the world size
  return {};
}

Result<InjectedFault> parse_one(std::string_view text, Action action, std::string_view rest,
                                const FaultContext& context) {
  InjectedFault fault;
  fault.action = action;
  const std::vector<std::string_view> words = split(rest, ',');
  SUREFOOT_TRY(read_target(text, words.front(), fault));
  bool has_step = false;
  bool has_phase = false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const Option option = option_of(words[i]);
    if (option.name == "step" && !has_step) {
      SUREFOOT_ASSIGN(fault.step.value,
                      number_of<std::int64_t>(text, option, 1, context.max_steps));
      has_step = true;
    } else if (option.name == "phase" && !has_phase) {
      SUREFOOT_ASSIGN(fault.phase, phase_of(text, option.value));
      has_phase = true;
    } else {
      return wrong(text,
                   "{} is not known or stands there twice, allowed after the target are step=N and "
                   "phase=NAME",
                   configs::quote(words[i]));
    }
  }
  if (!has_step)
    return wrong(text, "it names no step, allowed is step=N with N from 1 to {}",
                 context.max_steps);
  return fault;
}

// One fault in each of `count` equal stretches of the steps, so that they neither bunch nor fall on
// one step.
Result<std::vector<InjectedFault>> random_faults(std::string_view text, std::string_view rest,
                                                 const FaultContext& context) {
  const std::vector<std::string_view> words = split(rest, ',');
  const std::int64_t steps = std::max<std::int64_t>(context.max_steps - 2, 0);
  if (steps == 0)
    return wrong(
        text,
        "random faults fall on steps 2 to max_steps - 1, allowed is a max_steps of at least 3");
  SUREFOOT_ASSIGN(const int count,
                  number_of<int>(text, {"random", words.front()}, 1,
                                 static_cast<int>(std::min<std::int64_t>(kMaxFaults, steps))));
  std::uint64_t seed = 1;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const Option option = option_of(words[i]);
    if (option.name != "seed" || i > 1)
      return wrong(text, "{} is not known, allowed after random:N is seed=S",
                   configs::quote(words[i]));
    SUREFOOT_ASSIGN(seed, number_of<std::uint64_t>(text, option, 0, UINT64_MAX));
  }
  // Half of them hit a rank, the rest everything else in equal parts.
  static constexpr std::array<Target, 6> kDrawn = {
      Target::kRank, Target::kRank, Target::kRank, Target::kAll, Target::kMpirun, Target::kService};
  std::mt19937_64 random(seed);
  std::vector<InjectedFault> faults;
  for (int i = 0; i < count; ++i) {
    // Quotient and remainder apart, since steps * count can pass 2^63.
    const auto border = [&](std::int64_t k) {
      return steps / count * k + steps % count * k / count;
    };
    const std::int64_t first = border(i);
    const auto length = static_cast<std::uint64_t>(border(i + 1) - first);
    InjectedFault fault;
    fault.step = Step{2 + first + static_cast<std::int64_t>(random() % length)};
    fault.target = kDrawn[random() % kDrawn.size()];
    const auto rank =
        static_cast<int>(random() % static_cast<std::uint64_t>(std::max(context.workers, 1)));
    fault.rank = fault.target == Target::kRank ? rank : 0;
    fault.phase = kPhases[random() % kRandomPhases];
    faults.push_back(fault);
  }
  return faults;
}

}  // namespace

Result<std::vector<InjectedFault>> parse_faults(const std::vector<std::string>& texts,
                                                const FaultContext& context) {
  std::vector<InjectedFault> faults;
  for (const std::string& joined : texts) {
    for (const std::string_view text : split(joined, ';')) {
      if (text.empty()) continue;
      const std::size_t colon = text.find(':');
      const std::string_view word = text.substr(0, colon);
      const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
      const auto* action = std::find_if(kActions.begin(), kActions.end(),
                                        [&](const ActionName& a) { return a.name == word; });
      if (word == "random") {
        SUREFOOT_ASSIGN(const std::vector<InjectedFault> drawn, random_faults(text, rest, context));
        faults.insert(faults.end(), drawn.begin(), drawn.end());
      } else if (action != kActions.end()) {
        SUREFOOT_ASSIGN(const InjectedFault fault, parse_one(text, action->action, rest, context));
        faults.push_back(fault);
      } else {
        return wrong(
            text, "it begins with {}, allowed are kill:, term:, stop:, random:{}",
            configs::quote(word),
            configs::did_you_mean(configs::near_words(word, {"kill", "term", "stop", "random"})));
      }
      if (faults.size() > kMaxFaults)
        return wrong(text, "with it there are {} faults, allowed are at most {}", faults.size(),
                     kMaxFaults);
    }
  }
  return faults;
}

std::string to_text(const InjectedFault& fault) {
  const auto* action = std::find_if(kActions.begin(), kActions.end(),
                                    [&](const ActionName& a) { return a.action == fault.action; });
  const auto* target = std::find_if(kTargets.begin(), kTargets.end(),
                                    [&](const TargetName& t) { return t.target == fault.target; });
  const std::string victim =
      target == kTargets.end() ? fmt::format("rank={}", fault.rank) : std::string(target->name);
  return fmt::format("{}:{},step={},phase={}", action->name, victim, fault.step, name(fault.phase));
}

}  // namespace surefoot
