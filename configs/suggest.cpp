#include "configs/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "configs/schema.h"

namespace surefoot::configs {
namespace {

constexpr std::size_t kMaxSuggestions = 3;

std::string normalized(std::string_view word) {
  std::string out;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    const bool is_upper = c >= 'A' && c <= 'Z';
    // batchSize and Batch-Size are batch_size.
    if (is_upper && i > 0 && word[i - 1] >= 'a' && word[i - 1] <= 'z') out += '_';
    out += c == '-' || c == ' ' ? '_' : is_upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

// One slip in a word of up to five letters, two in longer ones, three in long ones.
std::size_t allowed_distance(std::string_view word) {
  return word.size() <= 2 ? 0 : word.size() <= 5 ? 1 : word.size() <= 9 ? 2 : 3;
}

void add_once(std::vector<std::string>& list, std::string word) {
  if (list.size() < kMaxSuggestions && std::find(list.begin(), list.end(), word) == list.end())
    list.push_back(std::move(word));
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::vector<std::string> near_words(std::string_view word, const std::vector<std::string>& words) {
  static constexpr std::size_t kLongest =
      64;  // longer words are no slip, and the distance costs the product of both lengths
  if (word.size() > kLongest) return {};
  const std::string wanted = normalized(word);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& candidate : words) {
    const std::size_t distance = edit_distance(wanted, normalized(candidate));
    if (distance <= allowed_distance(wanted) && distance < candidate.size())
      near.emplace_back(distance, candidate);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (auto& [distance, candidate] : near) add_once(out, std::move(candidate));
  return out;
}

std::vector<std::string> suggest_keys(std::string_view word, std::string_view path,
                                      const google::protobuf::Descriptor& message,
                                      const google::protobuf::Descriptor& root) {
  std::vector<std::string> suggestions;
  for (const std::string& near : near_words(word, key_names(message)))
    add_once(suggestions, join_key(path, near));

  const std::string wanted = normalized(word);
  std::vector<std::string> same, called_so_here, called_so, names;
  std::vector<std::string> paths;
  for_each_key(root, [&](const SchemaKey& key) {
    if (key.field->containing_type() == &message) {
      if (is_aka(*key.field, wanted)) called_so_here.push_back(key.path);
      return;
    }
    if (key.field->name() == wanted) same.push_back(key.path);
    if (is_aka(*key.field, wanted)) called_so.push_back(key.path);
    if (std::find(names.begin(), names.end(), key.field->name()) == names.end())
      names.push_back(key.field->name());
  });
  for (std::string& key : called_so_here) add_once(suggestions, std::move(key));
  for (std::string& key : called_so) add_once(suggestions, std::move(key));
  // `kind` stands in many messages: no hint.
  if (same.size() < kMaxSuggestions) {
    for (std::string& key : same) add_once(suggestions, std::move(key));
  }
  if (!suggestions.empty()) return suggestions;
  for (const std::string& near : near_words(word, names)) {
    for_each_key(root, [&](const SchemaKey& key) {
      if (key.field->name() == near) add_once(suggestions, key.path);
    });
  }
  return suggestions;
}

std::string did_you_mean(const std::vector<std::string>& suggestions) {
  if (suggestions.empty()) return "";
  std::string out = "; did you mean ";
  for (std::size_t i = 0; i < suggestions.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == suggestions.size() ? " or " : ", ") + suggestions[i];
  }
  return out + "?";
}

}  // namespace surefoot::configs
