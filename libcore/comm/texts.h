#pragma once
// Texts and errors between ranks.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/comm/communicator.h"

namespace galley {

/// The text of one rank, on all ranks. All ranks call each of these functions. `name` is shown in messages (Collective::name).
std::string broadcast_text(Communicator& ranks, std::string_view name, std::string text, int root);
/// The texts of all ranks, on all ranks.
std::vector<std::string> gather_texts(Communicator& ranks, std::string_view name, const std::string& own);
/// The text of the lowest rank whose text is not empty; "" if all are.
std::string first_text(Communicator& ranks, const std::string& own);

/// Calls `work` on this rank. If it throws Error on a rank, every rank throws the error of the lowest such rank, whose message begins with
/// "rank 2: ". Other exceptions, and errors of collectives (kWorker), leave the other ranks waiting until they are aborted.
void run_on_all(Communicator& ranks, const std::function<void()>& work);

}  // namespace galley
