#include "worker/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace surefoot {
namespace {

// As the environment of one worker.
Result<WorkerOptions> options_with(const std::map<std::string, std::string>& environment) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_SIZE", "SUREFOOT_WORKERS", "MASTER_ADDR"})
    ::unsetenv(variable);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  const char* argv[] = {"surefoot-worker", "job.yaml"};
  return parse_options(2, argv);
}

TEST(WorkerOptions, AWorldThatIsNotTheOneThatWasAskedForIsRefused) {
  const auto alone = options_with({{"SUREFOOT_WORKERS", "4"}});
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().message.find("has 1 ranks, not the 4"), std::string::npos)
      << alone.error().message;
  EXPECT_TRUE(options_with({{"SUREFOOT_WORKERS", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}));
  EXPECT_TRUE(options_with({{"OMPI_COMM_WORLD_SIZE", "4"}})) << "plain mpirun asks for nothing";
}

TEST(WorkerOptions, AMissingAddressOfTheMasterNeverMeansThisMachineWhereThereAreOthers) {
  auto options = options_with({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(options);
  export_standard_variables(*options);
  EXPECT_EQ(std::getenv("MASTER_ADDR"), nullptr);
  options = options_with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  export_standard_variables(*options);
  EXPECT_STREQ(std::getenv("MASTER_ADDR"), "127.0.0.1");
  options = options_with({{"MASTER_ADDR", "10.0.0.5"}});
  export_standard_variables(*options);
  EXPECT_STREQ(std::getenv("MASTER_ADDR"), "10.0.0.5");
}

}  // namespace
}  // namespace surefoot
