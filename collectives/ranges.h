// Where the borders of buckets and ranges lie, and which rank needs what: pure arithmetic on
// ReducerOptions.
//
// The vector is padded to whole blocks of kBlockElements; buckets and ranges are whole blocks.
// Range o of a bucket with n blocks is blocks [o n / P, (o+1) n / P) of it and belongs to rank o.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/reducer.h"

namespace surefoot {

class Ranges {
 public:
  explicit Ranges(const ReducerOptions& options);

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int bucket_count() const { return bucket_count_; }
  // With the padding at its end.
  [[nodiscard]] std::int64_t padded_elements() const { return padded_elements_; }
  // Without it: gradient, its padding, buffers.
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::int64_t buffer_begin() const { return buffer_begin_; }

  [[nodiscard]] ElementRange bucket(int index) const;
  [[nodiscard]] int bucket_of(std::int64_t element) const;
  // May be empty, when a bucket has fewer blocks than there are ranks.
  [[nodiscard]] ElementRange range(int bucket, int owner) const;

  // The ranks of a node share the state: each range is needed by one rank on every node.
  [[nodiscard]] bool needs(int rank, int owner) const;
  // What `rank` needs of the whole vector, ascending, neighbours joined, without the padding at the
  // end.
  [[nodiscard]] std::vector<ElementRange> share(int rank) const;

  // Elements of `elements` that somebody computes: those that are neither the gradient's padding
  // nor the padding at the end.
  [[nodiscard]] std::int64_t real_elements(ElementRange elements) const;
  // Blocks of the gradient in the ranges that `owner` owns.
  [[nodiscard]] std::int64_t gradient_blocks(int owner) const;

 private:
  int ranks_;
  std::vector<Place> places_;
  std::int64_t gradient_elements_;
  std::int64_t buffer_begin_;
  std::int64_t elements_;
  std::int64_t padded_elements_;
  std::int64_t bucket_elements_;
  int bucket_count_;
};

}  // namespace surefoot
