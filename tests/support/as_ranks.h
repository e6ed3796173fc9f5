#pragma once
// Ranks as threads of the test.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/communicator.h"

namespace galley {

/// Runs the body as each rank, on a thread of its own with so many compute threads. A rank that throws aborts the others. Returns the error
/// messages of the ranks ("": none).
inline std::vector<std::string> as_ranks(const std::vector<std::unique_ptr<Communicator>>& communicators,
                                         const std::function<void(Communicator&)>& body, int compute_threads = 1) {
  std::vector<std::string> errors(communicators.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < communicators.size(); ++r) {
    threads.emplace_back([&, r] {
      const ThreadShare share(compute_threads);
      try {
        body(*communicators[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        communicators[r]->abort(cat("rank ", r, ": ", errors[r]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace galley
