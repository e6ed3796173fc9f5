#include "libcore/comm/local.h"

#include <cstring>
#include <new>

namespace galley {
namespace {

/// The board of ranks that are threads.
struct LocalBoard {
  explicit LocalBoard(int ranks) : memory(::operator new(static_cast<size_t>(Board::bytes(ranks)), kAlignment)) {
    std::memset(memory, 0, static_cast<size_t>(Board::bytes(ranks)));
    Board::create(memory, ranks);
  }
  ~LocalBoard() { ::operator delete(memory, kAlignment); }
  LocalBoard(const LocalBoard&) = delete;
  LocalBoard& operator=(const LocalBoard&) = delete;

  static constexpr std::align_val_t kAlignment{alignof(Board)};
  void* memory;
};

class LocalCommunicator : public DirectCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalBoard> board, int rank, const DirectOptions& options)
      : DirectCommunicator(*Board::open(board->memory), rank, options, true), board_(std::move(board)) {}
  std::string transport() const override { return std::string(kThreads); }

 protected:
  Place64 place_of(const void* address) const override { return {.base = reinterpret_cast<uint64_t>(address)}; }
  std::byte* address_of(int, const Place64& place) const override { return reinterpret_cast<std::byte*>(place.base); }

 private:
  std::shared_ptr<LocalBoard> board_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> local_communicators(int ranks, const DirectOptions& options) {
  const auto board = std::make_shared<LocalBoard>(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < ranks; ++rank) communicators.push_back(std::make_unique<LocalCommunicator>(board, rank, options));
  return communicators;
}

}  // namespace galley
