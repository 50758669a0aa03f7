// "Did you mean": what an unknown word was probably meant to be. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>

namespace surefoot::configs {

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other
// (optimal string alignment).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The words near `word`, nearest first, at most three; letter case and '-' for '_' do not count.
[[nodiscard]] std::vector<std::string> near_words(std::string_view word,
                                                  const std::vector<std::string>& words);

// Full keys that an unknown key in `message` (whose full key is `path`) was probably meant to be:
// near ones in the same message, what other tools call so, the same or a near key in another
// message. At most three.
[[nodiscard]] std::vector<std::string> suggest_keys(std::string_view word, std::string_view path,
                                                    const google::protobuf::Descriptor& message,
                                                    const google::protobuf::Descriptor& root);

// "; did you mean a, b or c?", or nothing.
[[nodiscard]] std::string did_you_mean(const std::vector<std::string>& suggestions);

}  // namespace surefoot::configs
