#pragma once
// Ranks as threads of the test, over every transport that needs no launcher.

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/comm/local.h"
#include "libcore/comm/messages.h"
#include "libcore/comm/nodes.h"
#include "libcore/comm/shared.h"
#include "tests/support/as_ranks.h"

namespace galley {

/// Messages between threads: a queue for each sender, receiver and tag. A message has left when it has arrived, as long ones of MPI.
class TestMessages : public PointToPoint {
 public:
  struct Post {
    std::mutex mutex;
    std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> queues;
    std::map<std::tuple<int, int, int>, int64_t> sent, taken;
    std::string aborted;
    std::map<int, int64_t> bytes;  // that each rank sent
  };
  TestMessages(std::shared_ptr<Post> post, int rank, int size) : post_(std::move(post)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "test"; }
  int send(int to, int tag, const void* data, int64_t bytes) override {
    const std::lock_guard lock(post_->mutex);
    const auto* from = static_cast<const std::byte*>(data);
    post_->queues[{rank_, to, tag}].emplace_back(from, from + bytes);
    post_->bytes[rank_] += bytes;
    open_.push_back({.to = to, .tag = tag, .bytes = ++post_->sent[{rank_, to, tag}]});
    return static_cast<int>(open_.size()) - 1;
  }
  int receive(int from, int tag, void* data, int64_t bytes) override {
    open_.push_back({.from = from, .tag = tag, .data = data, .bytes = bytes});
    return static_cast<int>(open_.size()) - 1;
  }
  bool test(int number) override {
    const std::lock_guard lock(post_->mutex);
    if (!post_->aborted.empty()) throw Error(ErrorCode::kWorker, post_->aborted);
    Open& open = open_[static_cast<size_t>(number)];
    if (open.done) return true;
    if (open.to >= 0) return open.done = post_->taken[{rank_, open.to, open.tag}] >= open.bytes;
    // Messages of one sender and tag arrive in the order of the receives.
    for (int earlier = 0; earlier < number; ++earlier) {
      const Open& other = open_[static_cast<size_t>(earlier)];
      if (!other.done && other.from == open.from && other.tag == open.tag) return false;
    }
    auto& queue = post_->queues[{open.from, rank_, open.tag}];
    if (queue.empty()) return false;
    if (static_cast<int64_t>(queue.front().size()) != open.bytes) throw Error(ErrorCode::kWorker, "a message of another size arrived");
    std::memcpy(open.data, queue.front().data(), queue.front().size());
    queue.pop_front();
    ++post_->taken[{open.from, rank_, open.tag}];
    return open.done = true;
  }
  void abort(const std::string& message) override {
    const std::lock_guard lock(post_->mutex);
    if (post_->aborted.empty()) post_->aborted = message;
  }

 private:
  struct Open {
    bool done = false;
    int to = -1, from = -1, tag = 0;
    void* data = nullptr;
    int64_t bytes = 0;  // of a message that is sent: its number
  };
  std::shared_ptr<Post> post_;
  int rank_, size_;
  std::vector<Open> open_;
};

enum class Transport { kThreads, kShared, kMessages, kNodes };
inline std::string transport_name(Transport transport) {
  constexpr const char* kNames[] = {"threads", "shared", "messages", "nodes"};
  return kNames[static_cast<size_t>(transport)];
}

/// As if each `per_node` ranks were on a machine of their own.
inline std::vector<std::unique_ptr<Communicator>> node_communicators(int ranks, int per_node, const DirectOptions& options = {},
                                                                     std::shared_ptr<TestMessages::Post> post = nullptr) {
  static int number = 0;
  const bool check = post == nullptr;  // messages of its own
  if (post == nullptr) post = std::make_shared<TestMessages::Post>();
  std::vector<std::unique_ptr<Communicator>> all;
  for (int first = 0; first < ranks; first += per_node) {
    const std::string name = cat("/galley-test-node-", getpid(), "-", ++number);
    const auto created = SharedSegment::create(name, shared_pair_bytes(per_node));
    create_shared_pair(*created, per_node);
    DirectOptions direct = options;
    direct.first_rank = first;
    for (int r = 0; r < per_node; ++r)
      all.push_back(node_communicator(shared_pair(SharedSegment::open(name), name, r, direct),
                                      std::make_unique<TestMessages>(post, first + r, ranks), {.check = check, .per_machine = per_node}));
  }
  return all;
}

inline std::vector<std::unique_ptr<Communicator>> communicators_of(Transport transport, int ranks, const DirectOptions& options = {}) {
  std::vector<std::unique_ptr<Communicator>> all;
  if (transport == Transport::kThreads) return local_communicators(ranks, options);
  if (transport == Transport::kShared) {
    static int number = 0;
    const std::string name = cat("/galley-test-", getpid(), "-", ++number);
    const auto created = SharedSegment::create(name, shared_board_bytes(ranks));
    create_shared_board(*created, ranks);
    // Each rank has a mapping of its own, at another address.
    for (int r = 0; r < ranks; ++r) all.push_back(shared_communicator(SharedSegment::open(name), name, r, options));
    return all;
  }
  if (transport == Transport::kNodes) return node_communicators(ranks, ranks % 3 == 0 ? 3 : 2, options);
  const auto post = std::make_shared<TestMessages::Post>();
  for (int r = 0; r < ranks; ++r)
    all.push_back(std::make_unique<MessageCommunicator>(std::make_unique<TestMessages>(post, r, ranks), MessageOptions{.check = true}));
  return all;
}

}  // namespace galley
