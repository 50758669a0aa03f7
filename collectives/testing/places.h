// Made-up nodes, for tests and benchmarks.
#pragma once

#include <algorithm>
#include <vector>

#include "collectives/reducer.h"

namespace surefoot::testing {

// `ranks` on nodes of `ranks_per_node`; the last node may have fewer.
[[nodiscard]] inline std::vector<Place> places(int ranks, int ranks_per_node) {
  std::vector<Place> places;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = rank / ranks_per_node;
    const int local_size = std::min(ranks_per_node, ranks - node * ranks_per_node);
    places.push_back({node, rank % ranks_per_node, local_size});
  }
  return places;
}

}  // namespace surefoot::testing
