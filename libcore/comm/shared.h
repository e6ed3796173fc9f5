#pragma once
// Ranks as processes of one machine with shared memory (POSIX, /dev/shm).

#include <memory>
#include <string>

#include "libcore/comm/direct.h"

namespace galley {

/// Memory that processes share, by a name such as "/galley-1234".
class SharedSegment {
 public:
  /// Creates and reserves the memory, zeroed. Throws Error (kResource) if /dev/shm has no room, with what to do.
  static std::shared_ptr<SharedSegment> create(const std::string& name, int64_t bytes);
  /// Maps the memory that another process created. Throws Error (kResource) if there is none.
  static std::shared_ptr<SharedSegment> open(const std::string& name);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Removes the name, so that nothing is left when the last process ends. The memory stays.
  void remove_name();

 private:
  SharedSegment(std::string name, int file, int64_t bytes);
  std::string name_;
  std::byte* data_ = nullptr;
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

}  // namespace galley
