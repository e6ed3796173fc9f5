#include "libcore/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "libcore/base/error.h"

namespace galley {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kIdDigits = 16;

std::string reason(int error) { return std::generic_category().message(error); }

std::string read_fix(const std::string& path, int error) {
  if (error == EACCES || error == EPERM) return "grant this user permission to read it";
  if (error != ENOENT) return "";
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_folder(path), ignored)) {
    names.push_back(entry.path().filename().string());
    if (names.size() >= 1000) break;
  }
  const std::string near = nearest(fs::path(path).filename().string(), names);
  if (!near.empty()) return cat("did you mean '", (fs::path(path).parent_path() / near).string(), "'?");
  return "check the path; a relative path starts at the current folder";
}

[[noreturn]] void fail_read(std::string_view action, const std::string& path, int error) {
  throw Error(ErrorCode::kInput, cat("cannot ", action, " ", path, ": ", reason(error))).at({.file = path}).suggest(read_fix(path, error));
}

std::string write_fix(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space, or write to another disk";
    case EROFS:
    case EACCES:
    case EPERM: return "choose a folder that this user may write to";
    case ENOTDIR: return "part of the path is a file, not a folder: choose another path";
    case ENOENT: return "create the folder first, or choose another path";
    case EFBIG: return "raise the limit on file sizes (ulimit -f)";
    case EIO: return "the disk reports an error: write to another disk";
    default: return "";
  }
}

[[noreturn]] void fail_write(std::string_view action, const std::string& path, int error) {
  throw Error(ErrorCode::kResource, cat("cannot ", action, " ", path, ": ", reason(error))).suggest(write_fix(error));
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int descriptor;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

/// Returns 0 or the error. Linux releases the descriptor even if close reports EINTR, so close is never repeated.
int close_once(int descriptor) {
  if (::close(descriptor) == 0 || errno == EINTR) return 0;
  return errno;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open_retrying(path_.c_str(), O_RDONLY);
  if (descriptor_ < 0) fail_read("read", path_, errno);
  struct stat status;
  if (::fstat(descriptor_, &status) != 0 || S_ISDIR(status.st_mode)) {
    const int error = S_ISDIR(status.st_mode) ? EISDIR : errno;
    ::close(descriptor_);
    fail_read("read", path_, error);
  }
  regular_ = S_ISREG(status.st_mode);
  size_ = regular_ ? status.st_size : 0;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(descriptor_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_read("read", path_, errno);
    GALLEY_CHECK_INPUT(count > 0, path_, " is truncated: it ends at byte ", offset + static_cast<int64_t>(done), ", ", out.size() - done,
                       " bytes too early");
    done += static_cast<size_t>(count);
  }
}

void InputFile::read_rest(std::string& out, int64_t max_bytes) {
  constexpr size_t kChunk = 64 * 1024;
  for (;;) {
    const size_t before = out.size();
    out.resize(before + std::max<size_t>(kChunk, before == 0 ? static_cast<size_t>(std::min(size_, max_bytes)) + 1 : 0));
    const ssize_t count = ::read(descriptor_, out.data() + before, out.size() - before);
    const int error = errno;
    out.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && error == EINTR) continue;
    if (count < 0) fail_read("read", path_, error);
    GALLEY_CHECK_INPUT(static_cast<int64_t>(out.size()) <= max_bytes, path_, " is larger than the limit of ", max_bytes, " bytes");
    if (count == 0) return;
  }
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const InputFile file(path);
  GALLEY_CHECK_INPUT(file.is_regular(), "cannot map ", path, ": it is not a regular file; save the data to a file first");
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  if (file.size() > 0) {
    void* data = ::mmap(nullptr, static_cast<size_t>(file.size()), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (data == MAP_FAILED) fail(ErrorCode::kResource, "cannot map ", path, " (", file.size(), " bytes): ", reason(errno));
    mapped->data_ = data;
    mapped->size_ = file.size();
  }
  return mapped;
}

void MappedFile::release() const {
  if (data_ != nullptr) ::madvise(data_, static_cast<size_t>(size_), MADV_DONTNEED);  // of a read-only mapping of a file: nothing is lost
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  std::string contents;
  InputFile(path).read_rest(contents, max_bytes);
  return contents;
}

namespace {

/// The process that holds a lock on this file by /proc/locks (man 5 proc); 0 if the system does not tell.
int64_t holder_of_lock(const struct stat& file) {
  std::ifstream locks("/proc/locks");
  const std::string inode = cat(":", file.st_ino, " ");
  for (std::string line; std::getline(locks, line);) {
    if (line.find("FLOCK") == std::string::npos || line.find(inode) == std::string::npos) continue;
    std::istringstream words(line);  // 1: FLOCK ADVISORY WRITE 4242 fe:00:1234 0 EOF
    std::string number, kind, advisory, access;
    int64_t process = 0;
    if (words >> number >> kind >> advisory >> access >> process) return process;
  }
  return 0;
}

}  // namespace

FolderLock::FolderLock(const std::string& path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) fail(ErrorCode::kResource, "cannot open ", path, ": ", reason(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  struct stat file = {};
  const int64_t holder = ::fstat(descriptor_, &file) == 0 ? holder_of_lock(file) : 0;
  ::close(descriptor_);
  throw Error(ErrorCode::kResource, cat("another process", holder > 0 ? cat(" (", holder, ")") : "", " is writing to ", path))
      .suggest("wait until it has finished, or name another folder");
}

FolderLock::~FolderLock() { ::close(descriptor_); }

std::string output_target(const std::string& path) {
  std::string target = path;
  struct stat status;
  for (int links = 0; ::lstat(target.c_str(), &status) == 0; ++links) {
    if (S_ISREG(status.st_mode)) break;
    if (S_ISDIR(status.st_mode)) fail_write("write", path, EISDIR);
    if (!S_ISLNK(status.st_mode)) {
      const std::string_view kind = S_ISFIFO(status.st_mode) ? "a pipe" : S_ISSOCK(status.st_mode) ? "a socket" : "a device";
      throw Error(ErrorCode::kResource, cat("cannot write ", path, ": it is ", kind, ", not a regular file"))
          .suggest("name a file: what is written appears complete, under its name, at the end");
    }
    constexpr int kMostLinks = 40;  // as Linux
    if (links == kMostLinks) fail_write("write", path, ELOOP);
    std::error_code error;
    const fs::path next = fs::read_symlink(target, error);
    if (error) fail_write("write", path, error.value());
    target = (fs::path(target).parent_path() / next).string();  // an absolute link replaces the folder
  }
  return target;
}

OutputFile::OutputFile(std::string path, Publish publish)
    : path_(std::move(path)),
      target_(output_target(path_)),  // rename would detect a folder only at the end, and would replace a device or a link
      written_path_(publish == Publish::kRename ? temporary_name(target_) : target_),
      publish_(publish) {
  // The system calls "a/b/" with a missing b not a directory.
  if (path_.ends_with('/')) {
    throw Error(ErrorCode::kResource, cat("cannot write into the folder ", path_, ": it does not exist")).suggest(write_fix(ENOENT));
  }
  descriptor_ = open_retrying(written_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (descriptor_ < 0) fail_write("write", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(written_path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  GALLEY_ASSERT(descriptor_ >= 0, "write after finish: " + path_);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_write("write", path_, count == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void OutputFile::set_path(std::string path) {
  path_ = std::move(path);
  target_ = output_target(path_);
}

void OutputFile::rewrite(int64_t offset, std::string_view text) {
  GALLEY_ASSERT(descriptor_ >= 0, "rewrite after finish: " + path_);
  while (!text.empty()) {
    const ssize_t count = ::pwrite(descriptor_, text.data(), text.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_write("write", path_, count == 0 ? ENOSPC : errno);
    text.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
}

void OutputFile::finish() {
  GALLEY_ASSERT(descriptor_ >= 0, "finish twice: " + path_);
  if (::fsync(descriptor_) != 0) fail_write("write", path_, errno);  // the destructor removes the file
  const int descriptor = descriptor_;
  descriptor_ = -1;
  int error = close_once(descriptor);
  if (error == 0 && publish_ == Publish::kRename && ::rename(written_path_.c_str(), target_.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(written_path_.c_str());
    fail_write("write", path_, error);
  }
  if (publish_ == Publish::kRename) sync_folder(parent_folder(target_));
}

void write_file(const std::string& path, std::string_view contents) {
  OutputFile file(path);
  file.write(contents);
  file.finish();
}

std::vector<FolderEntry> list_folder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (folder == nullptr) fail_read("list", path, errno);
  std::vector<FolderEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* found = ::readdir(folder.get());
    if (found == nullptr) {
      if (errno != 0) fail_read("list", path, errno);
      break;
    }
    const std::string name = found->d_name;
    if (name == "." || name == "..") continue;
    bool holds_files = found->d_type == DT_DIR;
    if (found->d_type == DT_LNK || found->d_type == DT_UNKNOWN) holds_files = is_folder(path + "/" + name);
    entries.push_back({name, holds_files});
  }
  std::sort(entries.begin(), entries.end(), [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

bool file_exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

bool is_folder(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

void make_folders(const std::string& path) {
  if (path.empty() || is_folder(path)) return;
  const std::string parent = parent_folder(path);
  if (parent != path) make_folders(parent);
  if (::mkdir(path.c_str(), 0777) != 0) {
    const int error = errno;
    if (error == EEXIST && is_folder(path)) return;
    fail_write("create the folder", path, error == EEXIST ? ENOTDIR : error);
  }
  sync_folder(parent);
}

void sync_folder(const std::string& path) {
  const int descriptor = open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) fail_write("sync the folder", path, errno);
  int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems (FUSE, SMB) do not support fsync of folders and return EINVAL; nothing more can be done there.
  if (error != 0 && error != EINVAL) fail_write("sync the folder", path, error);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_write(cat("rename ", from, " to"), to, errno);
  sync_folder(parent_folder(to));
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_write("remove", path, error.value());
}

std::string parent_folder(const std::string& path) {
  fs::path clean(path);
  if (!clean.has_filename()) clean = clean.parent_path();  // "a/b/" means b
  const std::string parent = clean.parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string temporary_name(const std::string& path) {
  uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id))
    fail(ErrorCode::kResource, "the system gave no random numbers: ", reason(errno));
  char digits[kIdDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(id));
  std::string base = path;
  while (base.size() > 1 && base.back() == '/') base.pop_back();
  return base + std::string(kTemporaryMark) + digits;
}

bool is_temporary_name(std::string_view name) {
  const size_t suffix = kTemporaryMark.size() + kIdDigits;
  if (name.size() <= suffix || name.substr(name.size() - suffix, kTemporaryMark.size()) != kTemporaryMark) return false;
  return name.substr(name.size() - kIdDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

int remove_stale_temporaries(const std::string& folder) {
  int removed = 0;
  for (const FolderEntry& entry : list_folder(folder)) {
    if (!is_temporary_name(entry.name)) continue;
    remove_tree(folder + "/" + entry.name);
    ++removed;
  }
  return removed;
}

}  // namespace galley
