#include "configs/expand.h"

#include <algorithm>
#include <cstdlib>

#include "configs/yaml_tree.h"

namespace surefoot::configs {
namespace {

constexpr std::string_view kNamePlace = "{name}";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The variable that starts at text[0] == '$', and how long it is written.
Result<std::pair<std::string, std::size_t>> variable(std::string_view text) {
  if (text.starts_with("$$")) return std::pair<std::string, std::size_t>("$", 2);
  const bool is_braced = text.starts_with("${");
  const std::string_view rest = text.substr(is_braced ? 2 : 1);
  const std::size_t length = std::find_if_not(rest.begin(), rest.end(), is_word) - rest.begin();
  const std::string name(rest.substr(0, length));
  if (name.empty() || (is_braced && !rest.substr(length).starts_with('}'))) {
    return error(Code::kInvalid,
                 "found {}, allowed after $ is the name of an environment variable, NAME or "
                 "{{NAME}}; $$ stands for $ itself",
                 quote(text));
  }
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) {
    return error(Code::kInvalid,
                 "found ${}, allowed are environment variables that are set; this one is not ($$ "
                 "stands for $ itself)",
                 name);
  }
  return std::pair<std::string, std::size_t>(value, length + (is_braced ? 3 : 1));
}

}  // namespace

Result<std::string> expand(std::string_view text, std::string_view job_name) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (rest.front() == '$') {
      SUREFOOT_ASSIGN(const auto found, variable(rest));
      out += found.first;
      i += found.second;
    } else if (!job_name.empty() && rest.starts_with(kNamePlace)) {
      out += job_name;
      i += kNamePlace.size();
    } else {
      out += rest.front();
      ++i;
    }
  }
  if (out.empty())
    return error(Code::kInvalid, "found an empty text, allowed is at least one character");
  if (!is_utf8(out)) return error(Code::kInvalid, "found {}, allowed is UTF-8", quote(text));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(out.begin(), out.end(), is_control)) {
    return error(Code::kInvalid,
                 "found {}, allowed is a text of one line without control characters", quote(out));
  }
  // Else the job file that is written into the job directory would be expanded once more when it is
  // read.
  if (out.find(kNamePlace) != std::string::npos) {
    return error(Code::kInvalid, "found {}, which still holds {{name}} after its expansion to {}",
                 quote(text), quote(out));
  }
  return out;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '$' ? "$$" : std::string(1, c);
  return out;
}

}  // namespace surefoot::configs
