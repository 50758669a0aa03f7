#include "configs/devices.h"

#include <gmock/gmock.h>

namespace surefoot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kUuid = "1b2c3d4e-0000-1111-2222-0123456789ab";

config::Resources with_devices(const std::vector<std::string>& entries) {
  config::Resources resources;
  for (const std::string& entry : entries) resources.add_devices(entry);
  return resources;
}
std::vector<std::string> texts_of(const std::set<DeviceName>& devices) {
  std::vector<std::string> out;
  for (const DeviceName& device : devices) out.push_back(device.text());
  return out;
}

TEST(Device, IsNamedByItsNumberItsUuidOrItsMigInstance) {
  const std::string uuid = kUuid;
  for (const std::string& entry : {std::string("0"), std::string("7"), std::string("255"),
                                   "GPU-" + uuid, "MIG-" + uuid, "MIG-GPU-" + uuid + "/7/0"}) {
    const auto device = parse_device(entry);
    ASSERT_TRUE(device) << entry;
    EXPECT_EQ(device->text(), entry);
    EXPECT_EQ(device->is_mig(), entry.starts_with("MIG-"));
    EXPECT_EQ(device->index >= 0, entry.size() < 4);
  }
}

TEST(Device, IsTheSameInCapitalLetters) {
  EXPECT_EQ(parse_device("GPU-1B2C3D4E-0000-1111-2222-0123456789AB")->text(),
            std::string("GPU-") + kUuid);
}

TEST(Device, IsNothingElse) {
  const std::string uuid = kUuid;
  for (const std::string& entry :
       {std::string(""), std::string("-1"), std::string("256"), std::string("1.0"),
        std::string("cuda:0"), std::string("all"), std::string("GPU-"), std::string("GPU-1b2c3d4e"),
        uuid, "gpu-" + uuid, "GPU-" + uuid + "0", "GPU-" + uuid + "/1/0", "MIG-GPU-" + uuid,
        "MIG-GPU-" + uuid + "/1", "MIG-GPU-" + uuid + "//1", std::string(36, '-')}) {
    const auto device = parse_device(entry);
    ASSERT_FALSE(device) << entry;
    EXPECT_THAT(device.error().message, HasSubstr("nvidia-smi")) << entry;
  }
}

TEST(Device, OfAWorkerIsTheEntryOfItsRankFromTheFrontAgainWhereTheyEnd) {
  const config::Resources resources = with_devices({"3", "1", "3"});
  for (const auto& [rank, index] :
       {std::pair(0, 3), std::pair(1, 1), std::pair(2, 3), std::pair(3, 3), std::pair(4, 1)})
    EXPECT_EQ(device_of(resources, rank).index, index) << rank;
  EXPECT_THAT(texts_of(devices_of(resources, 5)), ElementsAre("1", "3"));
  EXPECT_THAT(texts_of(devices_of(resources, 1)), ElementsAre("3"));
}

TEST(Device, OfAWorkerIsTheGpuOfItsRankWhereNoneIsNamed) {
  EXPECT_EQ(device_of({}, 2).index, 2);
  EXPECT_THAT(texts_of(devices_of({}, 3)), ElementsAre("0", "1", "2"));
}

}  // namespace
}  // namespace surefoot
