#pragma once
// A tool as one of several ranks that mpirun or srun has started: a supervising parent for each rank, so that the death of a rank ends the
// job with exit code 8 and is named; a heartbeat, so that a rank that is stuck is named too; the communicator.

#include <memory>
#include <string>

#include "libcore/comm/mpi.h"

namespace galley::tools {

/// Under a launcher with several ranks: forks. The parent waits for the child, says what ended it, and never returns. Must be called before
/// the process has threads. Returns in the child, and in a process without ranks.
void supervise(const std::string& tool, bool json);

/// Whether a launcher has started this process as one of several ranks.
bool is_ranked();
/// The rank of this thread (SimulatedRank), else of this process; 0 without ranks.
int own_rank();
inline constexpr int kMostSimulatedRanks = 1024;  ///< Of --simulate-ranks.
/// While an object lives, the calling thread is a rank of ranks that are threads.
class SimulatedRank {
 public:
  explicit SimulatedRank(int rank);
  ~SimulatedRank();
  SimulatedRank(const SimulatedRank&) = delete;
  SimulatedRank& operator=(const SimulatedRank&) = delete;
};

/// The messages of ranks other than 0 are kept, and written to FOLDER/rank-0003.log as soon as the folder is known.
bool keep_rank_message(const std::string& message);
void log_ranks_to(const std::string& folder);

/// The ranks of the job. Opening starts MPI and the heartbeat.
class Ranks {
 public:
  /// nullptr without ranks. Opened at the first call; throws Error (kResource) if Open MPI is missing.
  static Ranks* open();
  /// Ends MPI, if it was started. All ranks call it.
  static void close();

  Communicator& communicator() { return *communicator_; }
  int size() const { return communicator_->size(); }
  /// Cores for each rank: of its affinity mask, divided by the ranks of this machine that share it.
  int cores() const { return cores_; }
  /// What starts as many ranks: "mpirun -np 4" or "srun -n 4 --mpi=pmix".
  std::string launcher() const;
  /// "4 ranks, shared memory, Open MPI v4.1.4, 1 core each"
  std::string str() const;

 private:
  Ranks();
  int cores_of_rank();

  std::unique_ptr<MpiJob> job_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<class RankHeartbeat> heartbeat_;
  int cores_ = 1;
  friend struct std::default_delete<Ranks>;
};

/// Before a rank other than 0 reports an error: waits a moment for the launcher to end the job because of another rank's error, which most
/// often is the same and was reported. Returns whether this rank has to report.
bool must_report_error();
/// Tells the supervising parent that the tool ends this process with the code; another end of a rank is a fault.
void announce_end(int code);
/// Ends the process after an error without waiting for other ranks; mpirun ends them.
[[noreturn]] void leave(int code);

}  // namespace galley::tools
