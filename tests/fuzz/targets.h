// What is fuzzed: everything that reads bytes from outside. Each target takes any bytes, and checks
// by itself what must hold (SUREFOOT_CHECK) besides not crashing, leaking, or allocating from a
// length that was not checked.
//
// One libFuzzer program per target (tools/fuzz.sh); fuzz_corpus_test runs the same functions once
// over the committed corpora, under the ordinary compiler.
#pragma once

#include <array>
#include <string_view>

namespace surefoot::fuzz {

void service_message(std::string_view bytes);  // requests and replies of the service
void layout(std::string_view bytes);           // the state's layout as JSON
void part_header(std::string_view bytes);      // as it is, and behind a length that fits
void manifest(std::string_view bytes);         // as it is, and with a digest that fits
void s3_reply(std::string_view bytes);         // XML of an S3 service
void s3_credentials(std::string_view bytes);   // the shared file, and the JSON of a role
void notice(std::string_view bytes);           // what clouds' metadata services answer
// Bytes are edits of a valid encrypted checkpoint, all unkeyed digests made anew: whatever differs
// must be refused.
void sealed_checkpoint(std::string_view bytes);

struct Target {
  std::string_view name;  // of its program and of its folder in corpus/
  void (*run)(std::string_view bytes);
};
inline constexpr std::array kTargets = {
    Target{"service_message", service_message},
    Target{"layout", layout},
    Target{"part_header", part_header},
    Target{"manifest", manifest},
    Target{"sealed_checkpoint", sealed_checkpoint},
    Target{"s3_reply", s3_reply},
    Target{"s3_credentials", s3_credentials},
    Target{"notice", notice},
};

}  // namespace surefoot::fuzz
