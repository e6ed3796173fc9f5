#pragma once
// The job that mpirun or srun has started: ranks as processes on one or several machines.

#include <memory>
#include <optional>
#include <string>

#include "libcore/comm/direct.h"
#include "libcore/comm/messages.h"

namespace galley {

/// What a launcher says in the environment, before MPI starts.
struct LaunchedRank {
  int rank = 0, size = 1;
  int local_rank = 0;    // on this machine; 0 if that is not known
  bool by_srun = false;  // else mpirun
};
/// Set if mpirun or srun has started the process as one of several ranks (Open MPI's, PMIx's and Slurm's variables).
std::optional<LaunchedRank> launched_rank();

class SharedSegment;

struct MpiOptions {
  DirectOptions direct;
  MessageOptions messages;
  bool shared_memory = true;  ///< false: messages also between ranks of one machine.
};

/// MPI between its start and its end. One object in a process. For tests: with GALLEY_RANKS_PER_NODE=2 in the environment, ranks 0 and 1,
/// 2 and 3, and so on behave as if each pair had a machine.
class MpiJob {
 public:
  /// Starts MPI. Throws Error (kResource) that says what is missing if Open MPI is not installed, or cannot be used by several threads.
  MpiJob();
  /// Ends MPI; waits for all ranks to do so.
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// "Open MPI v4.1.4"
  std::string version() const;
  /// Communicator::per_machine. All ranks must call it.
  int per_machine();

  /// Messages that are apart from those of other objects.
  std::unique_ptr<PointToPoint> messages();
  /// The communicator of all ranks: shared memory within a machine, if there is room and all machines have as many consecutive ranks;
  /// messages between machines, else between all ranks. The job must outlive it.
  std::unique_ptr<Communicator> communicator(const MpiOptions& options = {});

  /// Ends all ranks at once; mpirun exits with this code.
  [[noreturn]] void abort(int code);

 private:
  std::shared_ptr<SharedSegment> share_segment(Communicator& ranks, std::string& name) const;

  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

}  // namespace galley
