// The keys with which a job's supervisor and its services know each other (CURVE), and where they
// are kept: `<job directory>/service.keys`, mode 0600, made once.
//
// A pair for the services and a pair for who asks them, made for this job. Whoever has no client
// key is not answered. Keys are never in an argument, an environment variable, a log or an error;
// a service on another machine gets what it needs over standard input (surefoot-node --from-stdin):
// its own pair and the client's public key.
//
// The text is lines of "<name> <key in z85>", at most 1 KiB, up to an empty line or the end;
// docs/service.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/status.h"

namespace surefoot {

// In z85: 40 characters each.
struct ServiceKeys {
  std::string server_public;
  std::string server_secret;  // who asks does not need it
  std::string client_public;
  std::string client_secret;  // a service does not need it
};

// What a service has to know, and what who asks it has to know.
[[nodiscard]] ServiceKeys server_half(const ServiceKeys& keys);
[[nodiscard]] ServiceKeys client_half(const ServiceKeys& keys);

[[nodiscard]] std::string to_text(const ServiceKeys& keys);  // those that are there
// kInvalid: not such a text, or neither half is whole. The message does not repeat it.
[[nodiscard]] Result<ServiceKeys> parse_service_keys(std::string_view text);

// kNotFound: there is no such file. kInvalid: others may read it, or it is no such file.
[[nodiscard]] Result<ServiceKeys> read_service_keys(const std::filesystem::path& file);
// Reads the file, or makes it. Safe when several processes do it at once: all get the same keys.
[[nodiscard]] Result<ServiceKeys> make_service_keys(const std::filesystem::path& file);

}  // namespace surefoot
