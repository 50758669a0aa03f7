#include "worker/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "worker/float_mode.h"

namespace surefoot {
namespace {

config::Optimizer adamw() {
  config::Optimizer options;
  options.set_kind(config::Optimizer::adamw);
  options.add_betas(0.9);
  options.add_betas(0.95);
  options.set_eps(1e-8);
  options.set_weight_decay(0.1);
  return options;
}

config::Optimizer sgd() {
  config::Optimizer options;
  options.set_kind(config::Optimizer::sgd);
  options.set_momentum(0.9);
  options.set_weight_decay(0.01);
  return options;
}

template <class T>
struct Arrays {
  std::vector<T> p, m, v;
};

using State = Arrays<float>;

double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-52 - 1;
}

State random_state(std::mt19937_64& random, std::size_t count) {
  State state;
  for (std::size_t i = 0; i < count; ++i) {
    state.p.push_back(static_cast<float>(uniform(random)));
    state.m.push_back(static_cast<float>(0.1 * uniform(random)));
    state.v.push_back(static_cast<float>(0.01 * std::abs(uniform(random))));
  }
  return state;
}

std::vector<float> random_gradient(std::mt19937_64& random, std::size_t count) {
  std::vector<float> gradient;
  for (std::size_t i = 0; i < count; ++i) gradient.push_back(static_cast<float>(uniform(random)));
  return gradient;
}

OptimizerState view(const State& s) {
  return {s.p.data(), {s.m.data(), s.v.data()}};
}
MutableOptimizerState view(State& s) {
  return {s.p.data(), {s.m.data(), s.v.data()}};
}

State empty(std::size_t count) {
  return {std::vector<float>(count), std::vector<float>(count), std::vector<float>(count)};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The formulas of the header, one element at a time, in the type T.
template <class T>
void reference(const config::Optimizer& o, bool decay, std::int64_t k, double lr, double scale,
               T sum, T& p, T& m, T& v) {
  const T g = static_cast<T>(scale) * sum;
  const double wd = decay ? o.weight_decay() : 0;
  if (o.kind() == config::Optimizer::sgd) {
    m = static_cast<T>(o.momentum()) * m + (g + static_cast<T>(wd) * p);
    p = p - static_cast<T>(lr) * m;
    return;
  }
  const double b1 = o.betas(0);
  const double b2 = o.betas(1);
  m = m + static_cast<T>(1 - b1) * (g - m);
  v = static_cast<T>(b2) * v + static_cast<T>(1 - b2) * g * g;
  const T root = std::sqrt(v) / static_cast<T>(std::sqrt(1 - std::pow(b2, static_cast<double>(k))));
  const T size = static_cast<T>(lr / (1 - std::pow(b1, static_cast<double>(k))));
  p = static_cast<T>(1 - lr * wd) * p - size * m / (root + static_cast<T>(o.eps()));
}

class OptimizerTest : public testing::TestWithParam<config::Optimizer> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerTest, testing::Values(adamw(), sgd()),
                         [](const auto& info) {
                           return config::Optimizer::Kind_Name(info.param.kind());
                         });

TEST_P(OptimizerTest, FollowsItsFormulasInDoubleOverManySteps) {
  constexpr std::size_t kCount = 1000;
  std::mt19937_64 random(1);
  State state = random_state(random, kCount);
  Arrays<double> exact{{state.p.begin(), state.p.end()},
                       {state.m.begin(), state.m.end()},
                       {state.v.begin(), state.v.end()}};
  const Optimizer optimizer(GetParam(), {{100, 700}});
  for (std::int64_t k = 1; k <= 50; ++k) {
    const std::vector<float> sum = random_gradient(random, kCount);
    const double lr = 0.01 / static_cast<double>(k);
    State next = empty(kCount);
    optimizer.update({0, kCount}, view(std::as_const(state)), view(next), sum.data(),
                     {Step{k}, lr, 0.125});
    state = std::move(next);
    for (std::size_t i = 0; i < kCount; ++i) {
      reference<double>(GetParam(), i >= 100 && i < 700, k, lr, 0.125, sum[i], exact.p[i],
                        exact.m[i], exact.v[i]);
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(state.p[i], exact.p[i], 2e-6) << i;
    ASSERT_NEAR(state.m[i], exact.m[i], 2e-6) << i;
    if (GetParam().kind() == config::Optimizer::adamw) {
      ASSERT_NEAR(state.v[i], exact.v[i], 1e-6) << i;
    }
  }
}

TEST_P(OptimizerTest, AgreesWithTheSlowReferenceInFloatToTheLastBits) {
  constexpr std::size_t kCount = 4099;
  std::mt19937_64 random(2);
  const State from = random_state(random, kCount);
  const std::vector<float> sum = random_gradient(random, kCount);
  State to = empty(kCount);
  Optimizer(GetParam(), {{0, kCount}})
      .update({0, kCount}, view(from), view(to), sum.data(), {Step{7}, 0.01, 0.25});
  State expected = from;
  for (std::size_t i = 0; i < kCount; ++i) {
    reference<float>(GetParam(), true, 7, 0.01, 0.25, sum[i], expected.p[i], expected.m[i],
                     expected.v[i]);
    ASSERT_FLOAT_EQ(to.p[i], expected.p[i]) << i;
  }
}

TEST_P(OptimizerTest, AnySplitOfTheRangeGivesTheSameBits) {
  constexpr std::int64_t kCount = 1037;
  std::mt19937_64 random(3);
  const State from = random_state(random, kCount);
  const std::vector<float> sum = random_gradient(random, kCount);
  const Optimizer optimizer(GetParam(), {{16, 500}, {512, 513}, {600, 1037}});
  const StepScalars scalars{Step{3}, 0.02, 1.0 / 3};
  State whole = empty(kCount);
  optimizer.update({0, kCount}, view(from), view(whole), sum.data(), scalars);
  for (int round = 0; round < 200; ++round) {
    State parts = empty(kCount);
    for (std::int64_t begin = 0; begin < kCount;) {
      const std::int64_t limit = round == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % 97);
      const std::int64_t end = std::min(kCount, begin + limit);
      optimizer.update({begin, end}, view(from), view(parts), sum.data(), scalars);
      begin = end;
    }
    ASSERT_TRUE(same_bits(parts.p, whole.p) && same_bits(parts.m, whole.m) &&
                same_bits(parts.v, whole.v))
        << round;
  }
}

TEST_P(OptimizerTest, TheSameBitsInPlaceAndAtAnyAlignment) {
  constexpr std::int64_t kCount = 333;
  std::mt19937_64 random(4);
  const State from = random_state(random, kCount);
  const std::vector<float> sum = random_gradient(random, kCount);
  const Optimizer optimizer(GetParam(), {{0, kCount}});
  const StepScalars scalars{Step{1}, 0.02, 1};
  State expected = empty(kCount);
  optimizer.update({0, kCount}, view(from), view(expected), sum.data(), scalars);
  State in_place = from;
  optimizer.update({0, kCount}, view(std::as_const(in_place)), view(in_place), sum.data(), scalars);
  EXPECT_TRUE(same_bits(in_place.p, expected.p));
  for (std::size_t shift = 1; shift < 8; ++shift) {
    State moved = empty(kCount + shift);
    std::vector<float> moved_sum(kCount + shift);
    std::copy(from.p.begin(), from.p.end(), moved.p.begin() + static_cast<std::ptrdiff_t>(shift));
    std::copy(from.m.begin(), from.m.end(), moved.m.begin() + static_cast<std::ptrdiff_t>(shift));
    std::copy(from.v.begin(), from.v.end(), moved.v.begin() + static_cast<std::ptrdiff_t>(shift));
    std::copy(sum.begin(), sum.end(), moved_sum.begin() + static_cast<std::ptrdiff_t>(shift));
    const OptimizerState at{moved.p.data() + shift,
                            {moved.m.data() + shift, moved.v.data() + shift}};
    State out = empty(kCount);
    optimizer.update({0, kCount}, at, view(out), moved_sum.data() + shift, scalars);
    EXPECT_TRUE(same_bits(out.p, expected.p)) << shift;
  }
}

TEST_P(OptimizerTest, DecayTouchesOnlyTheDecayedRanges) {
  constexpr std::size_t kCount = 64;
  State from = empty(kCount);
  from.p.assign(kCount, 1.0f);
  const std::vector<float> zero(kCount);
  State to = empty(kCount);
  Optimizer(GetParam(), {{10, 20}, {30, 31}})
      .update({0, kCount}, view(std::as_const(from)), view(to), zero.data(), {Step{1}, 0.5, 1});
  for (std::size_t i = 0; i < kCount; ++i) {
    const bool decayed = (i >= 10 && i < 20) || i == 30;
    EXPECT_EQ(to.p[i] < 1.0f, decayed) << i;
  }
}

TEST_P(OptimizerTest, GapsBetweenTensorsStayZero) {
  State zero = empty(8);
  const std::vector<float> sum(8);
  config::Optimizer options = GetParam();
  options.set_eps(1e-60);  // zero as a float
  State to = empty(8);
  to.p.assign(8, 9.0f);
  Optimizer(options, {{0, 8}})
      .update({0, 8}, view(std::as_const(zero)), view(to), sum.data(), {Step{1}, 0.1, 1});
  EXPECT_TRUE(same_bits(to.p, zero.p) && same_bits(to.m, zero.m));
}

TEST(GradientScale, DividesByTheMicroBatchesAndClipsTheNorm) {
  EXPECT_EQ(gradient_norm(64, 4), 2.0);
  EXPECT_EQ(gradient_scale(2.0, 0, 4), 0.25);
  EXPECT_EQ(gradient_scale(2.0, 3, 4), 0.25);
  EXPECT_EQ(gradient_scale(2.0, 1, 4), 0.125);
}

TEST(BufferChange, AnUnchangedBufferKeepsItsBitsWhateverTheyAre) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> before = {0.1f,           -0.0f,  infinity, -infinity,
                                     std::nanf("1"), 1e-42f, 3e38f};
  for (const std::int64_t m : {1, 3, 7, 10}) {
    std::vector<float> after(before.size());
    apply_buffer_change(before, std::vector<float>(before.size()), m, after);
    EXPECT_TRUE(same_bits(before, after)) << m;
  }
}

TEST(BufferChange, MovesByTheMeanChange) {
  const std::vector<float> before = {1, 2};
  std::vector<float> after(2);
  apply_buffer_change(before, std::vector<float>{3, 0}, 4, after);
  EXPECT_EQ(after, (std::vector<float>{1.75f, 2}));
}

TEST(FloatMode, IsCheckedAndSet) {
  EXPECT_TRUE(check_float_mode());
  for (const unsigned bits : {1u << 6, 1u << 15, 3u << 13}) {
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | bits);
    const Status wrong = check_float_mode();
    set_float_mode();
    ASSERT_FALSE(wrong) << bits;
    EXPECT_EQ(wrong.error().code, Code::kInvalid);
    EXPECT_TRUE(check_float_mode());
  }
}

}  // namespace
}  // namespace surefoot
