#include "configs/devices.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "configs/yaml_tree.h"

namespace surefoot {
namespace {

using configs::quote;

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = fault == std::errc() && end == text.data() + text.size();
  if (!is_whole || value < 0 || value > kMaxDeviceIndex) return std::nullopt;
  return value;
}

// 8-4-4-4-12 hexadecimal digits.
bool is_uuid(std::string_view text) {
  static constexpr std::string_view kShape = "00000000-0000-0000-0000-000000000000";
  return text.size() == kShape.size() &&
         std::equal(text.begin(), text.end(), kShape.begin(), [](char c, char shape) {
           return shape == '-' ? c == '-' : std::isxdigit(static_cast<unsigned char>(c)) != 0;
         });
}

// GPU-UUID/G/C: what a MIG instance is called by drivers before 470, after "MIG-".
bool is_place_of_instance(std::string_view text) {
  static constexpr std::size_t kUuidSize = 36;
  if (!text.starts_with("GPU-") || !is_uuid(text.substr(4, kUuidSize))) return false;
  const std::string_view rest = text.substr(4 + kUuidSize);
  const std::size_t slash = rest.find('/', 1);
  return rest.starts_with("/") && slash != rest.npos && number_in(rest.substr(1, slash - 1)) &&
         number_in(rest.substr(slash + 1));
}

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

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

}  // namespace

std::string DeviceName::text() const {
  return index >= 0 ? std::to_string(index) : uuid;
}

Result<DeviceName> parse_device(std::string_view entry) {
  if (const std::optional<int> index = number_in(entry)) return DeviceName{.index = *index};
  const std::string_view rest = entry.substr(std::min<std::size_t>(entry.size(), 4));
  if ((entry.starts_with("GPU-") || entry.starts_with("MIG-")) && is_uuid(rest))
    return DeviceName{.uuid = std::string(entry.substr(0, 4)) + in_lower_case(rest)};
  if (entry.starts_with("MIG-") && is_place_of_instance(rest))
    return DeviceName{.uuid = "MIG-GPU-" + in_lower_case(rest.substr(4))};
  return error(Code::kInvalid,
               "found {}, allowed is a GPU's number from 0 to {} as nvidia-smi counts, or a whole "
               "GPU-... or MIG-... UUID as `nvidia-smi -L` prints it",
               quote(entry), kMaxDeviceIndex);
}

DeviceName device_shown(const std::string& entry) {
  const auto device = parse_device(entry);
  return device ? *device : DeviceName{.uuid = entry};
}

Result<DeviceName> device_of(const std::vector<std::string>& devices,
                             const std::optional<std::string>& visible, int local_rank) {
  const auto rank = static_cast<std::size_t>(local_rank);
  std::optional<std::vector<std::string>> shown;
  if (visible) shown = split(*visible);
  if (devices.empty() && !shown) return DeviceName{.index = local_rank};
  if (devices.empty()) {
    if (rank < shown->size()) return device_shown((*shown)[rank]);
    return error(
        Code::kInvalid,
        "resources.device: there is no GPU for local rank {}: CUDA_VISIBLE_DEVICES shows "
        "{}. Fewer resources.workers_per_node, or resources.devices with each GPU as often "
        "as workers are to share it",
        local_rank, shown->size());
  }
  const std::string& entry = devices[rank % devices.size()];
  const DeviceName named = device_shown(entry);
  if (!shown || named.index < 0) return named;
  if (static_cast<std::size_t>(named.index) < shown->size())
    return device_shown((*shown)[static_cast<std::size_t>(named.index)]);
  return error(Code::kInvalid,
               "resources.devices: there is no GPU {}: CUDA_VISIBLE_DEVICES shows {} of them",
               entry, shown->size());
}

Result<std::set<DeviceName>> devices_of(const config::Resources& resources,
                                        const std::optional<std::string>& visible, int workers) {
  const std::vector<std::string> listed(resources.devices().begin(), resources.devices().end());
  std::set<DeviceName> out;
  for (int rank = 0; rank < workers; ++rank) {
    SUREFOOT_ASSIGN(DeviceName device, device_of(listed, visible, rank));
    out.insert(std::move(device));
  }
  return out;
}

std::optional<std::string> visible_devices() {
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace surefoot
