#include "tools/benchmark/database.h"

#include <sqlite3.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;  // version of the tables, stored in the database's user_version

constexpr const char* kTables =
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, time TEXT NOT NULL, tool TEXT, version TEXT, commit_id TEXT, host TEXT, isa TEXT, remarks "
    "TEXT, provenance TEXT NOT NULL);"
    "CREATE TABLE rows (run INTEGER NOT NULL REFERENCES runs(id), recipe TEXT, what TEXT, batch INTEGER, threads INTEGER, precision TEXT, "
    "memory_format TEXT, device TEXT,"
    " median_ms REAL, mean_ms REAL, min_ms REAL, p10_ms REAL, p90_ms REAL, p99_ms REAL, median_low_ms REAL, median_high_ms REAL, runs "
    "INTEGER, samples_per_s REAL,"
    " flops REAL, bytes REAL, peak_bytes INTEGER, peak_fraction REAL, bound TEXT, limit_fraction REAL, error TEXT, set_keys TEXT NOT NULL);"
    "CREATE INDEX rows_run ON rows(run);";

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* opened = nullptr;
    const int code = sqlite3_open(path.c_str(), &opened);
    database_.reset(opened);
    check(code);
    check(sqlite3_busy_timeout(opened, 10'000));  // another process may be adding rows
  }

  void run(const char* sql) { check(sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr)); }

  int64_t number(const char* sql) {
    const auto statement = prepare(sql);
    check(sqlite3_step(statement.get()), SQLITE_ROW);
    return sqlite3_column_int64(statement.get(), 0);
  }

  /// Inserts strings, numbers and nulls into the columns of a table.
  void insert(const std::string& table, const Json& values) {
    std::string names, marks;
    for (const auto& [name, value] : values.items()) {
      names += (names.empty() ? "" : ",") + name;
      marks += marks.empty() ? "?" : ",?";
    }
    const auto statement = prepare(cat("INSERT INTO ", table, "(", names, ") VALUES (", marks, ")").c_str());
    int column = 0;
    for (const auto& [name, value] : values.items()) {
      ++column;
      if (value.is_number_integer()) {
        check(sqlite3_bind_int64(statement.get(), column, value.get<int64_t>()));
      } else if (value.is_number()) {
        check(sqlite3_bind_double(statement.get(), column, value.get<double>()));
      } else if (value.is_string()) {
        const auto& text = value.get_ref<const std::string&>();
        check(sqlite3_bind_text(statement.get(), column, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
      }
    }
    check(sqlite3_step(statement.get()), SQLITE_DONE);
  }

  int64_t last_id() const { return sqlite3_last_insert_rowid(database_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  std::unique_ptr<sqlite3_stmt, Close> prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    check(sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr));
    return std::unique_ptr<sqlite3_stmt, Close>(statement);
  }

  void check(int code, int wanted = SQLITE_OK) const {
    if (code == wanted) return;
    const std::string reason = database_ != nullptr ? sqlite3_errmsg(database_.get()) : sqlite3_errstr(code);
    const int kind = code & 0xff;  // the low byte of extended codes is the primary code
    if (kind == SQLITE_NOTADB || kind == SQLITE_CORRUPT || kind == SQLITE_ERROR) {
      throw Error(ErrorCode::kInput, cat(path_, " is not a database of galley-benchmark: ", reason))
          .suggest("use another file for --sqlite");
    }
    throw Error(ErrorCode::kResource, cat("cannot write the database ", path_, ": ", reason))
        .suggest("check that the folder exists and is writable, that the disk is not full, and that no other program is writing");
  }

  std::string path_;
  std::unique_ptr<sqlite3, Close> database_;
};

/// Begins a transaction and creates the tables if the database is new.
void begin(Database& database, const std::string& path) {
  database.run("BEGIN IMMEDIATE");
  const int64_t version = database.number("PRAGMA user_version");
  if (version == 0) {
    database.run(kTables);
    database.run(cat("PRAGMA user_version = ", kVersion).c_str());
  } else if (version != kVersion) {
    throw Error(ErrorCode::kInput,
                cat(path, ": its tables have version ", version, ", but this version of Galley writes version ", kVersion))
        .suggest("use another file for --sqlite");
  }
}

}  // namespace

void check_database(const std::string& path) {
  Database database(path);
  begin(database, path);
  database.run("COMMIT");
}

void add_to_database(const std::string& path, const BenchmarkResults& results, const Json& made) {
  Database database(path);
  begin(database, path);
  std::string remarks;
  for (const std::string& remark : results.remarks) remarks += (remarks.empty() ? "" : "\n") + remark;
  database.insert("runs", {{"time", made["time"]},
                           {"tool", made["tool"]},
                           {"version", made["version"]},
                           {"commit_id", made["commit"]},
                           {"host", made["host"]},
                           {"isa", made["isa"]},
                           {"remarks", remarks},
                           {"provenance", made.dump()}});
  const int64_t run = database.last_id();
  for (const BenchmarkRow& row : results.rows) {
    Json json = row_json(row);
    Json values{{"run", run}};
    for (const char* key :
         {"recipe",        "what",   "batch",  "threads",    "precision",     "memory_format", "device",         "median_ms",
          "mean_ms",       "min_ms", "p10_ms", "p90_ms",     "p99_ms",        "median_low_ms", "median_high_ms", "runs",
          "samples_per_s", "flops",  "bytes",  "peak_bytes", "peak_fraction", "bound",         "limit_fraction", "error"}) {
      values[key] = json.contains(key) ? json[key] : Json();
    }
    values["set_keys"] = json["set"].dump();
    database.insert("rows", values);
  }
  database.run("COMMIT");
}

}  // namespace galley::tools
