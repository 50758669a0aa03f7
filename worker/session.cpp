#include "worker/session.h"

#include <algorithm>
#include <map>
#include <thread>

#include "checkpoint/restore.h"
#include "collectives/collectives.h"
#include "common/log.h"
#include "worker/fill.h"

namespace surefoot {
namespace {

// A gang that was killed a moment ago holds its lock until the kernel has torn it down.
constexpr Duration kLockPatience = std::chrono::seconds(5);

Candidate from_message(const service::Candidate& message, int node) {
  Candidate candidate;
  candidate.source = message.source() == service::Candidate::ARENA ? Candidate::Source::kArena
                                                                   : Candidate::Source::kStore;
  candidate.step = Step{message.step()};
  candidate.attempt = Attempt{message.attempt()};
  candidate.digest = Digest::from_hex(message.digest()).value_or(Digest{});
  candidate.node = candidate.source == Candidate::Source::kArena ? node : 0;
  return candidate;
}

service::Candidate to_message(const Candidate& candidate) {
  service::Candidate message;
  message.set_source(candidate.source == Candidate::Source::kArena ? service::Candidate::ARENA
                                                                   : service::Candidate::STORE);
  message.set_step(candidate.step.value);
  message.set_attempt(candidate.attempt.value);
  message.set_digest(candidate.digest.hex());
  message.set_node(candidate.node);
  return message;
}

std::string describe(const Candidate& candidate) {
  return fmt::format("step {} of attempt {} in {}", candidate.step, candidate.attempt,
                     candidate.source == Candidate::Source::kArena
                         ? fmt::format("the memory of node {}", candidate.node)
                         : std::string("the store"));
}

// What the service of this node can bring.
class ServiceCopies final : public NodeCopies {
 public:
  ServiceCopies(ServiceClient& client, Attempt attempt, Time deadline)
      : client_(client), attempt_(attempt), deadline_(deadline) {}

  Result<Held> verified(const Candidate& candidate) override {
    Candidate own = candidate;
    own.source = Candidate::Source::kArena;
    service::Restore restore;
    *restore.mutable_candidate() = to_message(own);
    return ask(restore);
  }
  Result<Held> read_part(const Candidate& candidate, int part, int of) override {
    service::Restore restore;
    *restore.mutable_candidate() = to_message(candidate);
    restore.set_part(part);
    restore.set_of(of);
    return ask(restore);
  }

 private:
  Result<Held> ask(const service::Restore& restore) {
    service::Request request;
    *request.mutable_restore() = restore;
    request.mutable_restore()->set_attempt(attempt_.value);
    SUREFOOT_ASSIGN(const service::Reply reply, client_.call(std::move(request), deadline_));
    return Held{reply.restore().slot(), reply.restore().samples()};
  }
  ServiceClient& client_;
  Attempt attempt_;
  Time deadline_;
};

// One rank's part in coming together.
class Joiner {
 public:
  Joiner(Communicator& communicator, const JoinRequest& request, Session& session, Time deadline)
      : communicator_(communicator),
        request_(request),
        session_(session),
        deadline_(deadline),
        client_(session.arena_path, request.job_id) {}

  Status find_places() {
    const std::string own = request_.host.empty() ? host_name() : request_.host;
    SUREFOOT_ASSIGN(const auto hosts, all_gather(communicator_, own, deadline_, "hello"));
    session_.places = places_of(hosts);
    session_.place = session_.places[communicator_.rank()];
    return {};
  }

  // Where no supervisor gives the number, each service knows one that is new to it, and the highest
  // is new to all.
  Status say_hello() {
    // A gang that rolls back has its number already.
    if (session_.attempt.value == 0) session_.attempt = request_.attempt;
    SUREFOOT_TRY(
        agree(communicator_, leads() ? hello_once() : Status(), deadline_, "hello of each node"));
    SUREFOOT_ASSIGN(const auto numbers,
                    all_gather(communicator_, std::to_string(session_.attempt.value), deadline_,
                               "the attempt's number"));
    Attempt highest;
    for (const std::string& number : numbers)
      highest = std::max(highest, Attempt{std::stoll(number)});
    const bool again = leads() && session_.attempt < highest;
    session_.attempt = highest;
    return agree(communicator_, again ? hello_once(/*again=*/true) : Status(), deadline_,
                 "hello with the attempt's number");
  }

  Status gather_candidates() {
    std::string mine = leads() ? hello_.SerializeAsString() : std::string();
    SUREFOOT_ASSIGN(const auto all,
                    all_gather(communicator_, mine, deadline_, "copies of the state"));
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      service::HelloReply reply;
      if (all[rank].empty() || !reply.ParseFromString(all[rank])) continue;
      inventory_.known_step = std::max(inventory_.known_step, Step{reply.known_step()});
      for (const auto& candidate : reply.candidates()) {
        inventory_.candidates.push_back(from_message(candidate, session_.places[rank].node));
      }
    }
    inventory_.restart_when_lost =
        request_.job->checkpoint().on_lost_state() == config::Checkpoint::restart;
    return {};
  }

  void offer_only_before(Step step) {
    std::erase_if(inventory_.candidates, [&](const Candidate& candidate) {
      return candidate.step >= step || candidate.source == Candidate::Source::kArena;
    });
  }
  [[nodiscard]] bool offers_any() const { return !inventory_.candidates.empty(); }

  // The plan is a pure function of what all ranks have gathered, so each makes it for itself.
  Status restore() {
    ServiceCopies copies(client_, session_.attempt, deadline_);
    Filler filler(communicator_, session_.places, *session_.arena, copies, deadline_);
    for (;;) {
      SUREFOOT_ASSIGN(const RestorePlan plan, plan_restore(inventory_));
      if (communicator_.rank() == 0) {
        spdlog::info("restore: {}{}", plan.source ? describe(*plan.source) + ": " : std::string(),
                     plan.reason);
      }
      session_.slot = -1;
      session_.step = Step{0};
      session_.samples = 0;
      if (!plan.source) return {};
      const auto filled = filler.fill(*plan.source);
      if (filled) {
        session_.slot = filled->slot;
        session_.step = plan.source->step;
        session_.samples = filled->samples;
        return {};
      }
      if (filled.error().code != Code::kCorrupt) return filled.error();
      if (communicator_.rank() == 0)
        spdlog::warn("refused {}: {}", describe(*plan.source), filled.error().message);
      inventory_.failed.push_back(*plan.source);
      SUREFOOT_TRY(tell_services(*plan.source));
    }
  }

  // Each rank registers before it writes to any slot, so that a later attempt can wait for its end.
  Status open_arena() {
    SUREFOOT_ASSIGN(session_.arena, Arena::open(session_.arena_path));
    const Status mine = register_writer(*session_.arena, session_.attempt,
                                        session_.place.local_rank, communicator_.rank());
    return agree(communicator_, mine, deadline_, "opening the arena");
  }

  // Where the file was removed, the hello has made another one, that nobody here has mapped.
  Status still_one_arena() {
    const Status mine =
        session_.arena->unlinked()
            ? Status(error(Code::kRestart, "the memory in {} was removed by somebody and made anew",
                           session_.arena_path.string()))
            : Status();
    return agree(communicator_, mine, deadline_, "a look at the arena");
  }

 private:
  [[nodiscard]] bool leads() const { return session_.place.local_rank == 0; }

  Status hello_once(bool again = false) {
    if (!session_.gang_lock) SUREFOOT_TRY(take_gang_lock());
    service::Request request;
    service::Hello& hello = *request.mutable_hello();
    hello.set_attempt(session_.attempt.value);
    hello.set_layout(request_.layout.to_json());
    hello.set_training_hash(request_.identity.hash.hex());
    for (const std::string& line : request_.identity.lines) hello.add_training_lines(line);
    hello.set_numerics_id(request_.numerics_id);
    hello.set_local_size(session_.place.local_size);
    hello.set_node_index(session_.place.node);
    hello.set_node_count(session_.places.empty() ? 1 : node_count());
    hello.set_accept_changes(request_.accept_changes);
    hello.set_max_steps(request_.job->train().max_steps());
    hello.set_supervised(request_.supervised);
    hello.set_again(again);
    hello.set_known_step(request_.known_step.value);
    hello.set_encryption(request_.job->checkpoint().encryption().SerializeAsString());
    SUREFOOT_ASSIGN(const service::Reply reply, client_.call(std::move(request), deadline_));
    hello_ = reply.hello();
    session_.attempt = Attempt{hello_.attempt()};
    return {};
  }

  [[nodiscard]] int node_count() const {
    int count = 0;
    for (const Place& place : session_.places) count = std::max(count, place.node + 1);
    return count;
  }

  Status take_gang_lock() {
    const Time patience = std::min(deadline_, now() + kLockPatience);
    for (;;) {
      auto lock = FolderLock::take(session_.arena_path, "gang.lock");
      if (lock) {
        session_.gang_lock = std::move(*lock);
        return {};
      }
      if (lock.error().code != Code::kStale || now() > patience) return lock.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  // One node's service has found the checkpoint bad; the others must not count on it either.
  Status tell_services(const Candidate& refused) {
    Status mine;
    if (leads() && refused.source == Candidate::Source::kStore) {
      service::Request request;
      *request.mutable_restore()->mutable_candidate() = to_message(refused);
      request.mutable_restore()->set_refused(true);
      if (auto told = client_.call(std::move(request), deadline_); !told) mine = told.error();
    }
    return agree(communicator_, mine, deadline_, "a bad checkpoint");
  }

  Communicator& communicator_;
  const JoinRequest& request_;
  Session& session_;
  Time deadline_;
  ServiceClient client_;
  service::HelloReply hello_;
  RestoreInventory inventory_;
};

}  // namespace

std::vector<Place> places_of(const std::vector<std::string>& hosts) {
  std::map<std::string, int> node_of;
  std::map<std::string, int> ranks_on;
  std::vector<Place> places;
  for (const std::string& host : hosts) {
    const int node = node_of.try_emplace(host, static_cast<int>(node_of.size())).first->second;
    places.push_back({node, ranks_on[host]++, 0});
  }
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    places[rank].local_size = ranks_on[hosts[rank]];
  return places;
}

Result<Session> join(Communicator& communicator, const JoinRequest& request, Time deadline) {
  Session session;
  session.arena_path = arena_folder(request.job->checkpoint().arena(), request.job_id);
  Joiner joiner(communicator, request, session, deadline);
  SUREFOOT_TRY(joiner.find_places());
  SUREFOOT_TRY(joiner.say_hello());
  SUREFOOT_TRY(joiner.gather_candidates());
  SUREFOOT_TRY(joiner.open_arena());
  SUREFOOT_TRY(joiner.restore());
  return session;
}

Status roll_back(Communicator& communicator, const JoinRequest& request, Session& session,
                 Step before, Time deadline) {
  // A service brings nothing to a gang that is at work.
  set_phase(session.arena->line(session.place.local_rank), Phase::kRestoring, before);
  Joiner joiner(communicator, request, session, deadline);
  SUREFOOT_TRY(joiner.say_hello());
  SUREFOOT_TRY(joiner.still_one_arena());
  SUREFOOT_TRY(joiner.gather_candidates());
  joiner.offer_only_before(before);
  if (!joiner.offers_any())
    return error(Code::kNotFound, "no checkpoint before step {} is left to roll back to", before);
  SUREFOOT_TRY(joiner.restore());
  if (session.place.local_rank != 0) return {};
  for (int slot = 0; slot < kSlots; ++slot) {
    const SlotInfo info = session.arena->slot(slot);
    const bool later = info.state == SlotState::kReady && info.step > session.step;
    if (later && !info.pinned) session.arena->discard(slot);
  }
  return {};
}

}  // namespace surefoot
