// A thin SQLite adapter for the journal: errors as Status, statements that clean up.
//
// One thread. Blocks on the disk and up to `kBusyTimeout` on another process's lock. The only files
// that include sqlite3.h are this one's sources.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace surefoot {

inline constexpr std::chrono::milliseconds kBusyTimeout{5000};

using SqlValue = std::variant<std::nullptr_t, std::int64_t, std::string>;  // nullptr: NULL

// The current row of a query; columns count from 0. NULL reads as 0 and "".
class SqlRow {
 public:
  explicit SqlRow(sqlite3_stmt* statement) : statement_(statement) {}
  [[nodiscard]] std::int64_t number(int column) const;
  [[nodiscard]] std::string text(int column) const;
  [[nodiscard]] bool is_null(int column) const;

 private:
  sqlite3_stmt* statement_;
};

class Database {
 public:
  enum class Mode { kCreate, kExisting };
  // kExisting of a file that may not be written opens it for reading.
  [[nodiscard]] static Result<Database> open(const std::filesystem::path& file, Mode mode);
  Database(Database&&) noexcept = default;
  Database& operator=(Database&&) noexcept = default;

  Status run(std::string_view sql, const std::vector<SqlValue>& values = {});
  Status query(std::string_view sql, const std::vector<SqlValue>& values,
               const std::function<void(const SqlRow&)>& each);
  [[nodiscard]] std::int64_t last_id() const;
  // All of `body` or nothing: an error of it, or of the commit, rolls back.
  Status transaction(const std::function<Status()>& body);

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  Database(sqlite3* handle, std::filesystem::path file) : handle_(handle), file_(std::move(file)) {}
  [[nodiscard]] Error failed(int code) const;

  std::unique_ptr<sqlite3, Close> handle_;
  std::filesystem::path file_;
};

}  // namespace surefoot
