#pragma once
// Ranks as processes of one machine with shared memory (POSIX, /dev/shm).

#include <memory>
#include <string>
#include <string_view>

#include "libcore/comm/direct.h"

namespace galley {

/// Communicator::transport() of ranks that share memory.
inline constexpr std::string_view kSharedMemory = "shared memory";

inline constexpr size_t kHugePage = size_t{2} << 20;
/// Asks the system to move memory to huge pages: those that are all in it. Slow, for memory that is used for long.
void use_huge_pages(std::byte* begin, int64_t bytes);

/// Memory that processes share, by a name such as "/galley-1234".
class SharedSegment {
 public:
  /// Creates the memory, zeroed, and reserves all of it; else processes reserve their parts before they use them. Throws Error (kResource)
  /// if /dev/shm has no room, with what to do.
  static std::shared_ptr<SharedSegment> create(const std::string& name, int64_t bytes, bool reserves = true);
  /// Maps the memory that another process created. Throws Error (kResource) if there is none.
  static std::shared_ptr<SharedSegment> open(const std::string& name);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// Reserves a part of the memory. Throws as `create`.
  void reserve(int64_t begin, int64_t bytes);

  std::byte* data() const { return data_; }  ///< A multiple of kHugePage.
  int64_t bytes() const { return bytes_; }
  /// Removes the name, so that nothing is left when the last process ends. The memory stays.
  void remove_name();

 private:
  SharedSegment(std::string name, int file, int64_t bytes);
  std::string name_;
  int file_;
  std::byte* data_ = nullptr;
  void* range_ = nullptr;  // of addresses, with room to align data_
  int64_t bytes_ = 0;
  bool named_ = false;
};

/// Size of the segment through which that many ranks communicate, without the arrays that `allocate` places in segments of their own.
int64_t shared_board_bytes(int ranks);
/// Prepares a new segment for that many ranks.
void create_shared_board(SharedSegment& segment, int ranks);
/// The communicator of a rank. All ranks pass the same segment, which `create_shared_board` prepared before. `name` is the segment's;
/// `allocate` derives the names of further segments from it.
std::unique_ptr<Communicator> shared_communicator(std::shared_ptr<SharedSegment> segment, const std::string& name, int rank,
                                                  const DirectOptions& options = {});

/// Two communicators of a rank, for two threads: the one that computes, and one beside it. Both reach what is allocated through the first.
struct SharedPair {
  std::unique_ptr<DirectCommunicator> first, second;
};
int64_t shared_pair_bytes(int ranks);
void create_shared_pair(SharedSegment& segment, int ranks);
SharedPair shared_pair(std::shared_ptr<SharedSegment> segment, const std::string& name, int rank, const DirectOptions& options = {});

}  // namespace galley
