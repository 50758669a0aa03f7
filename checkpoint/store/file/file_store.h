// A store in a folder of a (local or shared) POSIX file system.
//
// put_if_absent: temporary name in the same folder, write, fsync, link(2) to the real name, remove
// the temporary, fsync of the folder and of those above it up to the root. So an object appears
// whole or not at all, survives a crash of the machine once put returns, and two writers cannot
// both win. A crash leaves at worst a temporary (".tmp-..."), which is hidden from list() and
// removed by a later open(). Reading goes past the page cache (posix_fadvise), so that a
// verification sees the disk.
//
// Errors: kNoSpace disk full or quota; kInvalid read-only, no permission, no hard links there;
// kRetry other I/O errors. Messages name the path.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/store.h"
#include "checkpoint/store/file/file_ops.h"

namespace surefoot {

class FileStore : public Store {
 public:
  // `root` is made when it is missing, with parents. Temporaries untouched for ten minutes are
  // removed. `ops` must outlive the store.
  [[nodiscard]] static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& root,
                                                               FileOps& ops);
  // With the real operations. `read_only`: makes and removes nothing; kNotFound when `root` is not
  // there (for verbs that only read).
  [[nodiscard]] static Result<std::unique_ptr<FileStore>> open(const std::filesystem::path& root,
                                                               bool read_only = false);
  ~FileStore() override;

  Status put_if_absent(const std::string& name, std::int64_t bytes, const ByteSource& source,
                       Time deadline) override;
  Status read(const std::string& name, std::int64_t offset, std::span<std::byte> into,
              Time deadline) override;
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, Time deadline) override;
  Status remove(const std::string& name, Time deadline) override;
  [[nodiscard]] std::string url() const override;

 private:
  FileStore(std::string root, FileOps& ops) : root_(std::move(root)), ops_(ops) {}
  Status make_folders(const std::string& folder);
  Status sync_folder(const std::string& folder);
  Status sync_folders(std::string folder);
  Status write_temporary(const std::string& temporary, const std::string& path, std::int64_t bytes,
                         const ByteSource& source, Time deadline);
  Status list_folder(const std::string& folder, const std::string& prefix, int depth,
                     std::vector<ObjectInfo>& into);
  void remove_old_temporaries(const std::string& folder, int depth);
  void forget_open_file();

  std::string root_;  // absolute, without '/' at the end
  FileOps& ops_;
  // The object being read piece by piece stays open between calls.
  std::string open_name_;
  int open_fd_ = -1;
};

}  // namespace surefoot
