#include "worker/link_speed.h"

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/device_stream.h"
#include "worker/device.h"

namespace surefoot {
namespace {

constexpr std::string_view kWhat = "the measured all-reduce";
constexpr int kWarmUps = 2;
constexpr int kBatches = 5;
// A wait sees the end up to 0.1 ms late (nccl_stream.cpp naps): a batch takes 20 ms, if that is no
// more than 50 of them. Arbitrary beyond that.
constexpr double kBatchSeconds = 0.02;
constexpr int kMostInBatch = 50;

// Whole numbers whose sums of any 4096 ranks and fewer are exact in fp32 (below 2^24); the period
// is prime, so that pieces which change places show.
constexpr std::int64_t kPeriod = 1009;
float number(std::int64_t i) {
  return static_cast<float>(i % kPeriod);
}

class Measurement {
 public:
  Measurement(Communicator& communicator, Device& device, DeviceStream& stream, std::int64_t bytes,
              Time deadline)
      : communicator_(communicator),
        device_(device),
        stream_(stream),
        elements_(bytes / static_cast<std::int64_t>(sizeof(float))),
        deadline_(deadline) {}

  Status prepare() {
    const auto memory = device_.allocate(elements_ * std::int64_t{sizeof(float)}, kWhat);
    SUREFOOT_TRY(
        agree(communicator_, memory ? Status() : Status(memory.error()), deadline_, kWhat));
    values_ = *memory;
    stream_.order(Queue::kComputation, Queue::kExchange);
    return {};
  }

  // Of the slowest rank, equal on all. The comparison of times lets the next one begin together.
  Result<double> time_of(int all_reduces) {
    const Time begin = now();
    for (int i = 0; i < all_reduces; ++i) stream_.enqueue(Queue::kExchange, all_reduce());
    SUREFOOT_TRY(stream_.wait(deadline_, kWhat));
    const std::string mine = fmt::format("{}", seconds(now() - begin));
    SUREFOOT_ASSIGN(const auto all, all_gather(communicator_, mine, deadline_, kWhat));
    double slowest = 0;
    for (const std::string& time : all) slowest = std::max(slowest, std::stod(time));
    return slowest;
  }

  // Of one all-reduce.
  Result<double> median_time() {
    double once = 0;
    for (int i = 0; i <= kWarmUps; ++i) {
      SUREFOOT_ASSIGN(once, time_of(1));
    }
    const int batch = static_cast<int>(std::clamp(kBatchSeconds / once, 1.0, double{kMostInBatch}));
    std::vector<double> times;
    for (int i = 0; i < kBatches; ++i) {
      SUREFOOT_ASSIGN(const double time, time_of(batch));
      times.push_back(time / batch);
    }
    std::sort(times.begin(), times.end());
    return times[kBatches / 2];
  }

  // An error of one rank is one of all.
  Status compare() { return agree(communicator_, compare_mine(), deadline_, kWhat); }

 private:
  [[nodiscard]] AllReduce all_reduce() const {
    return {values_.data(), elements_, NumberFormat::kFp32};
  }

  Status compare_mine() {
    const int rank = communicator_.rank();
    const int ranks = communicator_.size();
    std::vector<float> host(static_cast<std::size_t>(elements_));
    for (std::int64_t i = 0; i < elements_; ++i)
      host[static_cast<std::size_t>(i)] = number(i + rank);
    SUREFOOT_TRY(device_.upload(std::as_bytes(std::span(host)), values_.data(), deadline_));
    stream_.enqueue(Queue::kExchange, all_reduce());
    SUREFOOT_TRY(stream_.wait(deadline_, kWhat));
    const ByteRange whole{0, static_cast<std::int64_t>(values_.size())};
    SUREFOOT_TRY(device_.mark());
    SUREFOOT_TRY(device_.download(values_.data(), std::as_writable_bytes(std::span(host)),
                                  std::span(&whole, 1), deadline_));
    for (std::int64_t i = 0; i < elements_; ++i) {
      float sum = 0;
      for (int other = 0; other < ranks; ++other) sum += number(i + other);
      const float found = host[static_cast<std::size_t>(i)];
      if (found == sum) continue;
      return error(Code::kCorrupt, "the all-reduce's sum of element {} is {}, and must be {}", i,
                   found, sum);
    }
    return {};
  }

  Communicator& communicator_;
  Device& device_;
  DeviceStream& stream_;
  const std::int64_t elements_;
  const Time deadline_;
  std::span<std::byte> values_;  // zeros until compare()
};

}  // namespace

Result<LinkSpeed> measure_links(Communicator& communicator, Device& device, DeviceStream& stream,
                                std::int64_t bytes, Time deadline) {
  const int ranks = communicator.size();
  if (ranks < 2)
    return error(Code::kInvalid,
                 "one rank has nobody to talk to: start one for each GPU, mpirun "
                 "-np 2 or more");
  Measurement measurement(communicator, device, stream, bytes, deadline);
  SUREFOOT_TRY(measurement.prepare());
  SUREFOOT_ASSIGN(const double time, measurement.median_time());
  SUREFOOT_TRY(measurement.compare());
  return LinkSpeed{ranks, bytes, time};
}

}  // namespace surefoot
