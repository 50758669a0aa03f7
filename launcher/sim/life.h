// The lives of one simulated supervisor on a queue of virtual time: it is told events, its
// decisions go to a journal and then into effects, and it may be killed at any point of that. What
// stands around it - machines, driver, judge - derives from this.
//
// The journal's fault model: one call is written whole or not at all; the supervisor may die before
// it, after it, and between any two effects.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "launcher/sim/plants.h"
#include "launcher/sim/schedule.h"

namespace surefoot::sim {

// As a worker leaves that knows of a finished step and finds no good copy (worker/main.cpp).
inline constexpr int kExitNoGoodCopy = 65;

// What a run was about, summed over all schedules: a simulation that sees none of something proves
// nothing about it.
struct Sights {
  std::int64_t decisions = 0, launches = 0, steps = 0, steps_redone = 0, drained = 0, preempted = 0,
               failed = 0, hung = 0, forgiven = 0, refused = 0, abandoned = 0, ended = 0, done = 0,
               cancelled = 0, do_not_requeue = 0, interrupted = 0, resumes = 0,
               supervisor_deaths = 0, reboots = 0, service_restarts = 0, given_up = 0, stale = 0,
               recoveries = 0, orphans_ended = 0;
  // Of many machines only.
  std::int64_t regrouped = 0, notices = 0, losses = 0, returns = 0, saved = 0, too_few = 0,
               most_workers = 0;
  void add(const Sights& other);
};

class Life {
 public:
  virtual ~Life() = default;
  // Runs to the end of the job. Empty: all promises held; else the first that did not.
  [[nodiscard]] std::string run();
  [[nodiscard]] const Sights& sights() const { return sights_; }

 protected:
  struct Item {
    Time at;
    std::uint64_t order;
    int kind;             // what it means is the world's
    std::int64_t number;  // so is this
    int life;             // of the supervisor it is for; -1: of the world
    bool operator>(const Item& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  // `most_items`: far more than the longest job that heals; a job that goes on there never ends.
  Life(std::uint64_t seed, Plant plant, bool narrate, std::int64_t most_items)
      : rng_(seed), plant_(plant), narrate_(narrate), most_items_(most_items) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  virtual void handle(const Item& item) = 0;
  virtual void perform(const supervisor::Effect& effect) = 0;
  virtual void set_timer(Duration after, std::int64_t number) = 0;
  virtual void restart_later(Duration after) = 0;
  // The judge of an end of an attempt that is recorded.
  virtual void check_end(const supervisor::AttemptEnd& end) = 0;

  void schedule(Duration after, int kind, std::int64_t number = 0, bool for_supervisor = false) {
    queue_.push(Item{now_ + after, ++order_, kind, number, for_supervisor ? life_ : -1});
  }
  void violated(std::string text) {
    if (violation_.empty()) violation_ = std::move(text);
  }
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (narrate_)
      fmt::print("{:9.3f} {}\n", seconds(now_ - start_),
                 fmt::format(format, std::forward<Args>(args)...));
  }

  // What the supervisor's clock shows: ahead of the world's where it has jumped.
  [[nodiscard]] Time clock() const { return now_ + ahead_; }
  void open();  // a supervisor starts
  void feed(supervisor::Event event);
  void die();
  void watch_the_clock();
  void time_is_up(std::int64_t timer);
  // The judge of every world (budgets.cpp): before a decision is done, an attempt is launched, the
  // supervisor stops. `called_for`: somebody or something asked for an interruption.
  void check_decision(const supervisor::Decision& decision, Attempt attempt, Step finished);
  void check_any_launch(Attempt attempt);
  void check_any_stop(const supervisor::Stop& stop, bool called_for);
  void note_failures(const supervisor::Decision& decision);
  [[nodiscard]] bool may_be_given_up() const;
  void check_budgets();
  void count_end(const supervisor::AttemptEnd& end);
  void check_books();

  // Old news: every kind of word about every earlier attempt, with old times. Nothing may change.
  void tell_stale();

  Rng rng_;
  Plant plant_;
  bool narrate_;
  std::int64_t most_items_;
  supervisor::Rules rules_;
  std::string violation_;
  Sights sights_;
  Time start_{std::chrono::hours(1)};
  Time now_ = start_;
  Duration ahead_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue_;

  supervisor::History journal_;
  supervisor::State state_;
  bool alive_ = false;
  int life_ = 0;
  bool over_ = false;
  Time timer_at_ = Time::max();
  std::int64_t timer_ = 0;     // the newest one; others are void
  std::int64_t finished_ = 0;  // newest step that was ever READY
  Time opened_{};              // by the supervisor's clock
  Duration elapsed_before_{};

  bool user_stops_ = false;  // this supervisor was told an interrupt, a cancel, or its own notice
  bool cancel_asked_ = false;
  int interrupts_ = 0;
  bool final_ = false;   // it has recorded that workers left with 64..66
  bool stored_ = false;  // FinishJob has succeeded
  std::int64_t highest_attempt_ = 0;

  // Everything that may count against a budget, since the last explicit start; then of each kind.
  std::int64_t setbacks_ = 0;
  std::int64_t failures_in_row_ = 0, failures_total_ = 0, preemptions_ = 0;
  std::int64_t finished_at_failure_ = 0;
  std::int64_t failures_seen_ = 0;  // by the core, of any kind
  std::int64_t known_step_ = 0, known_row_ = 0, known_failures_ = 0;
  bool known_same_ = false;
  bool rightly_given_up_ = false;  // by this supervisor
  std::string known_failure_;
  bool same_twice_ = false;
  std::int64_t last_failure_step_ = -1;
  std::string last_failure_;

  // -2: not planned; -1: before recording; n: after recording and n effects
  int dies_after_effects_ = -2;
};

}  // namespace surefoot::sim
