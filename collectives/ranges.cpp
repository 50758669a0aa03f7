#include "collectives/ranges.h"

#include <algorithm>

#include "common/check.h"

namespace surefoot {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t overlap(ElementRange a, ElementRange b) {
  return std::max<std::int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

}  // namespace

Ranges::Ranges(const ReducerOptions& options)
    : ranks_(static_cast<int>(options.places.size())),
      places_(options.places),
      gradient_elements_(options.gradient_elements),
      buffer_begin_(round_up(options.gradient_elements, kBlockElements)),
      elements_(buffer_begin_ + options.buffer_elements),
      padded_elements_(round_up(elements_, kBlockElements)),
      bucket_elements_(
          round_up(std::max<std::int64_t>(options.bucket_elements, 1), ranks_ * kBlockElements)),
      bucket_count_(
          static_cast<int>((padded_elements_ + bucket_elements_ - 1) / bucket_elements_)) {
  SUREFOOT_CHECK(ranks_ >= 1);
  SUREFOOT_CHECK(options.gradient_elements >= 0 && options.buffer_elements >= 0);
  for (const Place& place : places_) {
    SUREFOOT_CHECK(0 <= place.local_rank && place.local_rank < place.local_size &&
                   place.local_size <= ranks_);
  }
}

ElementRange Ranges::bucket(int index) const {
  const std::int64_t begin = index * bucket_elements_;
  return {begin, std::min(begin + bucket_elements_, padded_elements_)};
}

int Ranges::bucket_of(std::int64_t element) const {
  return static_cast<int>(element / bucket_elements_);
}

ElementRange Ranges::range(int bucket_index, int owner) const {
  const ElementRange whole = bucket(bucket_index);
  const std::int64_t blocks = (whole.end - whole.begin) / kBlockElements;
  const auto border = [&](std::int64_t o) {
    return whole.begin + o * blocks / ranks_ * kBlockElements;
  };
  return {border(owner), border(owner + 1)};
}

bool Ranges::needs(int rank, int owner) const {
  const Place& place = places_[static_cast<std::size_t>(rank)];
  return owner % place.local_size == place.local_rank;
}

std::vector<ElementRange> Ranges::share(int rank) const {
  std::vector<ElementRange> share;
  for (int b = 0; b < bucket_count_; ++b) {
    for (int owner = 0; owner < ranks_; ++owner) {
      ElementRange part = range(b, owner);
      part.end = std::min(part.end, elements_);
      if (!needs(rank, owner) || part.begin >= part.end) continue;
      if (!share.empty() && share.back().end == part.begin) {
        share.back().end = part.end;
      } else {
        share.push_back(part);
      }
    }
  }
  return share;
}

std::int64_t Ranges::real_elements(ElementRange range) const {
  return overlap(range, {0, gradient_elements_}) + overlap(range, {buffer_begin_, elements_});
}

std::int64_t Ranges::gradient_blocks(int owner) const {
  std::int64_t blocks = 0;
  for (int b = 0; b < bucket_count_; ++b) {
    blocks += overlap(range(b, owner), {0, buffer_begin_}) / kBlockElements;
  }
  return blocks;
}

}  // namespace surefoot
