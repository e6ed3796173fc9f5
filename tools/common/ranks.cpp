#include "tools/common/ranks.h"

#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "libcore/base/cores.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/comm/heartbeat.h"
#include "tools/common/signals.h"

namespace galley::tools {

/// The heartbeat and what it does on a fault.
class RankHeartbeat {
 public:
  RankHeartbeat(MpiJob& job, const Position& position)
      : beat_(job.messages(), position, [&job](const std::string& fault) {
          std::fprintf(stderr, "galley: error: %s\n", fault.c_str());
          announce_end(static_cast<int>(ErrorCode::kWorker));
          job.abort(static_cast<int>(ErrorCode::kWorker));
        }) {}

 private:
  Heartbeat beat_;
};

namespace {

/// Shared with the supervising parent.
struct Page {
  Position position;
  std::atomic<int> code{-1};  // with which the tool is about to end
};

std::optional<LaunchedRank> launched;
Page* page = nullptr;
std::unique_ptr<Ranks> ranks;
thread_local int simulated_rank = -1;

/// Messages of ranks other than 0, and their files.
struct RankLog {
  std::mutex mutex;
  std::string folder;
  std::map<int, std::string> kept;

  void write(int rank) {
    std::string number = std::to_string(rank);
    number.insert(0, number.size() < 4 ? 4 - number.size() : 0, '0');
    std::ofstream(folder + "/rank-" + number + ".log", std::ios::app) << kept[rank] << std::flush;
    kept[rank].clear();
  }
};
RankLog& rank_log() {
  static RankLog log;
  return log;
}

/// Whether the tool ended the rank: it said so before (announce_end), or a second signal ended it at once.
bool is_tool_end(int code) { return code == page->code || code == 128 + SIGINT || code == 128 + SIGTERM; }

volatile std::sig_atomic_t launcher_ends_job = 0;
void on_end_of_job(int) { launcher_ends_job = 1; }

void say(bool json, const std::string& message) {
  if (json) {
    const nlohmann::ordered_json error{
        {"error", {{"code", 8}, {"file", ""}, {"line", 0}, {"col", 0}, {"key", ""}, {"message", message}, {"suggestion", ""}}}};
    std::fprintf(stderr, "%s\n", error.dump().c_str());
  } else {
    std::fprintf(stderr, "galley: error: %s\n", message.c_str());
  }
}

/// srun kills all ranks without notice when one of them was killed: the first one on a machine tells, the others find this name. Like other
/// names of processes that have ended, it is removed by later jobs.
std::string name_of_first_killed() { return cat("/galley-", getppid(), "-killed-", getuid()); }
bool is_first_killed() {
  const int file = shm_open(name_of_first_killed().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file >= 0) close(file);
  return file >= 0 || errno != EEXIST;
}

/// The parent: waits for the rank and returns its exit code.
int watch_child(pid_t child, bool json) {
  struct sigaction action{};
  action.sa_handler = on_end_of_job;
  action.sa_flags = SA_RESTART;
  // mpirun sends signals to the process group: the child receives its own. SIGCONT is its notice that it ends the job.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCONT}) sigaction(signal, &action, nullptr);
  std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGUSR2, SIG_IGN);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string who = cat("rank ", launched->rank);
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (launcher_ends_job != 0) return 128 + signal;  // mpirun ends this rank because of another one
    if (signal == SIGKILL && launched->by_srun && !is_first_killed()) return static_cast<int>(ErrorCode::kWorker);
    say(json, cat(who, " was killed by signal ", signal, " (", strsignal(signal), ") ", page->position.str()));
    return static_cast<int>(ErrorCode::kWorker);
  }
  const int code = WEXITSTATUS(status);
  if (is_tool_end(code)) return code;
  say(json, cat(who, " ended with the unexpected exit code ", code, " ", page->position.str()));
  return static_cast<int>(ErrorCode::kWorker);
}

}  // namespace

void supervise(const std::string& tool, bool json) {
  launched = launched_rank();
  if (launched && launched->size == 1) launched.reset();
  if (!launched) return;
  void* shared = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail(ErrorCode::kResource, tool, " cannot map a page: ", std::strerror(errno));
  page = new (shared) Page;
  const pid_t launcher = getppid();
  if (launched->by_srun) shm_unlink(name_of_first_killed().c_str());  // of an earlier process with this number
  prctl(PR_SET_PDEATHSIG, SIGKILL);                                   // mpirun was killed
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) fail(ErrorCode::kResource, tool, " cannot start a process for its rank: ", std::strerror(errno));
  if (child > 0) _exit(watch_child(child, json));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Rank 0 alone writes the result.
  if (launched->rank != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) _exit(static_cast<int>(ErrorCode::kResource));
  if (getppid() == 1) _exit(static_cast<int>(ErrorCode::kWorker));  // the parent ended before the line above
  follow_launcher(launcher);
}

bool is_ranked() { return launched.has_value(); }
int own_rank() { return simulated_rank >= 0 ? simulated_rank : launched ? launched->rank : 0; }

SimulatedRank::SimulatedRank(int rank) { simulated_rank = rank; }
SimulatedRank::~SimulatedRank() { simulated_rank = -1; }

bool keep_rank_message(const std::string& message) {
  const int rank = own_rank();
  if (rank == 0) return false;
  RankLog& log = rank_log();
  const std::lock_guard lock(log.mutex);
  log.kept[rank] += message + "\n";
  if (!log.folder.empty()) log.write(rank);
  return true;
}

void log_ranks_to(const std::string& folder) {
  RankLog& log = rank_log();
  const std::lock_guard lock(log.mutex);
  make_folders(folder);
  log.folder = folder;
  for (const auto& [rank, kept] : std::map<int, std::string>(log.kept)) log.write(rank);
}

Ranks* Ranks::open() {
  if (launched && ranks == nullptr) ranks.reset(new Ranks);
  return ranks.get();
}

void Ranks::close() { ranks.reset(); }

Ranks::Ranks() : job_(std::make_unique<MpiJob>()) {
  if (job_->size() != launched->size) {
    throw Error(ErrorCode::kResource, cat("the launcher started ", launched->size, " ranks, but ", job_->version(), " sees ", job_->size()))
        .suggest("start them with the mpirun of Open MPI, or with srun --mpi=pmix");
  }
#ifdef __GLIBC__
  // Else an array of up to 32 MiB that is freed raises the size up to which freed memory is kept, so that a rank that has gathered a few
  // parameters takes up to 85 MiB more than its plan (pipeline of a GPT of 14 M parameters; now less than 30 MiB).
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
  communicator_ = job_->communicator();
  communicator_->report_to(&page->position);
  heartbeat_ = std::make_unique<RankHeartbeat>(*job_, page->position);
  cores_ = cores_of_rank();
}

int Ranks::cores_of_rank() {
  struct Mask {
    uint64_t machine;
    cpu_set_t cores;
  };
  std::vector<Mask> masks(static_cast<size_t>(communicator_->size()));
  Mask& own = masks[static_cast<size_t>(communicator_->rank())];
  std::memset(masks.data(), 0, masks.size() * sizeof(Mask));
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  for (const char letter : host) own.machine = own.machine * 1099511628211ull + static_cast<unsigned char>(letter);
  sched_getaffinity(0, sizeof own.cores, &own.cores);
  // Each rank fills its part; the sum of one part and zeros is the part.
  communicator_->all_reduce("cores", masks.data(), masks.data(), static_cast<int64_t>(masks.size() * sizeof(Mask) / sizeof(int64_t)),
                            DType::kI64);
  int sharing = 0;
  for (const Mask& mask : masks) {
    cpu_set_t both;
    CPU_AND(&both, &mask.cores, &own.cores);
    sharing += mask.machine == own.machine && CPU_COUNT(&both) > 0;
  }
  return std::max(1, available_cores() / std::max(1, sharing));
}

std::string Ranks::launcher() const {
  return cat(launched->by_srun ? "srun -n " : "mpirun -np ", size(), launched->by_srun ? " --mpi=pmix" : "");
}

std::string Ranks::str() const {
  return cat(communicator_->size(), " ranks, ", communicator_->transport(), ", ", job_->version(), ", ", cores_,
             cores_ == 1 ? " core" : " cores", " each");
}

bool must_report_error() {
  if (own_rank() == 0) return true;
  constexpr int kTries = 150;
  for (int i = 0; i < kTries; ++i) {
    if (stop_signal() != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void announce_end(int code) {
  if (page != nullptr) page->code = code;
}

void leave(int code) {
  announce_end(code);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace galley::tools
