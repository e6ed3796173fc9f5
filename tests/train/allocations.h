#pragma once
// Counts allocations of this test program on all threads: calls of malloc and related functions, which operator new also uses.

#include <cstdint>
#include <string>

namespace galley::test {

/// Whether this build can count: not with a sanitizer that replaces the allocator, and not without glibc.
bool counts_allocations();

/// Counts from its construction until `stop`. Only one may exist at a time.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount() { stop(); }
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;
  /// Ends the count and returns it.
  int64_t stop();
  /// The most bytes in use at a time since the construction, beyond those that were in use then.
  int64_t peak_bytes() const;
  /// The stacks of the first few allocations, for addr2line.
  std::string text() const;
};

}  // namespace galley::test
