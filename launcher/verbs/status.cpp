#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/arena.h"
#include "checkpoint/service_client.h"
#include "launcher/control.h"
#include "launcher/report.h"
#include "launcher/verbs/verbs.h"

namespace surefoot {
namespace {

// A running service answers in a millisecond; `status` must not take long where there is none.
constexpr Duration kPatience = std::chrono::milliseconds(25);

std::optional<service::StatusReply> ask_service(const FoundJob& found) {
  const auto folder = arena_folder(found.job.checkpoint().arena(), found.id);
  std::error_code none;
  if (!std::filesystem::exists(folder, none)) return std::nullopt;
  service::Request request;
  request.mutable_status()->set_records_from(~std::uint64_t{0});
  auto reply = ServiceClient(folder, found.id).call(std::move(request), now() + kPatience);
  if (!reply) return std::nullopt;
  return reply->status();
}

// Of a job whose supervisor is gone the journal knows which machines it ran on.
std::optional<FleetReport> fleet_of_journal(const JournalView& journal) {
  if (journal.history.gang.empty()) return std::nullopt;
  return fleet_report(journal);
}

}  // namespace

std::optional<FleetReport> ask_fleet(const FoundJob& found) {
  auto answer =
      ask_supervisor(found.directory.root, {{"ask", "status"}}, now() + kSupervisorPatience);
  if (answer) return fleet_of(*answer);
  if (answer.error().code != Code::kNotFound)
    std::fprintf(stderr, "surefoot: %s; this is what its journal knows\n",
                 answer.error().message.c_str());
  return std::nullopt;
}

int status_verb(const StatusArguments& arguments) {
  auto found = find_job(arguments.job);
  if (!found) return complain(found.error());
  auto view = read_journal(found->directory.root, 0);
  if (!view) return complain(view.error());
  JobReport report =
      make_report(*view, read_metrics(found->directory.metrics()), found->directory.root.string(),
                  Step{found->job.train().max_steps()});
  report.service = ask_service(*found);
  report.fleet = ask_fleet(*found);
  // The journal learns of steps every few seconds, service and supervisor of each.
  if (report.service) report.step = std::max(report.step, Step{report.service->ready_step()});
  if (report.fleet) report.step = std::max(report.step, Step{report.fleet->step});
  if (!report.fleet) report.fleet = fleet_of_journal(*view);
  if (arguments.json) {
    std::printf("%s\n", to_json(report).dump().c_str());
  } else {
    std::fputs(status_screen(report, ::isatty(STDOUT_FILENO) == 1).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace surefoot
