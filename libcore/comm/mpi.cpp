#include "libcore/comm/mpi.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
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
    const char *rank, *size, *local_rank, *local_size;
  };
  constexpr std::array<Variables, 3> kLaunchers{{
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
  }};
  for (const Variables& names : kLaunchers) {
    const auto rank = number_of(names.rank), size = number_of(names.size);
    if (!rank || !size || *rank >= *size) continue;
    // A batch script of Slurm has these variables too, but no step: there it is one process.
    if (names.rank == kLaunchers[2].rank && std::getenv("SLURM_STEP_ID") == nullptr) continue;
    return LaunchedRank{*rank, *size, number_of(names.local_rank).value_or(0), number_of(names.local_size).value_or(1)};
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

std::unique_ptr<Communicator> MpiJob::communicator(const MpiOptions& options) {
  MessageOptions of_messages = options.messages;
  of_messages.per_machine = per_machine();
  auto by_messages = std::make_unique<MessageCommunicator>(messages(), of_messages);
  if (!options.shared_memory || size_ == 1) return by_messages;
  int32_t apart = local_size_ != size_;
  by_messages->all_reduce("machines", &apart, &apart, 1, DType::kI32, ReduceOp::kMax);
  if (apart != 0) return by_messages;
  std::array<char, 64> name = segment_name();
  by_messages->broadcast("shared memory", name.data(), static_cast<int64_t>(name.size()), DType::kI8, 0);
  std::shared_ptr<SharedSegment> segment;
  const auto attempt = [&](auto&& make) {
    try {
      segment = make();
    } catch (const Error& error) {
      log(LogLevel::kWarning, error.message() + "; ranks send messages instead, which is slower");
    }
  };
  if (rank_ == 0) {
    attempt([&] { return SharedSegment::create(name.data(), shared_board_bytes(size_)); });
    if (segment != nullptr) create_shared_board(*segment, size_);
  }
  int32_t failed = segment == nullptr;
  by_messages->broadcast("shared memory", &failed, 1, DType::kI32, 0);
  if (failed == 0 && rank_ != 0) attempt([&] { return SharedSegment::open(name.data()); });
  failed = segment == nullptr;
  by_messages->all_reduce("shared memory", &failed, &failed, 1, DType::kI32, ReduceOp::kMax);
  if (rank_ == 0 && segment != nullptr) segment->remove_name();
  if (failed != 0) return by_messages;
  return shared_communicator(std::move(segment), name.data(), rank_, options.direct);
}

void MpiJob::abort(int code) {
  functions().Abort(functions().world, code);
  _exit(code);
}

}  // namespace galley
