#include "configs/devices.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

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

DeviceName device_of(const config::Resources& resources, int local_rank) {
  if (resources.devices().empty()) return {.index = local_rank};
  const auto device = parse_device(resources.devices(local_rank % resources.devices_size()));
  SUREFOOT_CHECK(device.has_value());  // as the loader has seen to
  return *device;
}

std::set<DeviceName> devices_of(const config::Resources& resources, int workers) {
  std::set<DeviceName> out;
  for (int rank = 0; rank < workers; ++rank) out.insert(device_of(resources, rank));
  return out;
}

}  // namespace surefoot
