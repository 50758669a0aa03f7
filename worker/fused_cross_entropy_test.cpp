// The operator against libtorch's own chain in float64, on the double of a device.
#include "worker/fused_cross_entropy.h"

#include <gtest/gtest.h>

#include "worker/testing/host_device.h"

namespace surefoot {
namespace {

struct Loss {
  at::Tensor value;
  at::Tensor gradient;  // of the logits, times three: the loss is part of something larger
};

template <class Function>
Loss loss_of(const at::Tensor& logits, const Function& function) {
  const at::Tensor leaf = logits.detach().clone().set_requires_grad(true);
  const at::Tensor value = function(leaf);
  (value * 3).backward();
  return {value.detach(), leaf.grad()};
}

class FusedCrossEntropy : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Formats, FusedCrossEntropy, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(FusedCrossEntropy, IsThatOfLibtorchInFloat64) {
  surefoot::testing::HostDevice device;
  at::manual_seed(5);
  const bool is_half = GetParam() == at::kBFloat16;
  for (const auto& [rows, classes] : {std::pair(1, 1), {7, 10}, {64, 257}, {33, 8200}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, classes));
    const at::Tensor logits = (at::randn({rows, classes}) * 4).to(GetParam());
    const at::Tensor targets = at::randint(classes, {rows}, at::kLong);
    const Loss ours = loss_of(
        logits, [&](const at::Tensor& x) { return fused_cross_entropy(device, x, targets); });
    const Loss exact = loss_of(logits.to(at::kDouble), [&](const at::Tensor& x) {
      return at::cross_entropy_loss(x, targets);
    });
    EXPECT_EQ(ours.value.scalar_type(), at::kFloat);
    EXPECT_EQ(ours.gradient.scalar_type(), GetParam());
    EXPECT_TRUE(at::allclose(ours.value.to(at::kDouble), exact.value, 1e-5, 1e-6));
    EXPECT_TRUE(
        at::allclose(ours.gradient.to(at::kDouble), exact.gradient, is_half ? 0x1p-8 : 1e-4, 1e-7));
  }
}

TEST_P(FusedCrossEntropy, HasTheSameBitsEachTimeAndForARowWhateverStandsBesideIt) {
  surefoot::testing::HostDevice device;
  const at::Tensor logits = at::randn({16, 1000}).to(GetParam());
  const at::Tensor targets = at::randint(1000, {16}, at::kLong);
  const auto of_row = [&](std::int64_t row) {
    return fused_cross_entropy(device, logits.narrow(0, row, 1), targets.narrow(0, row, 1));
  };
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (std::int64_t row = 0; row < 16; ++row) {
    EXPECT_TRUE(at::equal(of_row(row), of_row(row)));
    sum += of_row(row).to(at::kDouble);
  }
  const at::Tensor all = fused_cross_entropy(device, logits, targets);
  EXPECT_TRUE(at::allclose(all.to(at::kDouble), sum / 16, 1e-6, 0));
}

TEST(FusedCrossEntropyOf, RefusesWhatItWasNotMadeFor) {
  surefoot::testing::HostDevice device;
  const at::Tensor targets = at::zeros({2}, at::kLong);
  EXPECT_THROW((void)fused_cross_entropy(device, at::zeros({2, 3}, at::kDouble), targets),
               c10::Error);
  EXPECT_THROW((void)fused_cross_entropy(device, at::zeros({3, 3}), targets), c10::Error);
  EXPECT_THROW((void)fused_cross_entropy(device, at::zeros({2, 3, 4}), targets), c10::Error);
}

}  // namespace
}  // namespace surefoot
