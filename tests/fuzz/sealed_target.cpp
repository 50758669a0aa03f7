// An encrypted checkpoint in the hands of somebody who can write to the store, but has no key.
#include <cstring>
#include <map>

#include "checkpoint/checkpoint_store.h"
#include "checkpoint/testing/memory_store.h"
#include "checkpoint/testing/test_keys.h"
#include "tests/fuzz/targets.h"

namespace surefoot::fuzz {
namespace {

const std::string kJob = "0123456789abcdef";
using Objects = std::map<std::string, std::vector<std::byte>>;

// As small as can be: what is tried a second counts.
CheckpointIdentity identity_of(std::int64_t step) {
  StateLayout layout;
  layout.add_section("parameters", DType::kF32, {{"w", {16}, 0}});
  return {kJob, Step{step}, Attempt{1}, step, layout, digest("training"), {"seed: 1"}, "n"};
}

const Keys& keys() {
  static const Keys ring = testing::test_keys(1);
  return ring;
}

// Two steps of a small job, in two parts each.
const Objects& good_objects() {
  static const Objects objects = [] {
    testing::MemoryStore store;
    CheckpointStore checkpoints(store, kJob, keys());
    for (const std::int64_t step : {10, 20}) {
      const std::vector<std::byte> state(64, static_cast<std::byte>(step));
      const std::vector<Digest> digests{digest(state)};
      for (int part = 0; part < 2; ++part) {
        SUREFOOT_CHECK(
            checkpoints.store_part(identity_of(step), part, 2, state, digests, {}).has_value());
      }
      SUREFOOT_CHECK(
          checkpoints.try_publish(Step{step}, Attempt{1}, 0, 2, std::nullopt, {}).outcome ==
          PublishOutcome::kPublished);
    }
    Objects all;
    for (const std::string& name : store.names()) all[name] = store.bytes(name);
    return all;
  }();
  return objects;
}

// Numbers from the input; zeros when it is used up.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::size_t below(std::size_t n) {
    const std::size_t value = byte() | static_cast<std::size_t>(byte()) << 8;
    return n == 0 ? 0 : value % n;
  }

 private:
  std::string_view bytes_;
};

void edit(Input& input, const std::vector<std::byte>& other, std::vector<std::byte>& bytes) {
  const std::uint8_t kind = input.byte() % 4;
  const std::size_t at = input.below(bytes.size());
  if (kind == 0 && !bytes.empty()) bytes[at] ^= static_cast<std::byte>(input.byte());
  if (kind == 1) bytes.resize(at);
  if (kind == 2)
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::byte{input.byte()});
  if (kind == 3) {  // the same place of another object
    const std::size_t from = std::min(at, other.size());
    const std::size_t count = std::min({input.below(4096), bytes.size() - at, other.size() - from});
    if (count > 0) std::memcpy(bytes.data() + at, other.data() + from, count);
  }
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

// The digests that anybody can make: of a part's header in the manifest, and the manifest's own.
void make_digests_anew(const Objects& good, Objects& objects, const std::string& manifest) {
  std::string text = text_of(objects[manifest]);
  for (auto& [name, bytes] : objects) {
    if (name == manifest || bytes.size() < 8) continue;
    const auto length = [](const std::vector<std::byte>& of) {
      return part_header_bytes(text_of(of).substr(0, 8), static_cast<std::int64_t>(of.size()));
    };
    const auto was = length(good.at(name));
    const auto is = length(bytes);
    if (!is) continue;
    const auto digest_of = [](const std::vector<std::byte>& of, std::int64_t header) {
      return digest(std::span(of).first(static_cast<std::size_t>(header))).hex();
    };
    replace_all(text, digest_of(good.at(name), *was), digest_of(bytes, *is));
  }
  constexpr std::string_view kKey = "\"xxh3_128\":\"";
  text.resize(std::min(text.size(), text.rfind(kKey)));
  const std::string hex = digest(text).hex();
  objects[manifest] = bytes_of(text.append(kKey).append(hex).append("\"}\n"));
}

}  // namespace

void sealed_checkpoint(std::string_view bytes) {
  const Objects& good = good_objects();
  const std::string manifest = manifest_name(Step{20});
  std::vector<std::string> names;
  for (const auto& [name, content] : good) names.push_back(name);
  Objects objects = good;
  Input input(bytes);
  const bool anew = input.byte() % 2 == 0;
  for (int edits = 0; edits < 8 && !input.empty(); ++edits) {
    auto& chosen = objects[names[names.size() / 2 + input.below(names.size() / 2)]];  // of step 20
    edit(input, good.at(names[input.below(names.size())]), chosen);
  }
  if (anew) make_digests_anew(good, objects, manifest);
  testing::MemoryStore store;
  for (const auto& [name, content] : objects) {
    if (name.starts_with(step_folder(Step{20}))) store.set(name, content);
  }
  CheckpointStore checkpoints(store, kJob, keys());
  // In the clear it could be anything: encryption is accepted beside it (docs/formats.md).
  const auto read = checkpoints.read_manifest(Step{20}, {});
  if (read && !read->is_encrypted()) return;
  const auto verified = checkpoints.verify(Step{20}, {});
  SUREFOOT_CHECK(verified.has_value() == (objects == good));
  SUREFOOT_CHECK(checkpoints.list({}).has_value());
}

}  // namespace surefoot::fuzz
