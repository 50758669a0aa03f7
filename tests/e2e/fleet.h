// A job over the hosts of a test cluster, run by a supervisor on a host of its own, for tests that
// take machines away from it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/cluster/cluster.h"
#include "tests/e2e/sandbox.h"

namespace surefoot::e2e {

class Fleet : public testing::Test {
 protected:
  static constexpr int kNodes = 4;
  static constexpr int kFront = kNodes;  // the host of the supervisor, if no test says otherwise

  void SetUp() override { make({}); }
  // `shared`: what the hosts have in common; nothing given: the job's whole folder.
  void make(const std::vector<std::string>& shared);
  void TearDown() override;

  // Of `surefoot run`, with host0..host3 and these arguments.
  void start_job(const std::vector<std::string>& arguments = {});
  void resume_job();
  // Waits for its end; what it said is in result_ then. A job that is not done ends the test.
  void expect_done_with_same_bits(Duration patience = std::chrono::minutes(3));
  const RunResult& finish(Duration patience = std::chrono::minutes(3));
  // Until the job has finished this step.
  void reach_step(std::int64_t step, Duration patience = std::chrono::seconds(90));
  // Until `surefoot` has printed this.
  void await_line(const std::string& line, Duration patience = std::chrono::seconds(60));
  // Until all four machines take part once more than at the start.
  void await_growth();
  void expect_said(const std::string& line);
  RunResult verb(const std::vector<std::string>& arguments);

  // Each training step once, in order: none lost, none done twice.
  void expect_no_step_lost();
  // Nothing of the job on a host: processes, shared memory, Open MPI's files.
  void expect_nothing_left(const std::set<int>& hosts);
  [[nodiscard]] std::string left_on(int host);
  cluster::Host host(int number) { return cluster_->host(number); }
  [[nodiscard]] std::string output() const { return job_ ? job_->output() : std::string(); }
  // Of one worker, alone, on this machine.
  static const RunResult& reference(std::int64_t steps, const std::string& model = {});

  std::unique_ptr<Sandbox> sandbox_;
  std::unique_ptr<cluster::Cluster> cluster_;
  std::optional<cluster::Running> job_;
  RunResult result_;
  int front_ = kFront;  // where `surefoot` is typed; set before the job starts
  std::int64_t steps_ = 60;
  std::string model_;  // in place of the job's; set before it starts
  // Each frame between the workers' hosts waits so long, at either end: a job takes its time also
  // where processors are quick. Set before make().
  Duration pace_ = std::chrono::milliseconds(1);
};

}  // namespace surefoot::e2e
