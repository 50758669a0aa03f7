#include "worker/device_choice.h"

#include <charconv>
#include <set>
#include <sstream>

#include "configs/machines.h"

namespace surefoot {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> entries;
  std::istringstream in(text);
  for (std::string entry; std::getline(in, entry, ',');) {
    const auto begin = entry.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    entries.push_back(entry.substr(begin, entry.find_last_not_of(' ') - begin + 1));
  }
  return entries;
}

std::optional<std::size_t> index_in(const std::string& entry) {
  std::size_t index = 0;
  const auto [end, failed] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (failed != std::errc() || end != entry.data() + entry.size()) return std::nullopt;
  return index;
}

// An index means a place in `visible`, where there is one.
Result<std::string> resolved(const std::string& entry,
                             const std::optional<std::vector<std::string>>& visible) {
  const auto index = index_in(entry);
  if (!visible || !index) return entry;
  if (*index < visible->size()) return (*visible)[*index];
  return error(Code::kInvalid,
               "resources.devices: there is no GPU {}: CUDA_VISIBLE_DEVICES shows {} of them",
               entry, visible->size());
}

}  // namespace

Result<DeviceChoice> choose_device(const std::vector<std::string>& devices,
                                   const std::optional<std::string>& visible, int local_rank,
                                   int local_size) {
  std::optional<std::vector<std::string>> shown;
  if (visible) shown = split(*visible);
  const auto device_of = [&](int rank) -> Result<std::string> {
    const auto at = static_cast<std::size_t>(rank);
    if (!devices.empty()) return resolved(devices[at % devices.size()], shown);
    if (!shown) return std::to_string(rank);
    if (at < shown->size()) return (*shown)[at];
    return error(Code::kInvalid,
                 "resources.device: {} workers here, and CUDA_VISIBLE_DEVICES shows {} GPUs. Fewer "
                 "resources.workers_per_node, or resources.devices with each GPU as often as "
                 "workers are to share it",
                 local_size, shown->size());
  };
  DeviceChoice choice;
  SUREFOOT_ASSIGN(choice.device, device_of(local_rank));
  std::set<std::string> all;
  for (int rank = 0; rank < local_size; ++rank) {
    SUREFOOT_ASSIGN(std::string theirs, device_of(rank));
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

std::string nccl_interfaces(const std::string& network, const std::vector<InterfaceAddress>& own) {
  const auto wanted = parse_network(network);
  if (!wanted) return "";
  std::set<std::string> names;
  for (const InterfaceAddress& one : own) {
    const bool is_in =
        wanted->interface.empty() ? contains(*wanted, one.address) : one.name == wanted->interface;
    if (is_in) names.insert(one.name);
  }
  return names.empty() ? "" : fmt::format("={}", fmt::join(names, ","));
}

}  // namespace surefoot
