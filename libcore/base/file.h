#pragma once
// Reading, mapping and durable writing of files. Every failure throws Error with the path, the system's reason and a suggested fix: exit
// code 4 for reading (missing, unreadable, damaged), 7 for writing (no space, read-only, no folder). Interrupted system calls are repeated
// and short transfers are continued.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// A file open for reading at any offset. A disk error throws Error here, but ends the process with SIGBUS in a mapping; code that checks a
/// file for damage therefore uses this class.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Size in bytes when the file was opened; 0 for a pipe.
  int64_t size() const { return size_; }
  bool is_regular() const { return regular_; }
  /// Fills `out` from `offset`; throws Error if the file ends earlier.
  void read(int64_t offset, std::span<std::byte> out) const;
  /// Appends the rest of the file or pipe to `out`; throws Error if that makes `out` longer than `max_bytes`.
  void read_rest(std::string& out, int64_t max_bytes);
  int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool regular_ = false;
};

/// A regular file mapped read-only until its last owner releases it. Galley replaces files by renaming, so a mapping keeps the old
/// contents.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), static_cast<size_t>(size_)}; }
  const std::string& path() const { return path_; }
  /// Takes the pages that were read out of this process's memory. Reading them again maps them again.
  void release() const;

 private:
  MappedFile() = default;
  std::string path_;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// Reads the whole file or pipe; throws Error if it is longer than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 32);

/// A folder that no other process may change while this object lives. The lock ends with the process, however that ends. File systems
/// without locks (some network file systems) give none.
class FolderLock {
 public:
  /// Throws Error (kResource) if another process holds the lock, and names that process where the system tells it.
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// When an OutputFile appears under its name.
enum class Publish {
  kRename,   ///< Written to a temporary name, renamed when complete: readers see the old or the new contents, never a part.
  kInPlace,  ///< Written directly under its name: for files in a new folder that is itself renamed when complete.
};

/// The name under which writing to `path` puts a file: symbolic links are followed, so that the file that a link names is replaced, not
/// the link. Throws Error (kResource) if something else than a regular file has that name: a folder, a device, a pipe or a socket.
std::string output_target(const std::string& path);

/// A file being written. It is on the disk only after finish() has returned; without finish() the destructor removes it. A failed fsync is
/// an error and is never repeated: the kernel may have dropped the pages, and a second fsync would report success (PostgreSQL's
/// "fsyncgate").
class OutputFile {
 public:
  explicit OutputFile(std::string path, Publish publish = Publish::kRename);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Appends without buffering.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Overwrites bytes written earlier, e.g. a header whose digests are known only at the end.
  void rewrite(int64_t offset, std::string_view text);
  /// Changes the final name within the same folder, for a name that depends on the contents. kRename only.
  void set_path(std::string path);
  /// Calls fsync and close; with kRename, also renames the file and syncs the folder.
  void finish();

 private:
  std::string path_;
  std::string target_;  // output_target of it
  std::string written_path_;
  Publish publish_;
  int descriptor_ = -1;
};

/// Creates or replaces a file, atomically and durably.
void write_file(const std::string& path, std::string_view contents);

struct FolderEntry {
  std::string name;
  bool is_folder = false;  ///< Links are followed.
};
/// The entries of a folder without "." and "..", sorted bytewise by name.
std::vector<FolderEntry> list_folder(const std::string& path);

bool file_exists(const std::string& path);  ///< True for a file, folder, pipe or anything else of that name.
bool is_folder(const std::string& path);
/// Creates the folder and its missing ancestors, durably; does nothing if it exists.
void make_folders(const std::string& path);
/// Calls fsync on the folder, which makes renames, new names and removed names in it durable.
void sync_folder(const std::string& path);
/// Renames durably; replaces a file or an empty folder.
void rename_durably(const std::string& from, const std::string& to);
/// Removes a file, or a folder and its contents, without following links; does nothing if it does not exist.
void remove_tree(const std::string& path);
/// The folder that contains `path` ("." for a name without a folder).
std::string parent_folder(const std::string& path);

/// A new name next to `path` for a file that is being written: PATH.tmp-<16 hexadecimal digits>.
std::string temporary_name(const std::string& path);
/// Whether a name has the form of temporary_name's results.
bool is_temporary_name(std::string_view name);
/// Removes temporary files that crashed writers left in a folder and returns their number. No other process may be writing there.
int remove_stale_temporaries(const std::string& folder);

}  // namespace galley
