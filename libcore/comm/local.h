#pragma once
// Ranks as threads of one process.

#include <memory>
#include <string_view>
#include <vector>

#include "libcore/comm/direct.h"

namespace galley {

/// Their Communicator::transport().
inline constexpr std::string_view kThreads = "threads";

/// One communicator for each rank; each belongs to one thread. A rank that ends by an exception should call `abort`, so that the others do
/// not wait for it.
std::vector<std::unique_ptr<Communicator>> local_communicators(int ranks, const DirectOptions& options = {});

}  // namespace galley
