// What every Device must do, as one suite for all adapters. An adapter's test program includes
// this, defines a type with
//   static std::unique_ptr<Device> open();   // without ranks; null is a failure
// and says INSTANTIATE_TYPED_TEST_SUITE_P(Name, DeviceContract, Type).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "collectives/kernel_arithmetic.h"
#include "worker/device.h"
#include "worker/optimizer.h"

namespace surefoot {

template <class Adapter>
class DeviceContract : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = Adapter::open();
    ASSERT_NE(device_, nullptr);
  }
  static Time soon() { return now() + std::chrono::seconds(30); }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    const auto memory =
        device_->allocate(static_cast<std::int64_t>(values.size() * sizeof(T)), "a test");
    SUREFOOT_CHECK(memory.has_value());
    SUREFOOT_CHECK(
        device_->upload(std::as_bytes(std::span(values)), memory->data(), soon()).has_value());
    return reinterpret_cast<T*>(memory->data());
  }
  template <class T>
  std::vector<T> from_device(const T* memory, std::size_t count) {
    std::vector<T> values(count);
    SUREFOOT_CHECK(device_->mark().has_value());
    const ByteRange all{0, static_cast<std::int64_t>(count * sizeof(T))};
    const Status copied =
        device_->download(reinterpret_cast<const std::byte*>(memory),
                          std::as_writable_bytes(std::span(values)), std::span(&all, 1), soon());
    SUREFOOT_CHECK(copied.has_value());
    return values;
  }
  // Ordinary values, and those where careless arithmetic differs: denormals, zeros of both signs,
  // very large and very small ones.
  static std::vector<float> values(std::size_t count, std::uint64_t seed, bool positive = false) {
    std::mt19937_64 random(seed);
    std::vector<float> result(count);
    for (float& value : result) {
      const int exponent = static_cast<int>(random() % 60) - 45;
      value = std::ldexp(static_cast<float>(random() % 16777216) / 16777216.0F, exponent);
      if (random() % 16 == 0) value = std::numeric_limits<float>::denorm_min() * (random() % 1000);
      if (random() % 32 == 0) value = 0;
      if (!positive && random() % 2 == 0) value = -value;
    }
    return result;
  }
  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::unique_ptr<Device> device_;
};
TYPED_TEST_SUITE_P(DeviceContract);

TYPED_TEST_P(DeviceContract, MemoryIsZeroAndAligned) {
  for (const std::int64_t bytes : {1, 255, 4096, 1 << 20}) {
    const auto memory = this->device_->allocate(bytes, "a test");
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory->size(), static_cast<std::size_t>(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 256, 0U);
    EXPECT_EQ(this->from_device(memory->data(), memory->size()),
              std::vector<std::byte>(memory->size()));
  }
}

TYPED_TEST_P(DeviceContract, CopiesTheRangesThatAreAskedForAndNothingElse) {
  std::vector<std::byte> sent(300000);
  std::mt19937_64 random(3);
  for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
  const std::byte* const there = this->on_device(sent);
  std::vector<std::byte> received(sent.size());
  const std::vector<ByteRange> ranges = {{0, 1}, {4096, 100001}, {299990, 300000}};
  ASSERT_TRUE(this->device_->mark());
  ASSERT_TRUE(this->device_->download(there, received, ranges, TestFixture::soon()));
  for (std::int64_t i = 0; i < 300000; ++i) {
    const bool asked =
        std::ranges::any_of(ranges, [i](const ByteRange& r) { return r.begin <= i && i < r.end; });
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(received[at], asked ? sent[at] : std::byte{}) << i;
  }
}

TYPED_TEST_P(DeviceContract, AnUploadHasReadItsSourceWhenItReturns) {
  std::vector<float> source(1 << 20, 1.0F);
  float* const there = this->on_device(source);
  std::fill(source.begin(), source.end(), 2.0F);
  EXPECT_EQ(this->from_device(there, source.size()), std::vector<float>(source.size(), 1.0F));
}

TYPED_TEST_P(DeviceContract, MoreMemoryThanThereIsIsRefusedWithTheNumbers) {
  const auto memory = this->device_->allocate(std::int64_t{1} << 50, "the elephant");
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kNoSpace);
  EXPECT_NE(memory.error().message.find("the elephant"), std::string::npos);
  EXPECT_NE(memory.error().message.find("1073741824 MiB"), std::string::npos)
      << memory.error().message;
  EXPECT_TRUE(this->device_->allocate(100, "a test")) << "and nothing is broken by it";
}

TYPED_TEST_P(DeviceContract, TheUpdateHasTheBitsOfTheProcessor) {
  constexpr std::size_t kCount = 100000;
  const std::vector<ElementRange> decayed = {{0, 16}, {48, 4096}, {4097, 4098}, {50000, 99999}};
  for (const auto kind : {config::Optimizer::adamw, config::Optimizer::sgd}) {
    config::Optimizer options;
    options.set_kind(kind);
    options.set_weight_decay(0.1);
    options.set_momentum(0.9);
    options.set_eps(1e-8);
    options.add_betas(0.9);
    options.add_betas(0.95);
    const Optimizer optimizer(options, decayed);
    std::vector<float> p = TestFixture::values(kCount, 1);
    std::vector<float> m = TestFixture::values(kCount, 2);
    std::vector<float> v = TestFixture::values(kCount, 3, true);
    const std::vector<float> sum = TestFixture::values(kCount, 4);
    StepScalars scalars;
    scalars.step = Step{7};
    scalars.learning_rate = 3e-3;
    scalars.gradient_scale = 1.0 / 12;

    DeviceUpdate update;
    update.scalars = optimizer.scalars(scalars);
    update.elements = kCount;
    update.parameters = this->on_device(p);
    update.moments = {this->on_device(m), this->on_device(v)};
    update.gradient_sum = this->on_device(sum);
    update.decayed = this->on_device(decayed);
    update.decayed_count = static_cast<std::int64_t>(decayed.size());
    const std::vector<float> buffers = TestFixture::values(1000, 5);
    const std::vector<float> changes = TestFixture::values(1000, 6);
    update.buffers = this->on_device(buffers);
    update.buffer_changes = this->on_device(changes);
    update.buffer_elements = 1000;
    update.micro_batches = 12;
    this->device_->enqueue(update);
    ASSERT_TRUE(this->device_->wait(TestFixture::soon(), "the update"));

    OptimizerState from{p.data(), {m.data(), v.data()}};
    MutableOptimizerState to{p.data(), {m.data(), v.data()}};
    optimizer.update({0, kCount}, from, to, sum.data(), scalars);
    EXPECT_TRUE(TestFixture::same_bits(this->from_device(update.parameters, kCount), p));
    EXPECT_TRUE(TestFixture::same_bits(this->from_device(update.moments[0], kCount), m));
    EXPECT_TRUE(TestFixture::same_bits(this->from_device(update.moments[1], kCount), v));
    std::vector<float> after(1000);
    apply_buffer_change(buffers, changes, 12, after);
    EXPECT_TRUE(TestFixture::same_bits(this->from_device(update.buffers, 1000), after));
  }
}

// Against float64, with logits of every kind of row: few classes and many, whole groups of sixteen
// bytes and not, one far above the others, all alike.
TYPED_TEST_P(DeviceContract, TheLossAndItsGradientAreThoseOfFloat64) {
  constexpr std::int64_t kRows = 5;
  std::mt19937_64 random(11);
  for (const std::int64_t classes : {1, 10, 256, 257, 4096, 50304, 50257}) {
    for (const NumberFormat format : {NumberFormat::kFp32, NumberFormat::kBf16}) {
      SCOPED_TRACE(fmt::format("{} classes, {} bytes", classes, bytes_of(format)));
      std::vector<float> logits(static_cast<std::size_t>(kRows * classes));
      for (float& x : logits) x = static_cast<float>(random() % 20000) / 1000 - 10;
      logits[static_cast<std::size_t>(classes)] = 300;  // of the second row
      std::fill(logits.end() - classes, logits.end(), -1.5F);
      const std::vector<std::int64_t> targets = {0, classes - 1, classes / 2,
                                                 static_cast<std::int64_t>(random() % classes), 0};
      Logits there{nullptr, format, kRows, classes, this->on_device(targets)};
      std::vector<kernel::Bf16> halves(logits.size());
      std::ranges::transform(logits, halves.begin(), kernel::to_bf16);
      if (format == NumberFormat::kBf16) {
        std::ranges::transform(halves, logits.begin(), kernel::from_bf16);
        there.values = this->on_device(halves);
      } else {
        there.values = this->on_device(logits);
      }
      float* const losses = this->on_device(std::vector<float>(kRows));
      float* const log_sums = this->on_device(std::vector<float>(kRows));
      constexpr float kOfMean = 3;
      // Room behind it that must stay as it is.
      float* const gradient = this->on_device(std::vector<float>(logits.size() + 8, 7));
      this->device_->enqueue(CrossEntropy{there, losses, log_sums});
      this->device_->enqueue(CrossEntropyGradient{
          there, log_sums, this->on_device(std::vector<float>{kOfMean}), gradient});
      ASSERT_TRUE(this->device_->wait(TestFixture::soon(), "the loss"));
      const std::vector<float> got_losses = this->from_device(losses, kRows);
      std::vector<float> got = this->from_device(gradient, logits.size() + 8);
      EXPECT_EQ(got.back(), 7);
      if (format == NumberFormat::kBf16) {
        std::vector<kernel::Bf16> bits(logits.size());
        std::memcpy(bits.data(), got.data(), bits.size() * sizeof(kernel::Bf16));
        std::ranges::transform(bits, got.begin(), kernel::from_bf16);
      }
      const double rounding = format == NumberFormat::kBf16 ? 0x1p-8 : 1e-5;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const float* const x = logits.data() + row * classes;
        const std::int64_t target = targets[static_cast<std::size_t>(row)];
        const double top = *std::max_element(x, x + classes);
        double sum = 0;
        for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(x[c] - top);
        const double expected = top + std::log(sum) - x[target];
        ASSERT_NEAR(got_losses[static_cast<std::size_t>(row)], expected, 1e-5 * (1 + expected));
        for (std::int64_t c = 0; c < classes; ++c) {
          const double exact =
              (std::exp(x[c] - top) / sum - (c == target ? 1 : 0)) * kOfMean / kRows;
          ASSERT_NEAR(got[static_cast<std::size_t>(row * classes + c)], exact,
                      rounding * std::abs(exact) + 1e-7)
              << "row " << row << ", class " << c;
        }
      }
    }
  }
}

TYPED_TEST_P(DeviceContract, ATargetThatIsNoClassGivesNoNumber) {
  Logits logits{this->on_device(std::vector<float>(30)), NumberFormat::kFp32, 3, 10,
                this->on_device(std::vector<std::int64_t>{-1, 10, 9})};
  float* const losses = this->on_device(std::vector<float>(3));
  this->device_->enqueue(CrossEntropy{logits, losses, this->on_device(std::vector<float>(3))});
  ASSERT_TRUE(this->device_->wait(TestFixture::soon(), "the loss"));
  const std::vector<float> got = this->from_device(losses, 3);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_NEAR(got[2], std::log(10.0), 1e-6);
}

TYPED_TEST_P(DeviceContract, ASnapshotIsOfTheMomentThatWasMarked) {
  const std::vector<float> before(4096, 1.0F);
  float* const there = this->on_device(before);
  ASSERT_TRUE(this->device_->mark());
  std::vector<float> copy(4096);
  const ByteRange all{0, 4096 * sizeof(float)};
  Status copied;
  std::thread other([&] {
    copied = this->device_->download(reinterpret_cast<const std::byte*>(there),
                                     std::as_writable_bytes(std::span(copy)), std::span(&all, 1),
                                     TestFixture::soon());
  });
  // Something else goes on meanwhile.
  (void)this->on_device(TestFixture::values(4096, 9));
  other.join();
  ASSERT_TRUE(copied);
  EXPECT_EQ(copy, before);
}

REGISTER_TYPED_TEST_SUITE_P(DeviceContract, MemoryIsZeroAndAligned,
                            CopiesTheRangesThatAreAskedForAndNothingElse,
                            AnUploadHasReadItsSourceWhenItReturns,
                            MoreMemoryThanThereIsIsRefusedWithTheNumbers,
                            TheUpdateHasTheBitsOfTheProcessor,
                            TheLossAndItsGradientAreThoseOfFloat64,
                            ATargetThatIsNoClassGivesNoNumber, ASnapshotIsOfTheMomentThatWasMarked);

}  // namespace surefoot
