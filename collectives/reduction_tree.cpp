#include "collectives/reduction_tree.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "common/check.h"

namespace surefoot {
namespace {

int split(const TreeNode& node) {
  const auto below = static_cast<unsigned>(node.end - node.begin - 1);
  return node.begin + static_cast<int>(std::bit_floor(below));
}

// Visits the inner nodes of [0, M) in post-order: both children before their parent, left before
// right.
void visit_inner(const TreeNode& node, const std::function<void(const TreeNode&, int)>& visit) {
  if (node.end - node.begin < 2) return;
  const int middle = split(node);
  visit_inner({node.begin, middle}, visit);
  visit_inner({middle, node.end}, visit);
  visit(node, middle);
}

void collect_roots(const TreeNode& node, int begin, int end, std::vector<TreeNode>& roots) {
  if (node.end <= begin || end <= node.begin) return;
  if (begin <= node.begin && node.end <= end) {
    roots.push_back(node);
    return;
  }
  const int middle = split(node);
  collect_roots({node.begin, middle}, begin, end, roots);
  collect_roots({middle, node.end}, begin, end, roots);
}

}  // namespace

TreeNode micro_batches_of(int rank, int ranks, int micro_batches) {
  SUREFOOT_CHECK(0 <= rank && rank < ranks && ranks <= micro_batches);
  const auto border = [&](std::int64_t r) { return static_cast<int>(r * micro_batches / ranks); };
  return {border(rank), border(rank + 1)};
}

std::vector<TreeNode> subtree_roots(int begin, int end, int micro_batches) {
  SUREFOOT_CHECK(0 <= begin && begin <= end && end <= micro_batches);
  std::vector<TreeNode> roots;
  collect_roots({0, micro_batches}, begin, end, roots);
  return roots;
}

LocalSchedule local_schedule(int begin, int end, int micro_batches) {
  LocalSchedule schedule;
  // The subtrees that are complete and wait for their right neighbour, from left to right, each in
  // the slot of its position: a sum always goes to the left one, so the slots in use are always
  // 0..n-1.
  std::vector<TreeNode> waiting;
  for (int m = begin; m < end; ++m) {
    schedule.slots.push_back(static_cast<int>(waiting.size()));
    waiting.push_back({m, m + 1});
    schedule.slot_count = std::max(schedule.slot_count, static_cast<int>(waiting.size()));
    auto& additions = schedule.additions.emplace_back();
    const auto is_pair = [&](const TreeNode& left, const TreeNode& right) {
      // Two neighbours are added exactly when the tree has a node that splits between them.
      const auto whole = subtree_roots(left.begin, right.end, micro_batches);
      return whole.size() == 1 && split(whole.front()) == left.end;
    };
    while (waiting.size() >= 2 && is_pair(waiting[waiting.size() - 2], waiting.back())) {
      const auto right = static_cast<int>(waiting.size()) - 1;
      additions.push_back({right - 1, right});
      waiting[waiting.size() - 2].end = waiting.back().end;
      waiting.pop_back();
    }
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    schedule.root_slots.push_back(static_cast<int>(i));
  }
  return schedule;
}

std::vector<Addition> finishing_schedule(int ranks, int micro_batches) {
  // Where the sum that begins at micro-batch m lies; the sum of a node lies where that of its left
  // child did.
  std::vector<int> slot_of_begin(static_cast<std::size_t>(micro_batches), -1);
  std::vector<int> root_end(static_cast<std::size_t>(micro_batches), 0);
  int count = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
    for (const TreeNode& root : subtree_roots(own.begin, own.end, micro_batches)) {
      slot_of_begin[static_cast<std::size_t>(root.begin)] = count++;
      root_end[static_cast<std::size_t>(root.begin)] = root.end;
    }
  }
  std::vector<Addition> additions;
  visit_inner({0, micro_batches}, [&](const TreeNode& node, int middle) {
    const int left = slot_of_begin[static_cast<std::size_t>(node.begin)];
    const int right = slot_of_begin[static_cast<std::size_t>(middle)];
    // Nodes within a root were added by the rank that sent it.
    const bool within_root =
        left >= 0 && node.end <= root_end[static_cast<std::size_t>(node.begin)];
    if (left < 0 || right < 0 || within_root) return;
    additions.push_back({left, right});
  });
  return additions;
}

StackSchedule stack_schedule(int ranks, int micro_batches) {
  StackSchedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    const TreeNode own = micro_batches_of(rank, ranks, micro_batches);
    schedule.additions_after.resize(schedule.additions_after.size() +
                                    subtree_roots(own.begin, own.end, micro_batches).size());
  }
  // By slot: the last root that its sum is made of.
  std::vector<std::size_t> last(schedule.additions_after.size());
  for (std::size_t i = 0; i < last.size(); ++i) last[i] = i;
  for (const Addition& addition : finishing_schedule(ranks, micro_batches)) {
    const std::size_t end = last[static_cast<std::size_t>(addition.right)];
    last[static_cast<std::size_t>(addition.left)] = end;
    ++schedule.additions_after[end];
  }
  int below = -1;
  for (std::int32_t additions : schedule.additions_after) {
    schedule.depth = std::max(schedule.depth, ++below);
    below -= additions;
  }
  SUREFOOT_CHECK(below == 0);
  return schedule;
}

}  // namespace surefoot
