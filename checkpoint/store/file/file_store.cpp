#include "checkpoint/store/file/file_store.h"

#include <algorithm>
#include <cerrno>

#include "common/file.h"
#include "common/ids.h"

namespace surefoot {
namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr Duration kTemporaryAge = std::chrono::minutes(10);
constexpr int kMaxDepth = 8;  // of folders below the root; ours have two

std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

Error link_error(std::int64_t outcome, const std::string& path) {
  const int number = static_cast<int>(-outcome);
  if (number == EPERM || number == EOPNOTSUPP || number == ENOSYS || number == EMLINK) {
    return error(Code::kInvalid,
                 "cannot link {}: {}; the file system there has no hard links, which publishing "
                 "needs: set checkpoint.to to another",
                 path, errno_text(number));
  }
  Error failed = file_error(outcome, "cannot link", path);
  // The request may have reached a file server though its answer did not reach us.
  if (failed.code == Code::kRetry) failed.code = Code::kOutcomeUnknown;
  return failed;
}

Status in_time(Time deadline, const std::string& path) {
  if (now() < deadline) return {};
  return error(Code::kRetry, "deadline passed while working on {}", path);
}

// Closes when it goes out of scope.
class OpenFile {
 public:
  OpenFile(FileOps& ops, std::int64_t fd) : ops_(ops), fd_(static_cast<int>(fd)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) ops_.close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  FileOps& ops_;
  int fd_;
};

// Makes nothing and removes nothing.
class ReadOnlyOps : public PosixFileOps {
 public:
  std::int64_t open(const std::string& path, Open how) override {
    return how == Open::kCreate ? -EROFS : PosixFileOps::open(path, how);
  }
  std::int64_t link(const std::string&, const std::string&) override { return -EROFS; }
  std::int64_t remove(const std::string&) override { return -EROFS; }
  std::int64_t make_folder(const std::string&) override { return -EROFS; }
};

std::string plain_absolute(const std::filesystem::path& root) {
  std::string text = std::filesystem::absolute(root).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::open(const std::filesystem::path& root,
                                                   FileOps& ops) {
  std::unique_ptr<FileStore> store(new FileStore(plain_absolute(root), ops));
  SUREFOOT_TRY(store->make_folders(store->root_));
  store->remove_old_temporaries(store->root_, 0);
  return store;
}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::filesystem::path& root,
                                                   bool read_only) {
  static PosixFileOps posix;
  static ReadOnlyOps looking;
  if (!read_only) return open(root, posix);
  std::unique_ptr<FileStore> store(new FileStore(plain_absolute(root), looking));
  std::vector<FolderEntry> entries;
  const std::int64_t listed = looking.list(store->root_, entries);
  if (listed < 0) return file_error(listed, "cannot read", store->root_);
  return store;
}

FileStore::~FileStore() {
  forget_open_file();
}

std::string FileStore::url() const {
  return "file://" + root_;
}

Status FileStore::make_folders(const std::string& folder) {
  const std::int64_t made = ops_.make_folder(folder);
  if (made == -EEXIST) return {};
  if (made == -ENOENT && folder.find('/') != folder.rfind('/')) {
    const std::string above = folder_of(folder);
    SUREFOOT_TRY(make_folders(above));
    const std::int64_t again = ops_.make_folder(folder);
    if (again < 0 && again != -EEXIST) return file_error(again, "cannot make", folder);
    return sync_folder(above);
  }
  if (made < 0) return file_error(made, "cannot make", folder);
  return sync_folder(folder_of(folder));
}

Status FileStore::sync_folder(const std::string& folder) {
  const OpenFile file(ops_, ops_.open(folder, FileOps::Open::kFolder));
  if (file.get() < 0) return file_error(file.get(), "cannot open", folder);
  const std::int64_t synced = ops_.sync(file.get());
  if (synced < 0) return file_error(synced, "cannot sync", folder);
  return {};
}

// Those above too: whoever made them may have died before it synced them.
Status FileStore::sync_folders(std::string folder) {
  for (;;) {
    SUREFOOT_TRY(sync_folder(folder));
    if (folder.size() <= root_.size()) return {};
    folder = folder_of(folder);
  }
}

// Errors name the object, whose name is the same at every try.
Status FileStore::write_temporary(const std::string& temporary, const std::string& path,
                                  std::int64_t bytes, const ByteSource& source, Time deadline) {
  const OpenFile file(ops_, ops_.open(temporary, FileOps::Open::kCreate));
  if (file.get() < 0) return file_error(file.get(), "cannot create", path);
  std::int64_t written = 0;
  for (;;) {
    SUREFOOT_TRY(in_time(deadline, path));
    SUREFOOT_ASSIGN(std::span<const std::byte> piece, source());
    if (piece.empty()) break;
    written += static_cast<std::int64_t>(piece.size());
    while (!piece.empty()) {
      const std::int64_t count = ops_.write(file.get(), piece);
      if (count < 0) return file_error(count, "cannot write", path);
      if (count == 0) return error(Code::kRetry, "cannot write {}: nothing is taken", path);
      piece = piece.subspan(static_cast<std::size_t>(count));
    }
  }
  SUREFOOT_CHECK(written == bytes);
  const std::int64_t synced = ops_.sync(file.get());
  if (synced < 0) return file_error(synced, "cannot sync", path);
  return {};
}

Status FileStore::put_if_absent(const std::string& name, std::int64_t bytes,
                                const ByteSource& source, Time deadline) {
  const std::string path = root_ + "/" + name;
  const std::string folder = folder_of(path);
  // Only link() decides; but what is seen to be there need not be written once more to find out.
  if (const OpenFile there(ops_, ops_.open(path, FileOps::Open::kRead)); there.get() >= 0)
    return error(Code::kExists, "{} is there already", path);
  SUREFOOT_TRY(make_folders(folder));
  const std::string temporary = folder + "/" + std::string(kTemporary) + make_job_id();
  if (auto wrote = write_temporary(temporary, path, bytes, source, deadline); !wrote) {
    (void)ops_.remove(temporary);  // what cannot be removed now is found by a later open()
    Error failed = std::move(wrote).error();
    // Somebody removed the emptied folder just now: it is there again at the next try.
    if (failed.code == Code::kNotFound) failed.code = Code::kRetry;
    return failed;
  }
  const std::int64_t linked = ops_.link(temporary, path);
  (void)ops_.remove(temporary);
  if (linked == -EEXIST) return error(Code::kExists, "{} is there already", path);
  if (linked < 0) return link_error(linked, path);
  if (auto synced = sync_folders(folder); !synced) {
    return error(Code::kOutcomeUnknown, "{} was written but may not survive a crash: {}", path,
                 synced.error().message);
  }
  return {};
}

Status FileStore::read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
                       Time deadline) {
  const std::string path = root_ + "/" + name;
  SUREFOOT_TRY(in_time(deadline, path));
  // The beginning is always read anew from the disk; later pieces through the same descriptor, for
  // read-ahead.
  if (open_fd_ < 0 || open_name_ != name || offset == 0) {
    forget_open_file();
    const std::int64_t fd = ops_.open(path, FileOps::Open::kRead);
    if (fd < 0) return file_error(fd, "cannot open", path);
    open_fd_ = static_cast<int>(fd);
    open_name_ = name;
  }
  while (!into.empty()) {
    const std::int64_t count = ops_.read(open_fd_, offset, into);
    if (count <= 0) forget_open_file();
    if (count < 0) return file_error(count, "cannot read", path);
    if (count == 0) return error(Code::kCorrupt, "{} ends at byte {}", path, offset);
    offset += count;
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status FileStore::list_folder(const std::string& folder, const std::string& prefix, int depth,
                              std::vector<ObjectInfo>& into) {
  std::vector<FolderEntry> entries;
  const std::string path = folder.empty() ? root_ : root_ + "/" + folder;
  const std::int64_t listed = ops_.list(path, entries);
  if (listed == -ENOENT) return {};  // nobody has put anything there, or it was removed just now
  if (listed < 0) return file_error(listed, "cannot list", path);
  for (const FolderEntry& entry : entries) {
    const std::string name = folder.empty() ? entry.name : folder + "/" + entry.name;
    if (entry.name.starts_with(kTemporary)) continue;
    if (entry.folder) {
      // Either may be the longer one.
      const std::size_t common = std::min(name.size(), prefix.size());
      if (depth < kMaxDepth && name.compare(0, common, prefix, 0, common) == 0)
        SUREFOOT_TRY(list_folder(name, prefix, depth + 1, into));
    } else if (name.starts_with(prefix)) {
      into.push_back({name, entry.bytes, entry.age});
    }
  }
  return {};
}

Result<std::vector<ObjectInfo>> FileStore::list(const std::string& prefix, Time deadline) {
  SUREFOOT_TRY(in_time(deadline, root_));
  const auto slash = prefix.rfind('/');
  std::vector<ObjectInfo> objects;
  SUREFOOT_TRY(
      list_folder(slash == std::string::npos ? "" : prefix.substr(0, slash), prefix, 0, objects));
  std::sort(objects.begin(), objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  return objects;
}

Status FileStore::remove(const std::string& name, Time deadline) {
  const std::string path = root_ + "/" + name;
  SUREFOOT_TRY(in_time(deadline, path));
  if (open_name_ == name) forget_open_file();
  const std::int64_t removed = ops_.remove(path);
  if (removed < 0 && removed != -ENOENT) return file_error(removed, "cannot remove", path);
  const std::string folder = folder_of(path);
  // Also when it was gone already: whoever removed it may have died before the sync, and it would
  // come back.
  if (auto synced = sync_folder(folder); !synced) {
    if (synced.error().code == Code::kNotFound) return {};
    return error(Code::kOutcomeUnknown, "{} is removed but may come back after a crash: {}", path,
                 synced.error().message);
  }
  // An emptied folder goes too; where something is left in it this does nothing.
  if (folder.size() > root_.size()) (void)ops_.remove(folder);
  return {};
}

void FileStore::remove_old_temporaries(const std::string& folder, int depth) {
  std::vector<FolderEntry> entries;
  if (ops_.list(folder, entries) < 0) return;
  for (const FolderEntry& entry : entries) {
    const std::string path = folder + "/" + entry.name;
    if (entry.folder && depth < kMaxDepth) remove_old_temporaries(path, depth + 1);
    const bool old = entry.age >= kTemporaryAge;
    if (!entry.folder && old && entry.name.starts_with(kTemporary)) (void)ops_.remove(path);
  }
}

void FileStore::forget_open_file() {
  if (open_fd_ >= 0) ops_.close(open_fd_);
  open_fd_ = -1;
  open_name_.clear();
}

}  // namespace surefoot
