#pragma once
// Files: reading, mapping, and writing that survives a crash. Every failure is an Error with the path, the system's reason and
// a cure: exit code 4 for what is read (missing, unreadable, damaged), 7 for what is written (no space, read-only, no folder).
// Interrupted system calls are repeated and short transfers continued.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// A file open for reading at any offset. Reads through it fail with an Error where the disk fails; reads through a mapping
/// would end the process (SIGBUS), so whoever checks a file for damage uses this one.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Bytes of the file when it was opened; 0 for a pipe.
  int64_t size() const { return size_; }
  bool is_regular() const { return regular_; }
  /// Fills `out` from `offset`; an Error where the file ends before.
  void read(int64_t offset, std::span<std::byte> out) const;
  /// Appends what is left (a pipe too) to `out`; an Error beyond `max_bytes`.
  void read_rest(std::string& out, int64_t max_bytes);
  int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool regular_ = false;
};

/// A regular file mapped read-only, unmapped with the last owner. A file that Galley replaces keeps its old contents here,
/// because it replaces by renaming.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), static_cast<size_t>(size_)}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  std::string path_;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// The whole file (or pipe) as text; an Error where it is longer than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 32);

/// How an OutputFile reaches its name.
enum class Publish {
  kRename,   ///< Written beside its name, renamed when complete: readers see the old contents or the new, never a part.
  kInPlace,  ///< Written under its name: for files of a new folder that is itself renamed when complete.
};

/// A file being written. Nothing counts until finish() has returned: only then is it on the disk, and without it the
/// destructor removes what was written. A failed fsync is a failed write and is never repeated: the kernel may have dropped the
/// pages, and a second fsync would report success (PostgreSQL's "fsyncgate").
class OutputFile {
 public:
  explicit OutputFile(std::string path, Publish publish = Publish::kRename);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Appends; not buffered.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Overwrites bytes written before, e.g. a header whose digests are known at the end.
  void rewrite(int64_t offset, std::string_view text);
  /// Another name in the same folder, for one that depends on the contents. kRename only.
  void set_path(std::string path) { path_ = std::move(path); }
  /// fsync, close, rename and fsync of the folder (the last two for kRename only).
  void finish();

 private:
  std::string path_;
  std::string written_path_;
  Publish publish_;
  int descriptor_ = -1;
};

/// Replaces or makes the file, atomically and durably.
void write_file(const std::string& path, std::string_view contents);

struct FolderEntry {
  std::string name;
  bool is_folder = false;  ///< Links are followed.
};
/// Entries of a folder without "." and "..", sorted by name (bytewise).
std::vector<FolderEntry> list_folder(const std::string& path);

bool file_exists(const std::string& path);  ///< Anything of that name: file, folder, pipe.
bool is_folder(const std::string& path);
/// The folder and those above it, durably; nothing where it exists.
void make_folders(const std::string& path);
/// fsync of the folder: makes renames, new and removed names in it durable.
void sync_folder(const std::string& path);
/// Renames (over a file, or over an empty folder) and makes it durable.
void rename_durably(const std::string& from, const std::string& to);
/// Removes a file or a folder with all below it; links are not followed. Nothing where it does not exist.
void remove_tree(const std::string& path);
/// The folder that holds `path` ("." for a bare name).
std::string parent_folder(const std::string& path);

/// A free name beside `path` for what is being written: PATH.tmp-<16 hexadecimal digits>.
std::string temporary_name(const std::string& path);
/// Whether a name has the form that temporary_name gives.
bool is_temporary_name(std::string_view name);
/// Removes what crashed writers left in a folder; returns how many. Call it where no other process writes there.
int remove_stale_temporaries(const std::string& folder);

}  // namespace galley
