#include "configs/job_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/file.h"
#include "configs/store_url.h"

namespace surefoot {
namespace {

constexpr std::size_t kIdDigits = 16;

bool is_job_id(const std::string& id) {
  return id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Result<std::string> read_id(const std::filesystem::path& file, const std::string& name) {
  SUREFOOT_ASSIGN(const std::string text, read_file(file));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto text_of = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string()
               ? json[key].get<std::string>()
               : std::string();
  };
  const std::string id = text_of("id");
  const std::string found = text_of("name");
  if (!is_job_id(id) || found.empty())
    return error(Code::kCorrupt,
                 "{} does not name a job; if this folder holds none, remove the file",
                 file.string());
  if (found != name) {
    return error(Code::kInvalid,
                 "{} belongs to the job \"{}\", not to \"{}\"; choose another folder or name",
                 file.parent_path().string(), found, name);
  }
  return id;
}

Error failed(const char* what, const std::filesystem::path& path) {
  const int number = errno;
  const Code code = number == ENOSPC || number == EDQUOT ? Code::kNoSpace : Code::kInvalid;
  return error(code, "cannot {} {}: {}", what, path.string(), errno_text(number));
}

Status write_new_file(const std::filesystem::path& path, std::string_view content) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return failed("create", path);
  while (!content.empty()) {
    const ssize_t put = ::write(fd.get(), content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed("write", path);
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  return ::fsync(fd.get()) == 0 ? Status() : failed("write", path);
}

Status sync_folder(const std::filesystem::path& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd && ::fsync(fd.get()) == 0 ? Status() : failed("sync", folder);
}

// Puts `content` at `file` unless something stands there; either way a whole file stands there
// afterwards.
Status publish(const std::filesystem::path& file, const std::string& unique,
               std::string_view content) {
  const std::filesystem::path temporary = file.string() + "." + unique + ".tmp";
  Status status = write_new_file(temporary, content);
  // link(2) never replaces: the loser of a race finds the winner's file.
  if (status && ::link(temporary.c_str(), file.c_str()) != 0 && errno != EEXIST)
    status = failed("create", file);
  ::unlink(temporary.c_str());
  SUREFOOT_TRY(std::move(status));
  return sync_folder(file.parent_path());
}

std::string text_of(const std::string& name, const std::string& id) {
  return nlohmann::ordered_json{{"id", id}, {"name", name}}.dump() + "\n";
}

// The id that stands in the folder afterwards: `id`, or that of who came first.
Result<std::string> find_or_make(const std::filesystem::path& root, const std::string& name,
                                 const std::string& id) {
  const std::filesystem::path file = root / "job.json";
  Result<std::string> found = read_id(file, name);
  if (found || found.error().code != Code::kNotFound) return found;
  std::error_code code;
  std::filesystem::create_directories(root, code);
  if (code)
    return error(Code::kInvalid, "cannot create the job directory {}: {}", root.string(),
                 code.message());
  SUREFOOT_TRY(publish(file, make_job_id(), text_of(name, id)));
  return read_id(file, name);
}

}  // namespace

JobDirectory JobDirectory::of(const LoadedJob& job, const std::string& dir_option) {
  std::error_code code;
  const std::filesystem::path root = dir_option.empty()
                                         ? job.file.parent_path() / "runs" / job.job.name()
                                         : std::filesystem::absolute(dir_option, code);
  std::filesystem::path normal = root.lexically_normal();
  if (!normal.has_filename() && normal.has_parent_path() && normal != normal.root_path())
    normal = normal.parent_path();
  return {std::move(normal)};
}

std::filesystem::path JobDirectory::attempt_logs(Attempt attempt) const {
  return logs() / fmt::format("attempt-{:03}", attempt.value);
}

std::filesystem::path JobDirectory::checkpoints(const config::Job& job) const {
  const auto url = parse_store_url(job.checkpoint().to());
  SUREFOOT_CHECK(url && url->kind == StoreUrl::Kind::kFolder);
  return (root / url->folder / job.name()).lexically_normal();
}

Result<std::string> JobDirectory::existing_job_id(const std::string& name) const {
  return read_id(root / "job.json", name);
}

Result<std::string> JobDirectory::job_id(const std::string& name) const {
  return find_or_make(root, name, make_job_id());
}

Status JobDirectory::claim(const std::string& name, const std::string& id) const {
  auto found = find_or_make(root, name, id);
  if (found && *found == id) return {};
  std::error_code ignored;
  // Only a supervisor's own folder has a journal. Else an earlier job had this path here.
  if (std::filesystem::exists(root / "job.json", ignored) &&
      !std::filesystem::exists(journal(), ignored))
    return write_file_atomically(root / "job.json", text_of(name, id));
  if (!found) return found.error();
  return error(Code::kInvalid,
               "{} belongs to another job \"{}\" ({}, not {}); choose another --dir", root.string(),
               name, *found, id);
}

}  // namespace surefoot
