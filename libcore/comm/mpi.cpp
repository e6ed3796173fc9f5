#include "libcore/comm/mpi.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/comm/nodes.h"
#include "libcore/comm/shared.h"
#include "libcore/vendor/mpi/mpi.h"

namespace galley {
namespace {

const mpi::Functions& functions() {
  const mpi::Functions* table = mpi::functions();
  if (table == nullptr) fail(ErrorCode::kResource, mpi::why_missing());
  return *table;
}

std::optional<int> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  int value = 0;
  if (text == nullptr) return std::nullopt;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 0) return std::nullopt;
  return value;
}

class MpiMessages : public PointToPoint {
 public:
  MpiMessages(int rank, int size) : mpi_(functions()), rank_(rank), size_(size) { mpi_.Comm_dup(mpi_.world, &comm_); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "MPI"; }
  int send(int to, int tag, const void* data, int64_t bytes) override {
    const int number = slot();
    mpi_.Isend(data, static_cast<int>(bytes), mpi_.byte, to, tag, comm_, &requests_[static_cast<size_t>(number)]);
    return number;
  }
  int receive(int from, int tag, void* data, int64_t bytes) override {
    const int number = slot();
    mpi_.Irecv(data, static_cast<int>(bytes), mpi_.byte, from, tag, comm_, &requests_[static_cast<size_t>(number)]);
    return number;
  }
  bool test(int number) override {
    int done = 0;
    mpi_.Test(&requests_[static_cast<size_t>(number)], &done, nullptr);
    if (done != 0) free_.push_back(number);
    return done != 0;
  }
  void abort(const std::string& message) override {
    log(LogLevel::kWarning, message);
    mpi_.Abort(mpi_.world, static_cast<int>(ErrorCode::kWorker));
  }

 private:
  int slot() {
    if (free_.empty()) {
      requests_.push_back(nullptr);
      return static_cast<int>(requests_.size()) - 1;
    }
    const int number = free_.back();
    free_.pop_back();
    return number;
  }
  const mpi::Functions& mpi_;
  int rank_, size_;
  mpi::Handle comm_ = nullptr;
  std::vector<mpi::Handle> requests_;
  std::vector<int> free_;
};

/// A name for the job's shared memory that no other job uses.
std::array<char, 64> segment_name() {
  std::array<char, 64> name{};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::string text = cat("/galley-", getpid(), "-", now);
  std::memcpy(name.data(), text.data(), std::min(text.size(), name.size() - 1));
  return name;
}

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  struct Variables {
    const char *rank, *size, *local_rank;
  };
  constexpr std::array<Variables, 3> kLaunchers{{
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
  }};
  for (const Variables& names : kLaunchers) {
    const auto rank = number_of(names.rank), size = number_of(names.size);
    if (!rank || !size || *rank >= *size) continue;
    const bool by_srun = names.rank == kLaunchers[2].rank;
    // Slurm sets some of these variables in batch scripts too. A tool that runs outside a job step is one process.
    const char* step = std::getenv("SLURM_STEP_ID");
    if (by_srun && (step == nullptr || std::string_view(step) == "batch")) continue;
    return LaunchedRank{*rank, *size, number_of(names.local_rank).value_or(0), by_srun};
  }
  return std::nullopt;
}

MpiJob::MpiJob() {
  const mpi::Functions& mpi = functions();
  // Open MPI would print a backtrace of its own for a signal that ends the process.
  setenv("OMPI_MCA_opal_signal", "", /*overwrite=*/0);
  int provided = 0, initialized = 0;
  mpi.Initialized(&initialized);
  GALLEY_ASSERT(initialized == 0, "MPI was started already");
  mpi.Init_thread(nullptr, nullptr, mpi::kThreadMultiple, &provided);
  mpi.Comm_rank(mpi.world, &rank_);
  mpi.Comm_size(mpi.world, &size_);
  if (provided < mpi::kThreadMultiple) {
    fail(ErrorCode::kResource, version(), " does not let several threads call it (MPI_THREAD_MULTIPLE); the distribution's package does");
  }
  mpi::Handle machine = nullptr;
  mpi.Comm_split_type(mpi.world, mpi::kTypeShared, 0, mpi.no_info, &machine);
  mpi.Comm_rank(machine, &local_rank_);
  mpi.Comm_size(machine, &local_size_);
  if (const char* text = std::getenv("GALLEY_RANKS_PER_NODE")) {
    const std::optional<int> each = number_of("GALLEY_RANKS_PER_NODE");
    if (!each || *each < 1) throw Error(ErrorCode::kUsage, cat("GALLEY_RANKS_PER_NODE=", text, " must be a whole number of at least 1"));
    local_rank_ = rank_ % *each;
    local_size_ = std::min(*each, size_ - (rank_ - local_rank_));
  }
}

MpiJob::~MpiJob() { functions().Finalize(); }

std::string MpiJob::version() const {
  std::array<char, mpi::kVersionLength> text{};
  int length = 0;
  functions().Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<size_t>(std::clamp(length, 0, mpi::kVersionLength - 1)));
  return version.substr(0, version.find(','));
}

/// Ranks of a machine are consecutive if the place of each among them is its number modulo theirs.
int MpiJob::per_machine() {
  MessageCommunicator ranks(messages());
  std::array<int32_t, 3> most{local_size_, -local_size_, rank_ % local_size_ != local_rank_};
  ranks.all_reduce("machines", most.data(), most.data(), std::ssize(most), DType::kI32, ReduceOp::kMax);
  return most[0] == -most[1] && most[2] == 0 ? local_size_ : 0;
}

std::unique_ptr<PointToPoint> MpiJob::messages() { return std::make_unique<MpiMessages>(rank_, size_); }

/// The memory of this machine's ranks and its name, or nullptr on all ranks if a machine has no room.
std::shared_ptr<SharedSegment> MpiJob::share_segment(Communicator& ranks, std::string& name) const {
  const bool alone = local_size_ == size_;
  std::array<char, 64> text = segment_name();
  constexpr auto kLength = static_cast<int64_t>(text.size());
  std::shared_ptr<SharedSegment> segment;
  const auto attempt = [&](auto&& make) {
    try {
      segment = make();
    } catch (const Error& error) {
      text[0] = '\0';
      log(LogLevel::kWarning, error.message() + "; ranks send messages instead, which is slower");
    }
  };
  if (local_rank_ == 0) {
    attempt([&] { return SharedSegment::create(text.data(), alone ? shared_board_bytes(size_) : shared_pair_bytes(local_size_)); });
    if (segment != nullptr) (alone ? create_shared_board : create_shared_pair)(*segment, local_size_);
    for (int r = 1; r < local_size_; ++r) ranks.send("shared memory", text.data(), kLength, DType::kI8, rank_ + r);
  } else {
    ranks.receive("shared memory", text.data(), kLength, DType::kI8, rank_ - local_rank_);
    if (text[0] != '\0') attempt([&] { return SharedSegment::open(text.data()); });
  }
  int32_t failed = segment == nullptr;
  ranks.all_reduce("shared memory", &failed, &failed, 1, DType::kI32, ReduceOp::kMax);
  if (local_rank_ == 0 && segment != nullptr) segment->remove_name();
  name = text.data();
  return failed != 0 ? nullptr : segment;
}

std::unique_ptr<Communicator> MpiJob::communicator(const MpiOptions& options) {
  MessageOptions of_messages = options.messages;
  of_messages.per_machine = per_machine();
  auto by_messages = std::make_unique<MessageCommunicator>(messages(), of_messages);
  if (!options.shared_memory || size_ == 1 || of_messages.per_machine <= 1) return by_messages;
  std::string name;
  std::shared_ptr<SharedSegment> segment = share_segment(*by_messages, name);
  if (segment == nullptr) return by_messages;
  if (local_size_ == size_) return shared_communicator(std::move(segment), name, rank_, options.direct);
  DirectOptions direct = options.direct;
  direct.first_rank = rank_ - local_rank_;
  return node_communicator(shared_pair(std::move(segment), name, local_rank_, direct), messages(), of_messages);
}

void MpiJob::abort(int code) {
  functions().Abort(functions().world, code);
  _exit(code);
}

}  // namespace galley
