#include "configs/machines.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>

#include "configs/yaml_tree.h"

namespace surefoot {
namespace {

using configs::quote;

constexpr std::string_view kSpaces = " \t\r\f\v";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::optional<int> number_in(std::string_view text, int min, int max) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = fault == std::errc() && end == text.data() + text.size();
  if (!whole || value < min || value > max) return std::nullopt;
  return value;
}

bool is_v6(std::string_view text) {
  std::array<unsigned char, 16> bytes{};
  return ::inet_pton(AF_INET6, std::string(text).c_str(), bytes.data()) == 1;
}

// The name goes to ssh as an argument and must be nothing else there: no option, no second word.
bool is_name(std::string_view text, std::string_view beside) {
  const auto is_allowed = [beside](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || beside.find(c) != beside.npos;
  };
  return !text.empty() && text.size() <= 253 && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), is_allowed);
}

bool is_host(std::string_view host) {
  const std::size_t at = host.rfind('@');
  const std::string_view name = at == host.npos ? host : host.substr(at + 1);
  const bool right_user = at == host.npos || is_name(host.substr(0, at), "._-+");
  return right_user && (is_name(name, "._-") || is_v6(name));
}

Error wrong_host(std::string_view entry) {
  return error(Code::kInvalid,
               "found {}, allowed is NAME, USER@NAME or NAME:SLOTS, with 1 to {} slots",
               quote(entry), kMaxSlots);
}

// The entries of a list made one a machine.
class HostList {
 public:
  // An error says how many there are.
  Status add(const HostSpec& host) {
    const auto [at, is_new] = places_.try_emplace(host.name, hosts_.size());
    if (is_new) {
      if (hosts_.size() == kMaxHosts)
        return error(Code::kInvalid, "found more than {} machines", kMaxHosts);
      hosts_.push_back(host);
      return {};
    }
    HostSpec& known = hosts_[at->second];
    known.slots = std::max(known.slots, 1) + std::max(host.slots, 1);
    if (known.slots <= kMaxSlots) return {};
    return error(Code::kInvalid, "found {} slots of {} in all, allowed are at most {}", known.slots,
                 known.name, kMaxSlots);
  }
  std::vector<HostSpec> take() { return std::move(hosts_); }

 private:
  std::vector<HostSpec> hosts_;
  std::unordered_map<std::string, std::size_t> places_;
};

// `parse` gets each line that holds something.
template <class Parse>
Result<std::vector<HostSpec>> parse_lines(std::string_view text, Parse parse) {
  HostList list;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    Result<HostSpec> host = parse(line);
    const Status added = host ? list.add(*host) : Status(host.error());
    if (!added) return error(Code::kInvalid, "line {}: {}", number, added.error().message);
  }
  return list.take();
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!(line = trimmed(line)).empty()) {
    words.push_back(line.substr(0, line.find_first_of(kSpaces)));
    line.remove_prefix(words.back().size());
  }
  return words;
}

Result<HostSpec> parse_hostfile_line(std::string_view line) {
  // Open MPI allows spaces around '='.
  std::string joined;
  for (const char c : line) {
    if (c == '=') joined.erase(joined.find_last_not_of(kSpaces) + 1);
    if (!joined.empty() && joined.back() == '=' && kSpaces.find(c) != kSpaces.npos) continue;
    joined += c;
  }
  const auto words = words_of(joined);
  SUREFOOT_ASSIGN(HostSpec host, parse_host(words.front()));
  std::optional<int> most;
  for (auto word = words.begin() + 1; word != words.end(); ++word) {
    const std::string_view key = word->substr(0, word->find('='));
    const std::string_view value =
        key.size() == word->size() ? std::string_view() : word->substr(key.size() + 1);
    const auto slots = number_in(value, 1, key == "slots" ? kMaxSlots : 1'000'000);
    const bool is_most = key == "max_slots" || key == "max-slots";
    if (!slots || (key != "slots" && !is_most))
      return error(Code::kInvalid,
                   "found {}, allowed after the name are slots=N with 1 to {} and max_slots=N",
                   quote(*word), kMaxSlots);
    is_most ? most = slots : host.slots = *slots;
  }
  if (most) host.slots = std::min(host.slots == 0 ? kMaxSlots : host.slots, *most);
  return host;
}

struct Bits {
  int family = 0;
  std::array<unsigned char, 16> bytes{};
  [[nodiscard]] int size() const { return family == AF_INET ? 32 : 128; }
};
std::optional<Bits> bits_of(const std::string& address) {
  Bits bits;
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, address.c_str(), bits.bytes.data()) != 1) continue;
    bits.family = family;
    return bits;
  }
  return std::nullopt;
}

}  // namespace

Result<HostSpec> parse_host(std::string_view entry) {
  const std::string_view text = trimmed(entry);
  const std::size_t user = text.find('@') == text.npos ? 0 : text.find('@') + 1;
  HostSpec host;
  std::string_view slots;
  bool has_slots = false;
  if (text.substr(user).starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == text.npos || !is_v6(text.substr(user + 1, close - user - 1)))
      return wrong_host(entry);
    host.name =
        std::string(text.substr(0, user)) + std::string(text.substr(user + 1, close - user - 1));
    has_slots = close + 1 < text.size();
    if (has_slots && text[close + 1] != ':') return wrong_host(entry);
    if (has_slots) slots = text.substr(close + 2);
  } else {
    const std::size_t colon = text.find(':');
    // More than one: an IPv6 address, whose last number is no number of slots.
    has_slots = colon != text.npos && text.find(':', colon + 1) == text.npos;
    host.name = std::string(has_slots ? text.substr(0, colon) : text);
    if (has_slots) slots = text.substr(colon + 1);
  }
  const auto count = number_in(slots, 1, kMaxSlots);
  if (!is_host(host.name) || (has_slots && !count)) return wrong_host(entry);
  host.slots = count.value_or(0);
  return host;
}

Result<std::vector<HostSpec>> parse_hosts(const std::vector<std::string>& entries) {
  HostList list;
  for (const std::string& entry : entries) {
    SUREFOOT_ASSIGN(const HostSpec host, parse_host(entry));
    SUREFOOT_TRY(list.add(host));
  }
  return list.take();
}

Result<std::vector<HostSpec>> parse_hostfile(std::string_view text) {
  return parse_lines(text, parse_hostfile_line);
}

Result<std::vector<HostSpec>> parse_discovery(std::string_view text) {
  return parse_lines(text, parse_host);
}

Result<Network> parse_network(std::string_view text) {
  Network network;
  const std::size_t slash = text.find('/');
  if (slash != text.npos) {
    network.address = std::string(text.substr(0, slash));
    const auto bits = bits_of(network.address);
    const auto prefix = number_in(text.substr(slash + 1), 1, bits ? bits->size() : 0);
    if (prefix) {
      network.prefix = *prefix;
      return network;
    }
  } else if (text.size() <= 15 && is_name(text, "._-") && !bits_of(std::string(text))) {
    network.interface = std::string(text);
    return network;
  }
  return error(Code::kInvalid,
               "found {}, allowed is a CIDR such as 10.0.0.0/16, or the name of an interface",
               quote(text));
}

bool contains(const Network& network, const std::string& address) {
  const auto wanted = bits_of(network.address);
  const auto found = bits_of(address);
  if (!wanted || !found || wanted->family != found->family) return false;
  for (int bit = 0; bit < network.prefix; ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((wanted->bytes[byte] ^ found->bytes[byte]) & (0x80 >> (bit % 8))) != 0) return false;
  }
  return true;
}

Result<PortRange> parse_ports(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto first = number_in(text.substr(0, dash), 1024, 65535);
  const auto last =
      number_in(dash == text.npos ? std::string_view() : text.substr(dash + 1), 1024, 65535);
  if (!first || !last || *last - *first + 1 < kMinPorts)
    return error(Code::kInvalid,
                 "found {}, allowed is FIRST-LAST from 1024 to 65535, at least {} ports",
                 quote(text), kMinPorts);
  return PortRange{*first, *last};
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
