// The model behind commit_model_test.cpp: one store, two publishers, one deleter, moved one store
// operation at a time.
//
// What it is for, and what is asserted, stands there. Pure; states are plain bytes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/commit.h"
#include "checkpoint/part.h"
#include "checkpoint/retention.h"

namespace surefoot::testing {
inline constexpr int kSteps = 3;
inline constexpr int kAttempts = 2;  // sets of a step: 1 and 2, by default of attempts 1 and 2
inline constexpr std::uint8_t kNone = 0;
inline constexpr std::uint8_t kDamaged = 9;  // a manifest that does not parse

enum class Bug {
  kNone,
  kPublishBeforeParts,
  kOursByAttempt,
  kNoSecondLook,
  kDeletePartsFirst,
  kDeleteUnverified,
  kRestoreUnchecked
};

// ---- The world. Plain bytes, so that states can be compared and hashed as such.

struct StepObjects {
  std::uint8_t parts[kAttempts];  // bit i: part i of the set
  std::uint8_t manifest;          // kNone, number of a set, kDamaged
  std::uint8_t
      doomed;  // ghost: the deleter removed its manifest, or planned for its parts seeing none
  std::uint8_t was_whole;  // ghost: bit attempt: whole with its manifest at some moment
};

struct PublisherProcess {
  enum Stage : std::uint8_t { kStoring, kPublishing, kFinished };
  std::uint8_t turn;  // how many of its steps it is through with
  Stage stage;
  std::uint8_t phase;
  std::uint8_t header;
  std::uint8_t flags;  // parts_there, may_replace, replaced, unknown
};

struct DeleterProcess {
  enum Stage : std::uint8_t {
    kListing,
    kReading,
    kVerifying,
    kListingAgain,
    kReadingAgain,
    kRemoving
  };
  Stage stage;
  std::uint8_t cursor;          // step being read, part being verified, name being removed
  std::uint8_t target;          // the step being verified, + 1
  std::uint8_t listed[kSteps];  // bits: parts of attempt 1, of attempt 2 (2 each), manifest (bit 4)
  std::uint8_t looked[kSteps];  // StepState, and attempt in bits 4..
};

struct World {
  StepObjects steps[kSteps];
  PublisherProcess publishers[2];
  DeleterProcess deleter;
};
static_assert(std::has_unique_object_representations_v<World>);

struct Hash {
  std::size_t operator()(const World& world) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&world), sizeof world});
  }
};
struct Equal {
  bool operator()(const World& a, const World& b) const {
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};

// What a scenario is about.
struct Scenario {
  explicit Scenario(std::string title) : name(std::move(title)) {}
  std::string name;
  World start{};
  std::array<std::uint8_t, 2> attempts{1, 1};   // whose set each publisher writes
  std::array<int, kAttempts> parts{2, 2};       // N of each set
  std::array<int, kAttempts> attempt_of{1, 2};  // each set; of one attempt they differ in N
  std::array<std::vector<int>, 2> plans;        // steps that each publisher stores
  int keep = 1;
  Bug bug = Bug::kNone;
  int final_step = 1;  // newest whole one at a quiet end, at least
};

inline bool complete(const Scenario& scenario, const StepObjects& step, int attempt) {
  return step.parts[attempt - 1] == (1 << scenario.parts[attempt - 1]) - 1;
}
inline bool readable(const StepObjects& step) {
  return step.manifest != kNone && step.manifest != kDamaged;
}
inline bool whole(const Scenario& scenario, const StepObjects& step) {
  return readable(step) && complete(scenario, step, step.manifest);
}
inline int newest_whole(const Scenario& scenario, const World& world) {
  for (int step = kSteps - 1; step >= 0; --step) {
    if (whole(scenario, world.steps[step])) return step;
  }
  return -1;
}

// ---- One publisher

inline Publisher machine_of(const Scenario& scenario, const PublisherProcess& process, int index) {
  Publisher machine;
  machine.phase = static_cast<Publisher::Phase>(process.phase);
  machine.of = scenario.parts[scenario.attempts[index] - 1];
  machine.own_part = machine.of == 1 ? 0 : index;
  machine.header = process.header;
  machine.parts_there = process.flags & 1;
  machine.may_replace = process.flags & 2;
  machine.replaced = process.flags & 4;
  machine.unknown = process.flags & 8;
  return machine;
}

inline void save(PublisherProcess& process, const Publisher& machine) {
  process.phase = static_cast<std::uint8_t>(machine.phase);
  process.header = static_cast<std::uint8_t>(machine.header);
  process.flags = static_cast<std::uint8_t>(machine.parts_there | machine.may_replace << 1 |
                                            machine.replaced << 2 | machine.unknown << 3);
}

class Model {
 public:
  explicit Model(const Scenario& scenario) : scenario_(scenario) {}

  // All states one operation away.
  void successors(const World& world, std::vector<World>& into) {
    for (int index = 0; index < 2; ++index) publisher_moves(world, index, into);
    deleter_moves(world, into);
  }

  // The next state when nothing fails and publishers go first; nothing: all are done (the deleter
  // has gone round twice).
  World settle(World world) {
    for (int round = 0; round < 4; ++round) {
      for (int index = 0; index < 2; ++index) {
        for (int moves = 0;
             moves < 200 && world.publishers[index].stage != PublisherProcess::kFinished; ++moves) {
          // A publisher that waits for the other goes on after it.
          world = publisher_move(world, index, true, false);
        }
      }
      world.deleter = {};
      for (int moves = 0; moves < 40; ++moves) world = deleter_move(world);
    }
    return world;
  }

  std::string violation(const World& before, const World& after) const {
    for (int i = 0; i < kSteps; ++i) {
      const StepObjects& step = after.steps[i];
      const bool offered =
          scenario_.bug == Bug::kRestoreUnchecked ? readable(step) : whole(scenario_, step);
      if (offered && !whole(scenario_, step)) return "offered: a half checkpoint is offered";
      if (readable(step) && !whole(scenario_, step) && !step.doomed)
        return "no halves: a manifest stands without its parts";
    }
    if (newest_whole(scenario_, after) < newest_whole(scenario_, before))
      return "not lost: the newest good checkpoint is gone";
    return lie_ ? "true word: published was said of a set that never was whole" : "";
  }

 private:
  using Stage = PublisherProcess::Stage;

  void note(World& world) const {
    for (StepObjects& step : world.steps) {
      if (whole(scenario_, step))
        step.was_whole = static_cast<std::uint8_t>(step.was_whole | 1 << step.manifest);
    }
  }

  void publisher_moves(const World& world, int index, std::vector<World>& into) {
    const PublisherProcess& process = world.publishers[index];
    if (process.stage == Stage::kFinished) return;
    into.push_back(publisher_move(world, index, true, false));
    into.push_back(publisher_move(world, index, true, true));
    into.push_back(publisher_move(world, index, false, true));
    World crashed = world;
    crashed.publishers[index] = {process.turn, Stage::kStoring, 0, 0, 0};
    into.push_back(crashed);
    World dead = world;
    dead.publishers[index] = {process.turn, Stage::kFinished, 0, 0, 0};
    into.push_back(dead);
  }

  // `effect`: the operation takes effect. `fails`: it reports a failure.
  World publisher_move(World world, int index, bool effect, bool fails) {
    PublisherProcess& process = world.publishers[index];
    const int attempt = scenario_.attempts[index];
    StepObjects& step = world.steps[scenario_.plans[index][process.turn]];
    if (process.stage == Stage::kStoring) {
      const int of = scenario_.parts[attempt - 1];
      if (effect)
        step.parts[attempt - 1] =
            static_cast<std::uint8_t>(step.parts[attempt - 1] | 1 << (of == 1 ? 0 : index));
      if (!fails) start(process, index);
      note(world);
      return world;
    }
    const Publisher machine = machine_of(scenario_, process, index);
    PublishEvent event = perform(step, machine, attempt, effect);
    if (fails) {
      const bool putting = machine.phase == Publisher::Phase::kPutting;
      event = putting && effect ? PublishEvent{ManifestPut{ManifestPut::kUnknown}}
                                : PublishEvent{StoreFailed{}};
    }
    note(world);
    PublishDecision decision = decide(machine, event);
    if (scenario_.bug == Bug::kNoSecondLook &&
        decision.next.phase == Publisher::Phase::kConfirming) {
      decision.next.phase = Publisher::Phase::kDone;
      decision.effect = PublishDone{PublishOutcome::kPublished};
    }
    save(process, decision.next);
    if (const auto* done = std::get_if<PublishDone>(&decision.effect))
      finish(process, index, step, attempt, done->outcome);
    return world;
  }

  void start(PublisherProcess& process, int index) {
    const int of = scenario_.parts[scenario_.attempts[index] - 1];
    process.stage = Stage::kPublishing;
    save(process, start_publishing(of, of == 1 ? 0 : index, false).next);
  }

  void finish(PublisherProcess& process, int index, const StepObjects& step, int attempt,
              PublishOutcome outcome) {
    if (outcome == PublishOutcome::kPublished && !(step.was_whole & 1 << attempt)) lie_ = true;
    if (outcome == PublishOutcome::kWaiting || outcome == PublishOutcome::kFailed) {
      start(process, index);  // looks again later
      return;
    }
    ++process.turn;
    const bool more = process.turn < scenario_.plans[index].size();
    process = {process.turn, more ? Stage::kStoring : Stage::kFinished, 0, 0, 0};
  }

  PublishEvent perform(StepObjects& step, const Publisher& machine, int attempt,
                       bool effect) const {
    switch (machine.phase) {
      case Publisher::Phase::kListing:
      case Publisher::Phase::kConfirming: {
        SetListed listed{{}, step.manifest != kNone, attempt == 1 && step.parts[1] != 0};
        for (int part = 0; part < machine.of; ++part) {
          const bool careless = scenario_.bug == Bug::kPublishBeforeParts;
          listed.parts.push_back(careless || step.parts[attempt - 1] >> part & 1);
        }
        return listed;
      }
      case Publisher::Phase::kReadingHeaders: {
        const bool there = scenario_.bug == Bug::kPublishBeforeParts ||
                           step.parts[attempt - 1] >> machine.header & 1;
        return HeaderRead{there ? HeaderRead::kGood : HeaderRead::kAbsent};
      }
      case Publisher::Phase::kPutting:
        if (step.manifest != kNone) return ManifestPut{ManifestPut::kExists};
        if (effect) step.manifest = static_cast<std::uint8_t>(attempt);
        return ManifestPut{ManifestPut::kDone};
      case Publisher::Phase::kReadingManifest:
        if (step.manifest == kNone) return ManifestRead{ManifestRead::kAbsent};
        if (step.manifest == kDamaged) return ManifestRead{ManifestRead::kDamaged};
        return ManifestRead{is_ours(step.manifest, attempt) ? ManifestRead::kOurs
                                                            : ManifestRead::kOther};
      case Publisher::Phase::kVerifyingOther:
        return OtherVerified{whole(scenario_, step)};
      case Publisher::Phase::kReplacing:
      case Publisher::Phase::kWithdrawing:
        if (effect) step.manifest = kNone;
        return ManifestRemoved{};
      case Publisher::Phase::kDone:
        break;
    }
    return StoreFailed{};
  }

  bool is_ours(int standing, int own) const {
    if (scenario_.bug != Bug::kOursByAttempt) return standing == own;
    return scenario_.attempt_of[standing - 1] == scenario_.attempt_of[own - 1];
  }

  // ---- The deleter

  void deleter_moves(const World& world, std::vector<World>& into) {
    into.push_back(deleter_move(world));
    World crashed = world;
    crashed.deleter = {};
    into.push_back(crashed);
  }

  World deleter_move(World world) {
    using DeleterStage = DeleterProcess::Stage;
    DeleterProcess& deleter = world.deleter;
    switch (deleter.stage) {
      case DeleterStage::kListing:
      case DeleterStage::kListingAgain:
        for (int i = 0; i < kSteps; ++i) {
          const StepObjects& step = world.steps[i];
          deleter.listed[i] = static_cast<std::uint8_t>(step.parts[0] | step.parts[1] << 2 |
                                                        (step.manifest != kNone) << 4);
          deleter.looked[i] = 0;
        }
        deleter.stage = deleter.stage == DeleterStage::kListing ? DeleterStage::kReading
                                                                : DeleterStage::kReadingAgain;
        deleter.cursor = 0;
        break;
      case DeleterStage::kReading:
      case DeleterStage::kReadingAgain:
        deleter.looked[deleter.cursor] =
            look(world.steps[deleter.cursor], deleter.listed[deleter.cursor]);
        if (++deleter.cursor == kSteps) after_reading(world);
        break;
      case DeleterStage::kVerifying:
        verify(world);
        break;
      case DeleterStage::kRemoving:
        remove(world);
        break;
    }
    return world;
  }

  // The state of a step as list() of CheckpointStore judges it: parts as listed, the manifest as
  // read now.
  std::uint8_t look(const StepObjects& step, std::uint8_t listed) const {
    const auto code = [](StepState state, int attempt) {
      return static_cast<std::uint8_t>(static_cast<int>(state) | attempt << 4);
    };
    if (!(listed & 16) || step.manifest == kNone) return code(StepState::kUnpublished, 0);
    if (step.manifest == kDamaged) return code(StepState::kDamaged, 0);
    const int parts = listed >> (2 * (step.manifest - 1)) & 3;
    const bool there = parts == (1 << scenario_.parts[step.manifest - 1]) - 1 ||
                       scenario_.bug == Bug::kDeleteUnverified;
    return code(there ? StepState::kWhole : StepState::kDamaged, step.manifest);
  }

  static StepState state_of(std::uint8_t looked) { return static_cast<StepState>(looked & 15); }

  void after_reading(World& world) {
    DeleterProcess& deleter = world.deleter;
    if (deleter.stage == DeleterProcess::kReadingAgain) {
      const std::uint8_t target = deleter.looked[deleter.target - 1];
      if (state_of(target) != StepState::kWhole) {
        deleter = {};
        return;
      }
      plan(world);
      return;
    }
    for (int i = kSteps - 1; i >= 0; --i) {
      // The careless one believes any manifest.
      const bool take = scenario_.bug == Bug::kDeleteUnverified
                            ? (deleter.listed[i] & 16) != 0
                            : state_of(deleter.looked[i]) == StepState::kWhole;
      if (!take) continue;
      deleter.stage = DeleterProcess::kVerifying;
      deleter.target = static_cast<std::uint8_t>(i + 1);
      deleter.cursor = 0;
      if (scenario_.bug == Bug::kDeleteUnverified) {
        deleter.looked[i] = static_cast<std::uint8_t>(static_cast<int>(StepState::kWhole) | 1 << 4);
        plan(world);
        return;
      }
      // What does not matter any more is forgotten, so that fewer states differ.
      const std::uint8_t looked = deleter.looked[i];
      std::fill_n(deleter.listed, kSteps, std::uint8_t{0});
      std::fill_n(deleter.looked, kSteps, std::uint8_t{0});
      deleter.looked[i] = looked;
      return;
    }
    deleter = {};
  }

  void verify(World& world) {
    DeleterProcess& deleter = world.deleter;
    const StepObjects& step = world.steps[deleter.target - 1];
    const int attempt = deleter.looked[deleter.target - 1] >> 4;
    const bool there = step.parts[attempt - 1] >> deleter.cursor & 1;
    if (!there) {
      deleter = {};
      return;
    }
    if (++deleter.cursor < scenario_.parts[attempt - 1]) return;
    deleter.stage = DeleterProcess::kListingAgain;
    deleter.cursor = 0;
  }

  void plan(World& world) {
    DeleterProcess& deleter = world.deleter;
    deleter.stage = DeleterProcess::kRemoving;
    deleter.cursor = 0;
    for (const RemovalGroup& group : groups(deleter)) {
      const bool manifest = std::find(group.names.begin(), group.names.end(),
                                      manifest_name(group.step)) != group.names.end();
      if (!manifest) world.steps[group.step.value].doomed = 1;
    }
  }

  // The real plan for what the deleter has seen.
  std::vector<RemovalGroup> groups(const DeleterProcess& deleter) const {
    std::vector<StepInventory> steps;
    for (int i = 0; i < kSteps; ++i) {
      const int named = deleter.looked[i] >> 4;
      StepInventory step{Step{i},
                         state_of(deleter.looked[i]),
                         Attempt{named > 0 ? scenario_.attempt_of[named - 1] : 0},
                         {}};
      for (int attempt = 1; attempt <= kAttempts; ++attempt) {
        for (int part = 0; part < scenario_.parts[attempt - 1]; ++part) {
          if (deleter.listed[i] >> (2 * (attempt - 1) + part) & 1)
            step.objects.push_back({part_name(Step{i}, Attempt{scenario_.attempt_of[attempt - 1]},
                                              part, scenario_.parts[attempt - 1]),
                                    1, kUnpublishedAge});
        }
      }
      if (deleter.listed[i] & 16)
        step.objects.push_back({manifest_name(Step{i}), 1, kUnpublishedAge});
      steps.push_back(std::move(step));
    }
    auto planned = plan_removal(steps, Step{deleter.target - 1}, scenario_.keep);
    if (scenario_.bug == Bug::kDeletePartsFirst) {
      for (RemovalGroup& group : planned) std::reverse(group.names.begin(), group.names.end());
    }
    return planned;
  }

  void remove(World& world) {
    DeleterProcess& deleter = world.deleter;
    int index = 0;
    for (const RemovalGroup& group : plan_of(deleter)) {
      for (const std::string& name : group.names) {
        if (index++ != deleter.cursor) continue;
        StepObjects& step = world.steps[group.step.value];
        const auto parsed = parse_name(name);
        if (parsed->manifest) {
          step.manifest = kNone;
          step.doomed = 1;
        } else {
          std::uint8_t& parts = step.parts[set_of(*parsed) - 1];
          parts = static_cast<std::uint8_t>(parts & ~(1 << parsed->part));
        }
        ++deleter.cursor;
        return;
      }
    }
    deleter = {};
  }

  int set_of(const ParsedName& part) const {
    for (int set = 1; set <= kAttempts; ++set) {
      if (part.attempt.value == scenario_.attempt_of[set - 1] &&
          part.of == scenario_.parts[set - 1])
        return set;
    }
    return 1;
  }

  // The same for the same sight, so it is made once for each.
  const std::vector<RemovalGroup>& plan_of(const DeleterProcess& deleter) {
    std::string key(reinterpret_cast<const char*>(&deleter.target),
                    sizeof deleter - offsetof(DeleterProcess, target));
    const auto [found, fresh] = plans_.try_emplace(std::move(key));
    if (fresh) found->second = groups(deleter);
    return found->second;
  }

  const Scenario& scenario_;
  std::unordered_map<std::string, std::vector<RemovalGroup>> plans_;
  bool lie_ = false;
};

}  // namespace surefoot::testing
