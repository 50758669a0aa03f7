#include "collectives/testing/reducer_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "collectives/reduction_tree.h"
#include "collectives/reference.h"

namespace surefoot::testing {
namespace {

using Limits = std::numeric_limits<float>;
constexpr std::array kSpecial = {
    0.0F,          -0.0F,          Limits::denorm_min(), -Limits::denorm_min(), Limits::min(),
    Limits::max(), -Limits::max(), Limits::infinity(),   -Limits::infinity(),   Limits::quiet_NaN(),
    1.0F,          -1.0F};

// Of magnitudes so different that nearly every addition rounds.
float ordinary(std::uint64_t draw) {
  const auto mantissa =
      static_cast<float>(static_cast<std::int64_t>(draw >> 40) - (std::int64_t{1} << 23));
  return std::ldexp(mantissa, static_cast<int>(draw & 15U) - 30);
}

void fill(std::span<float> values, std::mt19937_64& random, bool special_values) {
  for (float& value : values) {
    const std::uint64_t draw = random();
    // A special value in one of 64, or two of them would rarely meet an ordinary one.
    value = special_values && (draw >> 32 & 63U) == 0 ? kSpecial[(draw >> 16) % kSpecial.size()]
                                                      : ordinary(draw);
  }
}

std::vector<ElementRange> pieces_in_random_order(std::int64_t elements, std::mt19937_64& random) {
  std::vector<ElementRange> pieces;
  for (std::int64_t at = 0; at < elements;) {
    const auto length = static_cast<std::int64_t>(random() % 5000 + 1);
    pieces.push_back({at, std::min(at + length, elements)});
    at = pieces.back().end;
  }
  for (std::size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random() % i]);
  return pieces;
}

void check_sum(const Reducer& reducer, const Expected& expected, DeviceAccess& access) {
  const std::vector<float> sum = access.read(reducer.sum());
  int differences = 0;
  for (const ElementRange& range : reducer.share()) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!same(sum[at], expected.sum[at]) && ++differences == 1) {
        ADD_FAILURE() << "element " << i << ": " << sum[at] << " instead of " << expected.sum[at];
      }
    }
  }
  EXPECT_EQ(differences, 0);
}

}  // namespace

Expected::Expected(const StepNumbers& chosen) : numbers(chosen) {
  std::mt19937_64 random(numbers.seed);
  const std::int64_t buffer_begin =
      (numbers.gradient_elements + kBlockElements - 1) / kBlockElements * kBlockElements;
  for (int m = 0; m < numbers.micro_batches; ++m) {
    std::vector<float>& vector =
        vectors.emplace_back(static_cast<std::size_t>(buffer_begin + numbers.buffer_elements));
    fill(std::span(vector).first(static_cast<std::size_t>(numbers.gradient_elements)), random,
         numbers.special_values);
    fill(std::span(vector).subspan(static_cast<std::size_t>(buffer_begin)), random,
         numbers.special_values);
    losses.push_back(static_cast<double>(ordinary(random())) / 3);
  }
  const bool rounds = numbers.communicate_in == NumberFormat::kBf16;
  sum = reference_sum(vectors, rounds ? static_cast<std::size_t>(buffer_begin) : 0);
  loss_sum = reference_sum(losses);
  square_sum = reference_square_sum(sum, static_cast<std::size_t>(numbers.gradient_elements));
}

ReducerOptions options_for(const StepNumbers& numbers, std::vector<Place> places,
                           std::int64_t bucket_elements) {
  return {.gradient_elements = numbers.gradient_elements,
          .buffer_elements = numbers.buffer_elements,
          .micro_batches = numbers.micro_batches,
          .bucket_elements = bucket_elements,
          .places = std::move(places),
          .communicate_in = numbers.communicate_in};
}

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b)
                       : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b)
                       : std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

std::span<const double> losses_of(const Expected& expected, const TreeNode& own) {
  return std::span(expected.losses)
      .subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.end - own.begin));
}

void check_step(Reducer& reducer, int rank, int ranks, const Expected& expected,
                std::uint64_t seed) {
  HostAccess access;
  check_step(reducer, rank, ranks, expected, seed, access);
}

void check_step(Reducer& reducer, int rank, int ranks, const Expected& expected, std::uint64_t seed,
                DeviceAccess& access) {
  std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
  const TreeNode own = micro_batches_of(rank, ranks, expected.numbers.micro_batches);
  reducer.begin_step();
  for (int m = own.begin; m < own.end; ++m) {
    const std::span<float> buffer = reducer.begin_micro_batch();
    const std::vector<float>& vector = expected.vectors[static_cast<std::size_t>(m)];
    ASSERT_EQ(buffer.size(), vector.size());
    access.expect_zeros(buffer);
    const auto pieces = pieces_in_random_order(static_cast<std::int64_t>(vector.size()), random);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      // Nobody writes the padding between the gradient and the buffers.
      const ElementRange piece = pieces[i];
      const auto write = [&](std::int64_t begin, std::int64_t end) {
        if (begin >= end) return;
        const auto at = static_cast<std::size_t>(begin);
        const auto count = static_cast<std::size_t>(end - begin);
        access.write(buffer.subspan(at, count), std::span(vector).subspan(at, count));
      };
      write(piece.begin, std::min(piece.end, expected.numbers.gradient_elements));
      write(std::max(piece.begin, reducer.buffer_begin()), piece.end);
      // Some are left for end_micro_batch.
      if (i % 4 != 3) reducer.ready(piece);
    }
    reducer.end_micro_batch();
  }
  const ControlWord mine{.bits = std::uint64_t{1} << rank,
                         .must_match = {seed, rank == 2 ? seed + 1 : seed}};
  const auto step = reducer.finish(mine, losses_of(expected, own), now() + kLongEnough);
  ASSERT_TRUE(step.has_value()) << step.error().message;
  EXPECT_TRUE(same(step->loss_sum, expected.loss_sum))
      << step->loss_sum << " instead of " << expected.loss_sum;
  EXPECT_TRUE(same(step->square_sum, expected.square_sum))
      << step->square_sum << " instead of " << expected.square_sum;
  EXPECT_EQ(step->control, (std::uint64_t{1} << ranks) - 1);
  EXPECT_EQ(step->mismatched[0], std::vector<int>{});
  EXPECT_EQ(step->mismatched[1], ranks > 2 ? std::vector<int>{2} : std::vector<int>{});
  check_sum(reducer, expected, access);
}

void on_all_ranks(int ranks, const std::function<void(LocalGang&, Communicator&)>& body) {
  LocalGang gang(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { body(gang, gang.communicator(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace surefoot::testing
