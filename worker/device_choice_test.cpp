#include "worker/device_choice.h"

#include <gtest/gtest.h>

namespace surefoot {
namespace {

Result<DeviceChoice> choose(const std::vector<std::string>& devices,
                            const std::optional<std::string>& visible, int local_rank,
                            int local_size) {
  config::Resources resources;
  resources.mutable_devices()->Add(devices.begin(), devices.end());
  return choose_device(resources, visible, local_rank, local_size);
}

std::string device(const std::vector<std::string>& devices,
                   const std::optional<std::string>& visible, int local_rank, int local_size = 4) {
  const auto choice = choose(devices, visible, local_rank, local_size);
  return choice ? choice->device : choice.error().message;
}

TEST(DeviceChoice, EachLocalRankHasAGpuOfItsOwn) {
  for (int rank = 0; rank < 4; ++rank) {
    const auto choice = choose({}, {}, rank, 4);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->device, std::to_string(rank));
    EXPECT_EQ(choice->devices_of_node, 4);
    EXPECT_EQ(choice->environment.at("CUDA_VISIBLE_DEVICES"), std::to_string(rank));
    EXPECT_EQ(choice->environment.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
    EXPECT_EQ(choice->environment.at("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
    EXPECT_EQ(choice->environment.at("PYTORCH_TUNABLEOP_ENABLED"), "0");
  }
}

TEST(DeviceChoice, TheJobFileNamesThem) {
  EXPECT_EQ(device({"0", "2"}, {}, 1), "2");
  EXPECT_EQ(device({"MIG-aa", "MIG-bb"}, {}, 1), "MIG-bb");
  const auto shared = choose({"0", "0", "1", "1"}, {}, 2, 4);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->device, "1");
  EXPECT_EQ(shared->devices_of_node, 2);
  EXPECT_EQ(choose({"5"}, {}, 2, 4)->devices_of_node, 1) << "the list starts again at its end";
}

TEST(DeviceChoice, ABatchSystemsChoiceIsKept) {
  EXPECT_EQ(device({}, "4,6", 1, 2), "6");
  EXPECT_EQ(device({}, " GPU-aa , GPU-bb", 0, 2), "GPU-aa");
  EXPECT_EQ(device({"1"}, "4,6", 0, 1), "6") << "an index counts among those that are visible";
  EXPECT_EQ(device({"GPU-cc"}, "4,6", 0, 1), "GPU-cc");
  EXPECT_EQ(choose({}, "4", 0, 1)->environment.count("CUDA_DEVICE_ORDER"), 0U);
}

TEST(DeviceChoice, OneThatIsNotThereIsRefused) {
  EXPECT_NE(device({}, "4,6", 2, 3).find("shows 2. Fewer"), std::string::npos);
  EXPECT_NE(device({"2"}, "4,6", 0, 1).find("no GPU 2"), std::string::npos);
  EXPECT_FALSE(choose({}, "", 0, 1)) << "an empty list hides all";
}

TEST(DeviceChoice, WhatOfTheEnvironmentDecidesBitsIsTold) {
  EXPECT_EQ(bits_by_environment([](const char*) { return nullptr; }), "");
  const std::map<std::string, const char*> set = {
      {"NVIDIA_TF32_OVERRIDE", "0"}, {"TORCH_BLAS_PREFER_CUBLASLT", "1"}, {"PATH", "/bin"}};
  const auto value_of = [&](const char* name) {
    return set.contains(name) ? set.at(name) : nullptr;
  };
  EXPECT_EQ(bits_by_environment(value_of),
            "; NVIDIA_TF32_OVERRIDE=0; TORCH_BLAS_PREFER_CUBLASLT=1");
}

}  // namespace
}  // namespace surefoot
