// Texts and errors between ranks.
#include "libcore/comm/texts.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/comm/local.h"

namespace galley {
namespace {

template <class Work>
std::vector<std::string> on_ranks(int count, Work&& work) {
  auto communicators = local_communicators(count, {.timeout_s = 60});
  std::vector<std::string> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] { results[static_cast<size_t>(r)] = work(*communicators[static_cast<size_t>(r)]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(Texts, OfAnyLengthReachAllRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    const auto text = [](int rank) { return std::string(static_cast<size_t>(rank * rank * 1000), static_cast<char>('a' + rank)); };
    const std::vector<std::string> results = on_ranks(ranks, [&](Communicator& own) {
      const std::vector<std::string> all = gather_texts(own, "test", text(own.rank()));
      std::string joined;
      for (const std::string& each : all) joined += each + "|";
      return joined + broadcast_text(own, "test", text(own.rank()), own.size() - 1);
    });
    std::string expected;
    for (int r = 0; r < ranks; ++r) expected += text(r) + "|";
    expected += text(ranks - 1);
    for (const std::string& result : results) EXPECT_EQ(result, expected);
  }
}

TEST(Texts, TheErrorOfTheLowestRankIsThatOfAll) {
  for (int failing = 0; failing <= 3; ++failing) {
    const std::vector<std::string> results = on_ranks(3, [&](Communicator& own) {
      try {
        run_on_all(own, [&] {
          if (own.rank() >= failing) throw Error(ErrorCode::kResource, cat("no space ", own.rank())).key("checkpoint").suggest("free some");
        });
      } catch (const Error& error) {
        return cat(static_cast<int>(error.code()), " ", error.message(), " / ", error.suggestion(), " / ", error.key());
      }
      return std::string("fine");
    });
    for (const std::string& result : results)
      EXPECT_EQ(result, failing == 3 ? "fine" : cat("7 rank ", failing, ": no space ", failing, " / free some / checkpoint"));
  }
}

}  // namespace
}  // namespace galley
