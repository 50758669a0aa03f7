// A job over a test cluster of N hosts and one more for its supervisor, while hosts are taken away
// and brought back as a plan says.
//
// Owns the cluster and, unless told where, a fresh folder with the job's directories, removed at
// the end. One thread; calls block as long as the jobs take, an hour at the longest.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cluster/cluster.h"
#include "tests/replay/plan.h"

namespace surefoot::replay {

struct Outcome {
  nlohmann::json report;     // what `surefoot run --json` says at its end
  double to_first_step = 0;  // seconds from `surefoot run` to the first finished step
  std::size_t played = 0;    // actions done before the job was done
  double latest = 0;         // seconds by which the latest of them was late
};

class Runner {
 public:
  // `folder`: for the jobs' directories; must be new. Empty: a temporary one.
  [[nodiscard]] static Result<std::unique_ptr<Runner>> start(int hosts, const std::string& folder);
  ~Runner();
  Runner(const Runner&) = delete;

  // One worker, alone and undisturbed, on the supervisor's host. Returns its report.
  [[nodiscard]] Result<nlohmann::json> run_alone(int steps, const std::string& name);
  // Over all hosts; the plan's time begins with the first finished step. Prints what is done to the
  // hosts when it is done. After the plan all hosts are brought back, so that the job ends.
  [[nodiscard]] Result<Outcome> run_through(const Plan& plan, int steps);
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  Runner() = default;
  std::vector<std::string> command(const std::string& name, int steps) const;
  Status act(const Action& action);
  [[nodiscard]] bool has_a_step(const std::string& name) const;

  int hosts_ = 0;
  std::string folder_;
  bool temporary_ = false;
  std::unique_ptr<cluster::Cluster> cluster_;
  std::vector<bool> up_;
};

// Samples of a step of the job.
inline constexpr int kGlobalBatch = 48;

}  // namespace surefoot::replay
