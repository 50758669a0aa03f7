#include "collectives/reduction_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace surefoot {
namespace {

// A number that remembers how it was added up: sums of the same additions have the same text.
std::string sum_text(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  int power = 1;
  while (power * 2 < end - begin) power *= 2;
  return "(" + sum_text(begin, begin + power) + "+" + sum_text(begin + power, end) + ")";
}

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// What one rank's schedule leaves in its root slots.
std::vector<std::string> add_up_locally(int rank, int ranks, int micro_batches) {
  const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
  const LocalSchedule schedule = local_schedule(own.begin, own.end, micro_batches);
  std::vector<std::string> slots(at(schedule.slot_count));
  for (int i = 0; i < own.end - own.begin; ++i) {
    std::string& slot = slots[at(schedule.slots[at(i)])];
    EXPECT_EQ(slot, "") << "a slot in use was handed out";
    slot = std::to_string(own.begin + i);
    for (const Addition& addition : schedule.additions[at(i)]) {
      slots[at(addition.left)] =
          "(" + slots[at(addition.left)] + "+" + slots[at(addition.right)] + ")";
      slots[at(addition.right)].clear();
    }
  }
  std::vector<std::string> roots;
  for (int slot : schedule.root_slots) roots.push_back(slots[at(slot)]);
  return roots;
}

std::string add_up(int ranks, int micro_batches) {
  std::vector<std::string> roots;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::string& root : add_up_locally(rank, ranks, micro_batches))
      roots.push_back(std::move(root));
  }
  for (const Addition& addition : finishing_schedule(ranks, micro_batches)) {
    EXPECT_NE(roots[at(addition.left)], "");
    EXPECT_NE(roots[at(addition.right)], "");
    roots[at(addition.left)] =
        "(" + roots[at(addition.left)] + "+" + roots[at(addition.right)] + ")";
    roots[at(addition.right)].clear();
  }
  for (std::size_t i = 1; i < roots.size(); ++i) EXPECT_EQ(roots[i], "") << "a root was left out";
  return roots[0];
}

TEST(ReductionTree, MakesTheSameAdditionsForAllRanksUpTo64AndAllMicroBatchesUpTo64) {
  for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    const std::string expected = sum_text(0, micro_batches);
    for (int ranks = 1; ranks <= micro_batches; ++ranks) {
      ASSERT_EQ(add_up(ranks, micro_batches), expected)
          << "ranks " << ranks << ", micro-batches " << micro_batches;
    }
  }
}

TEST(ReductionTree, TheStackMakesTheSameAdditionsForAllRanksAndMicroBatchesUpTo64) {
  for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    const std::string expected = sum_text(0, micro_batches);
    for (int ranks = 1; ranks <= micro_batches; ++ranks) {
      const StackSchedule schedule = stack_schedule(ranks, micro_batches);
      std::vector<std::string> stack;
      std::size_t i = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (std::string& root : add_up_locally(rank, ranks, micro_batches)) {
          stack.push_back(std::move(root));
          ASSERT_LE(static_cast<int>(stack.size()) - 1, schedule.depth);
          for (int n = schedule.additions_after[i++]; n > 0; --n) {
            const std::string right = std::move(stack.back());
            stack.pop_back();
            stack.back() = "(" + stack.back() + "+" + right + ")";
          }
        }
      }
      ASSERT_EQ(stack, std::vector{expected}) << "ranks " << ranks << " of " << micro_batches;
      ASSERT_EQ(i, schedule.additions_after.size());
    }
  }
}

TEST(ReductionTree, TheStackStaysSmallWithHundredsOfRanks) {
  EXPECT_LE(stack_schedule(1, 1).depth, 0);
  EXPECT_LE(stack_schedule(1000, 4096).depth, 13);
  EXPECT_LE(stack_schedule(999, 4095).depth, 13);
}

TEST(ReductionTree, SplitsAtTheLargestPowerOfTwoBelowTheLength) {
  EXPECT_EQ(sum_text(0, 5), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(sum_text(0, 7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(ReductionTree, GivesEachMicroBatchToExactlyOneRankInOrder) {
  for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    for (int ranks = 1; ranks <= micro_batches; ++ranks) {
      int next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
        ASSERT_EQ(own.begin, next);
        ASSERT_GT(own.end, own.begin) << "a rank without work";
        ASSERT_LE(own.end - own.begin, (micro_batches + ranks - 1) / ranks);
        next = own.end;
      }
      ASSERT_EQ(next, micro_batches);
    }
  }
}

TEST(ReductionTree, NeedsOneRootPerRankWhenBothNumbersArePowersOfTwo) {
  for (int micro_batches = 1; micro_batches <= 64; micro_batches *= 2) {
    for (int ranks = 1; ranks <= micro_batches; ranks *= 2) {
      for (int rank = 0; rank < ranks; ++rank) {
        const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
        EXPECT_EQ(subtree_roots(own.begin, own.end, micro_batches), std::vector<TreeNode>{own});
      }
    }
  }
}

TEST(ReductionTree, FindsTheRootsOfThreeRanksOfEightMicroBatches) {
  EXPECT_EQ(subtree_roots(0, 2, 8), (std::vector<TreeNode>{{0, 2}}));
  EXPECT_EQ(subtree_roots(2, 5, 8), (std::vector<TreeNode>{{2, 4}, {4, 5}}));
  EXPECT_EQ(subtree_roots(5, 8, 8), (std::vector<TreeNode>{{5, 6}, {6, 8}}));
}

TEST(ReductionTree, HoldsFewGradientBuffersAtOnce) {
  EXPECT_EQ(local_schedule(0, 1, 64).slot_count, 1);
  EXPECT_EQ(local_schedule(0, 8, 8).slot_count, 4);  // log2(8) + 1
  EXPECT_EQ(local_schedule(0, 64, 64).slot_count, 7);
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const TreeNode own = micro_batches_of(rank, ranks, 64);
      // A range that starts in the middle of a subtree keeps up to as many roots on its left as
      // well.
      EXPECT_LE(local_schedule(own.begin, own.end, 64).slot_count, 10);
    }
  }
}

}  // namespace
}  // namespace surefoot
