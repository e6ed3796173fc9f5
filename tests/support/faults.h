#pragma once
// Disk faults for tests of durable writing: replaces the system calls that change files in this test program. They count calls and on
// request fail, are interrupted, write only a part, or kill the process (as in the crash tests of RocksDB and SQLite). Include in exactly
// one source file of a test program.

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string>

namespace galley::faults {

struct Plan {
  int64_t at = -1;           ///< Which call (from 0) is hit; -1: none.
  int error = 0;             ///< The errno it returns; 0 with kill == false: nothing happens.
  bool kill = false;         ///< SIGKILL before the call.
  std::string only;          ///< Counts only calls of this name; "": all.
  int64_t short_writes = 0;  ///< Largest number of bytes per write; 0: no limit.
  int interruptions = 0;     ///< Number of initial calls of open, write and pwrite that return EINTR.
};

inline Plan& plan() {
  static Plan current;
  return current;
}
inline std::atomic<int64_t>& calls() {
  static std::atomic<int64_t> count{0};
  return count;
}
inline void set(Plan next) {
  plan() = std::move(next);
  calls() = 0;
}

/// The errno to return; 0: continue with the call.
inline int hit(const char* name) {
  const Plan& current = plan();
  if (!current.only.empty() && current.only != name) return 0;
  if (calls()++ != current.at) return 0;
  if (current.kill) ::kill(::getpid(), SIGKILL);
  return current.error;
}
inline bool interrupted() {
  if (plan().interruptions <= 0) return false;
  --plan().interruptions;
  errno = EINTR;
  return true;
}

}  // namespace galley::faults

extern "C" {

__attribute__((used)) int open(const char* path, int flags, ...) {
  unsigned mode = 0;
  if (flags & O_CREAT) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, unsigned);
    va_end(list);
  }
  const bool writes = (flags & (O_WRONLY | O_RDWR)) != 0;
  if (writes && galley::faults::interrupted()) return -1;
  if (const int error = writes ? galley::faults::hit("open") : 0) return errno = error, -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

__attribute__((used)) ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (descriptor <= 2) return syscall(SYS_write, descriptor, data, bytes);
  if (galley::faults::interrupted()) return -1;
  if (const int error = galley::faults::hit("write")) return errno = error, -1;
  if (galley::faults::plan().short_writes > 0) bytes = std::min(bytes, static_cast<size_t>(galley::faults::plan().short_writes));
  return syscall(SYS_write, descriptor, data, bytes);
}

__attribute__((used)) ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  if (galley::faults::interrupted()) return -1;
  if (const int error = galley::faults::hit("pwrite")) return errno = error, -1;
  if (galley::faults::plan().short_writes > 0) bytes = std::min(bytes, static_cast<size_t>(galley::faults::plan().short_writes));
  return syscall(SYS_pwrite64, descriptor, data, bytes, offset);
}

__attribute__((used)) int fsync(int descriptor) {
  if (const int error = galley::faults::hit("fsync")) return errno = error, -1;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

__attribute__((used)) int mkdir(const char* path, mode_t mode) noexcept {
  if (const int error = galley::faults::hit("mkdir")) return errno = error, -1;
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

__attribute__((used)) int rename(const char* from, const char* to) noexcept {
  if (const int error = galley::faults::hit("rename")) return errno = error, -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

__attribute__((used)) int unlink(const char* path) noexcept {
  if (const int error = galley::faults::hit("unlink")) return errno = error, -1;
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

__attribute__((used)) int unlinkat(int folder, const char* path, int flags) noexcept {
  if (const int error = galley::faults::hit("unlinkat")) return errno = error, -1;
  return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

}  // extern "C"
