#include "worker/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace surefoot {
namespace {

std::vector<float> random_square(std::mt19937_64& random, std::size_t size, float range) {
  std::vector<float> values(size * size);
  for (float& value : values)
    value = range * (static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f);
  return values;
}

// The definition, in double.
std::vector<double> slow_softmax(std::size_t size, double scale, const std::vector<float>& scores) {
  std::vector<double> result(size * size, 0.0);
  for (std::size_t t = 0; t < size; ++t) {
    double top = -1e300;
    double sum = 0;
    for (std::size_t i = 0; i <= t; ++i) top = std::max(top, scale * scores[t * size + i]);
    for (std::size_t i = 0; i <= t; ++i) sum += std::exp(scale * scores[t * size + i] - top);
    for (std::size_t i = 0; i <= t; ++i)
      result[t * size + i] = std::exp(scale * scores[t * size + i] - top) / sum;
  }
  return result;
}

TEST(CausalSoftmax, FollowsItsDefinitionAndNeverLooksAhead) {
  std::mt19937_64 random(1);
  for (const std::size_t size : {1u, 2u, 7u, 8u, 9u, 16u, 33u, 128u}) {
    for (const float range : {0.1f, 3.0f, 300.0f}) {
      const std::vector<float> scores = random_square(random, size, range);
      const std::vector<double> expected = slow_softmax(size, 0.25, scores);
      std::vector<float> found = scores;
      causal_softmax(size, 0.25f, found.data());
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 2e-6 * expected[i] * std::max(1.0f, range / 8) + 1e-30)
            << size << " " << range << " " << i;
        if (i % size > i / size) {
          ASSERT_EQ(found[i], 0.0f);
        }
      }
    }
  }
}

TEST(CausalSoftmax, ANumberThatIsNoneShowsInItsRowOnly) {
  std::vector<float> scores(9, 1.0f);
  scores[4] = std::nanf("");  // row 1
  causal_softmax(3, 1.0f, scores.data());
  EXPECT_EQ(scores[0], 1.0f);
  EXPECT_TRUE(std::isnan(scores[3]) || std::isnan(scores[4]));
  EXPECT_NEAR(scores[8], 1.0f / 3, 1e-6);
}

TEST(CausalSoftmax, BackwardFollowsItsDefinition) {
  std::mt19937_64 random(2);
  for (const std::size_t size : {1u, 5u, 8u, 13u, 64u}) {
    std::vector<float> p = random_square(random, size, 3.0f);
    causal_softmax(size, 0.5f, p.data());
    const std::vector<float> gradient = random_square(random, size, 1.0f);
    std::vector<float> found = gradient;
    causal_softmax_backward(size, 0.5f, p.data(), found.data());
    for (std::size_t t = 0; t < size; ++t) {
      double mean = 0;
      for (std::size_t i = 0; i <= t; ++i)
        mean += static_cast<double>(gradient[t * size + i]) * p[t * size + i];
      for (std::size_t i = 0; i < size; ++i) {
        const double expected =
            i <= t ? 0.5 * p[t * size + i] * (gradient[t * size + i] - mean) : 0.0;
        ASSERT_NEAR(found[t * size + i], expected, 1e-6) << size << " " << t << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace surefoot
