// Every file of the committed corpora, once through its target, under the ordinary compiler.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "checkpoint/service_message.h"
#include "common/file.h"
#include "common/test_paths.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {
namespace {

class Corpus : public ::testing::TestWithParam<Target> {};

TEST_P(Corpus, IsReadWithoutHarm) {
  const auto folder = source_folder() / "tests/fuzz/corpus" / std::string(GetParam().name);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto bytes = read_file(entry.path());
    ASSERT_TRUE(bytes) << entry.path();
    GetParam().run(*bytes);
    ++files;
  }
  EXPECT_GE(files, 3) << folder;
  GetParam().run("");
}

// Refusals are counted and logged once by the service; nothing below it may print one line a
// message.
TEST(Request, ThatCannotBeReadIsRefusedWithoutALine) {
  ::testing::internal::CaptureStderr();
  const auto parsed = parse_request("\x08\x01\x12\x02\xff\xfe", "0123456789abcdef");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed));
  EXPECT_EQ(std::get<Refusal>(parsed).kind, "unreadable");
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, ::testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace surefoot::fuzz
