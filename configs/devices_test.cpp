#include "configs/devices.h"

#include <gmock/gmock.h>

namespace surefoot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kUuid = "1b2c3d4e-0000-1111-2222-0123456789ab";

std::vector<std::string> texts_of(const std::vector<std::string>& devices, int workers,
                                  const std::optional<std::string>& visible = {}) {
  config::Resources resources;
  for (const std::string& entry : devices) resources.add_devices(entry);
  const auto found = devices_of(resources, visible, workers);
  if (!found) return {found.error().message};
  std::vector<std::string> out;
  for (const DeviceName& device : *found) out.push_back(device.text());
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
  for (const auto& [rank, index] :
       {std::pair(0, 3), std::pair(1, 1), std::pair(2, 3), std::pair(3, 3), std::pair(4, 1)})
    EXPECT_EQ(device_of({"3", "1", "3"}, {}, rank)->index, index) << rank;
  EXPECT_THAT(texts_of({"3", "1", "3"}, 5), ElementsAre("1", "3"));
  EXPECT_THAT(texts_of({"3", "1", "3"}, 1), ElementsAre("3"));
}

TEST(Device, OfAWorkerIsTheGpuOfItsRankWhereNoneIsNamed) {
  EXPECT_EQ(device_of({}, {}, 2)->index, 2);
  EXPECT_THAT(texts_of({}, 3), ElementsAre("0", "1", "2"));
}

TEST(Device, OfAWorkerIsAmongThoseThatABatchSystemShows) {
  const std::string uuid = std::string("GPU-") + kUuid;
  EXPECT_THAT(texts_of({}, 2, "4,6,7"), ElementsAre("4", "6"));
  EXPECT_THAT(texts_of({"1"}, 2, "4, 6"), ElementsAre("6")) << "an index counts among them";
  EXPECT_THAT(texts_of({uuid}, 1, "4,6"), ElementsAre(uuid));
  EXPECT_THAT(texts_of({"0"}, 1, "GPU-1b2c"), ElementsAre("GPU-1b2c")) << "CUDA takes a beginning";
  EXPECT_THAT(texts_of({}, 3, "4,6"), ElementsAre(HasSubstr("no GPU for local rank 2")));
  EXPECT_THAT(texts_of({"2"}, 1, "4,6"), ElementsAre(HasSubstr("there is no GPU 2")));
  EXPECT_THAT(texts_of({}, 1, ""), ElementsAre(HasSubstr("shows 0"))) << "all are hidden";
}

}  // namespace
}  // namespace surefoot
