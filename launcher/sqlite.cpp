#include "launcher/sqlite.h"

#include <sqlite3.h>

namespace surefoot {
namespace {

Code reaction(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Code::kCorrupt;
    case SQLITE_FULL:
      return Code::kNoSpace;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
      return Code::kRetry;
    default:
      return Code::kInvalid;
  }
}

Error sql_error(const std::filesystem::path& file, int code, const char* message) {
  const Code as = reaction(code);
  return error(as, "{}: {}{}", file.string(), message,
               as == Code::kCorrupt ? "; move this file away to start the job's books anew "
                                      "(snapshots and checkpoints are not in it)"
                                    : "");
}

}  // namespace

std::int64_t SqlRow::number(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string SqlRow::text(int column) const {
  const auto* bytes = sqlite3_column_text(statement_, column);
  if (bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(bytes),
          static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

bool SqlRow::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

void Database::Close::operator()(sqlite3* handle) const {
  sqlite3_close_v2(handle);
}

Result<Database> Database::open(const std::filesystem::path& file, Mode mode) {
  const int flags = SQLITE_OPEN_READWRITE | (mode == Mode::kCreate ? SQLITE_OPEN_CREATE : 0);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &handle, flags, nullptr);
  if (code != SQLITE_OK) {
    const Error failure =
        sql_error(file, code, handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(code));
    sqlite3_close_v2(handle);
    return failure;
  }
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, static_cast<int>(kBusyTimeout.count()));
  return Database(handle, file);
}

Error Database::failed(int code) const {
  return sql_error(file_, code, sqlite3_errmsg(handle_.get()));
}

Status Database::run(std::string_view sql, const std::vector<SqlValue>& values) {
  return query(sql, values, [](const SqlRow&) {});
}

Status Database::query(std::string_view sql, const std::vector<SqlValue>& values,
                       const std::function<void(const SqlRow&)>& each) {
  sqlite3_stmt* raw = nullptr;
  int code =
      sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &raw, nullptr);
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
  for (std::size_t i = 0; i < values.size() && code == SQLITE_OK; ++i) {
    const int place = static_cast<int>(i) + 1;
    if (const auto* number = std::get_if<std::int64_t>(&values[i])) {
      code = sqlite3_bind_int64(raw, place, *number);
    } else if (const auto* text = std::get_if<std::string>(&values[i])) {
      code = sqlite3_bind_text(raw, place, text->data(), static_cast<int>(text->size()),
                               SQLITE_STATIC);
    }  // else NULL, as what is not bound
  }
  if (code != SQLITE_OK) return failed(code);
  while ((code = sqlite3_step(raw)) == SQLITE_ROW) each(SqlRow(raw));
  if (code != SQLITE_DONE) return failed(code);
  return {};
}

std::int64_t Database::last_id() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

Status Database::transaction(const std::function<Status()>& body) {
  SUREFOOT_TRY(run("BEGIN IMMEDIATE"));
  Status outcome = body();
  if (outcome) outcome = run("COMMIT");
  // Rolls back what a failed COMMIT left open; after some errors SQLite has done so itself, and
  // this one fails.
  if (!outcome && sqlite3_get_autocommit(handle_.get()) == 0) (void)run("ROLLBACK");
  return outcome;
}

}  // namespace surefoot
