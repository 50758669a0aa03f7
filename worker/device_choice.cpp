#include "worker/device_choice.h"

#include <set>

#include "configs/devices.h"

namespace surefoot {
Result<DeviceChoice> choose_device(const std::vector<std::string>& devices,
                                   const std::optional<std::string>& visible, int local_rank,
                                   int local_size) {
  DeviceChoice choice;
  SUREFOOT_ASSIGN(const DeviceName mine, device_of(devices, visible, local_rank));
  choice.device = mine.text();
  std::set<DeviceName> all;
  for (int rank = 0; rank < local_size; ++rank) {
    SUREFOOT_ASSIGN(DeviceName theirs, device_of(devices, visible, rank));
    all.insert(std::move(theirs));
  }
  choice.devices_of_node = static_cast<int>(all.size());
  choice.environment["CUDA_VISIBLE_DEVICES"] = choice.device;
  // As nvidia-smi counts. What is there already was counted by whoever has set it.
  if (!visible) choice.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  // cuBLAS adds up in one order only with a workspace of fixed size for each stream.
  choice.environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8";
  return choice;
}

}  // namespace surefoot
