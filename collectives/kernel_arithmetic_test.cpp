#include "collectives/kernel_arithmetic.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "collectives/arithmetic.h"
#include "collectives/reference.h"
#include "collectives/testing/reducer_check.h"

namespace surefoot {
namespace {

// Every bf16 with what lies just above it, at both sides of the tie, and just below the next.
TEST(Bf16, IsTheNearestOneForEveryUpperHalf) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (std::uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      const float got = kernel::from_bf16(kernel::to_bf16(value));
      ASSERT_TRUE(testing::same(got, reference_bf16(value))) << value << " became " << got;
      ASSERT_EQ(kernel::to_bf16(got), kernel::to_bf16(value)) << "rounding twice";
    }
  }
}

TEST(Bf16, TheReferenceRoundsTiesToEvenAndTooLargeToInfinity) {
  EXPECT_EQ(reference_bf16(1.0F + 1.0F / 256), 1.0F);
  EXPECT_EQ(reference_bf16(1.0F + 3.0F / 256), 1.0F + 4.0F / 256);
  EXPECT_EQ(reference_bf16(-1.0F - 1.0F / 256), -1.0F);
  EXPECT_EQ(reference_bf16(std::numeric_limits<float>::max()),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(reference_bf16(std::numeric_limits<float>::denorm_min()), 0.0F);
  EXPECT_TRUE(std::signbit(reference_bf16(-0.0F)));
  EXPECT_TRUE(std::isnan(reference_bf16(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SquareSumOnADevice, HasTheBitsOfTheHosts) {
  for (bool special : {false, true}) {
    const testing::Expected made({.gradient_elements = kBlockElements, .special_values = special});
    std::array<double, kLanes> lanes;
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[static_cast<std::size_t>(lane)] = kernel::lane_square_sum(made.sum.data(), lane);
    EXPECT_TRUE(testing::same(kernel::sum_of_lanes(lanes.data()),
                              block_square_sum(made.sum.data(), made.sum.size())));
  }
}

}  // namespace
}  // namespace surefoot
