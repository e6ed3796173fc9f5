#pragma once
// Allocations of this test program on all its threads: calls of malloc and its kin, which operator new calls too.

#include <cstdint>
#include <string>

namespace galley::test {

/// Can this build count? Not where a sanitizer has an allocator of its own, nor without glibc.
bool counts_allocations();

/// Counts from its construction until `stop`. One at a time.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount() { stop(); }
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;
  /// Ends the count and returns it.
  int64_t stop();
  /// The stacks of the first few, for addr2line.
  std::string text() const;
};

}  // namespace galley::test
