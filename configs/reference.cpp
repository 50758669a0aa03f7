// The reference page of the job file, docs/job-file.md.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "configs/job.h"
#include "configs/schema.h"

namespace surefoot {
namespace {

using namespace configs;

constexpr std::string_view kIntroduction = R"(# The job file

<!-- Generated from configs/job.proto by surefoot-reference. Do not edit: change the schema and run `surefoot-reference > docs/job-file.md`. -->

One YAML file describes a job. This page lists every key there is; a key that is not here is refused, with the key that was probably meant.
`surefoot validate job.yaml` reports all faults of a file in one go, each with line, column, key, what was found and what is allowed.
`surefoot validate --schema` prints a JSON Schema with which editors complete and check job files.

- **Kinds of keys.** *Training* keys decide the bits of the weights: a job goes on only with the same ones. *Operational* keys (where, how often,
  how patient) may change between two runs of a job.
- **Durations** carry a unit: `500ms`, `30s`, `5m`, `1h`, `2d`. **Sizes** too: `512KiB`, `64MiB`, `1GiB`.
- **Ranges** are one number or two: `4`, `1:4`.
- **Paths** are relative to the folder of the job file, unless said otherwise.
- **Variables.** In texts and paths `$NAME` and `${NAME}` are environment variables, which must be set; `$$` is a dollar sign; `{name}` is the job's name.
- **On the command line** `--set train.max_steps=50` sets a key for this run, `--set model.hidden='[64, 64]'` a list,
  `--set train.optimizer='{kind: sgd, lr: 0.1}'` a whole section in place of the file's. The last one wins.
- **Anchors and merge keys** (`&a`, `*a`, `<<: *a`, `<<: [*a, *b]`) work; a map's own keys win. Keys at the top that begin with `x-` are not read and may hold anchors.
- **Limits.** A file has at most 1,000,000 bytes and 10,000 nodes, an alias counting as what it stands for.
)";

// Text inside a table's cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string default_cell(const FieldDescriptor& field) {
  const config::Key& key = key_of(field);
  if (key.required()) return "**required**";
  return key.default_value().empty() ? "" : "`" + key.default_value() + "`";
}

std::string row(const FieldDescriptor& field) {
  const config::Key& key = key_of(field);
  const std::string only =
      key.only().empty() ? "" : fmt::format("*{} only.* ", fmt::join(key.only(), ", "));
  return fmt::format("| `{}` | {} | {} | {} | {}{} |\n", field.name(), cell(allowed(field)),
                     cell(default_cell(field)),
                     key.kind() == config::TRAINING ? "training" : "operational", only,
                     cell(key.doc()));
}

void write_table(const Descriptor& message, std::string& out) {
  out += "\n| key | allowed | default | kind | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (int i = 0; i < message.field_count(); ++i) {
    if (!is_section(*message.field(i))) out += row(*message.field(i));
  }
}

}  // namespace

std::string reference_page() {
  std::string out(kIntroduction);
  const Descriptor& root = *config::Job::descriptor();
  out += "\n## At the top\n";
  write_table(root, out);
  for_each_key(root, [&out](const SchemaKey& key) {
    if (!is_section(*key.field)) return;
    const auto depth = static_cast<std::size_t>(std::count(key.path.begin(), key.path.end(), '.'));
    out += fmt::format("\n{} {}\n\n{}{}\n", std::string(2 + depth, '#'), key.path,
                       key_of(*key.field).doc(), key_of(*key.field).required() ? " Required." : "");
    write_table(*key.field->message_type(), out);
  });
  return out;
}

}  // namespace surefoot
