#include "libcore/train/rank_values.h"

#include <cstring>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/comm/communicator.h"
#include "libcore/recipe/sections.h"
#include "libcore/train/trainer_state.h"

namespace galley {
namespace {

/// The text of one rank.
std::string text_of(Communicator& ranks, const char* name, std::string text, int root) {
  auto length = static_cast<int64_t>(text.size());
  ranks.broadcast(name, &length, 1, DType::kI64, root);
  text.resize(static_cast<size_t>(length));
  if (length > 0) ranks.broadcast(name, text.data(), length, DType::kI8, root);
  return text;
}

}  // namespace

void check_ranks(const Recipe& recipe, int ranks) {
  if (ranks == 1) return;
  if (recipe.sharding.strategy == ShardingStrategy::kNone) {
    throw Error(ErrorCode::kRecipe, cat("sharding: none trains on one rank, but there are ", ranks))
        .key("sharding.strategy")
        .suggest("write sharding: ddp, or start one process");
  }
  if (recipe.device.str() != "cpu") {
    throw Error(ErrorCode::kRecipe, cat("device: ", recipe.device.str(), " trains on one rank, but there are ", ranks))
        .key("device")
        .suggest("write device: cpu");
  }
}

std::string first_text(Communicator& ranks, const std::string& own) {
  // The largest of size - rank over the ranks that have a text is that of the lowest.
  int32_t lowest = own.empty() ? 0 : ranks.size() - ranks.rank();
  ranks.all_reduce("messages", &lowest, &lowest, 1, DType::kI32, ReduceOp::kMax);
  return lowest == 0 ? "" : text_of(ranks, "messages", own, ranks.size() - lowest);
}

void share_metrics(Communicator& ranks, std::optional<MetricValues>& metrics) {
  std::string names;
  std::vector<double> values;
  if (metrics) {
    for (const auto& [name, value] : *metrics) {
      names += name + "\n";
      values.push_back(value);
    }
  }
  int32_t given = metrics.has_value();
  ranks.broadcast("metrics", &given, 1, DType::kI32, 0);
  if (given == 0) {
    metrics.reset();
    return;
  }
  names = text_of(ranks, "metrics", names, 0);
  std::vector<std::string> list;
  for (size_t at = 0; at < names.size();) {
    const size_t end = names.find('\n', at);
    list.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  values.resize(list.size());
  if (!values.empty()) ranks.broadcast("metrics", values.data(), static_cast<int64_t>(values.size()), DType::kF64, 0);
  metrics.emplace();
  for (size_t i = 0; i < list.size(); ++i) metrics->emplace_back(list[i], values[i]);
}

int64_t Trainer::State::agreed(const char* name, int64_t value) const {
  if (options.ranks != nullptr) options.ranks->all_reduce(name, &value, &value, 1, DType::kI64, ReduceOp::kMax);
  return value;
}

double Trainer::State::of_rank_0(const char* name, double value) const {
  if (options.ranks != nullptr) options.ranks->broadcast(name, &value, 1, DType::kF64, 0);
  return value;
}

/// The signal that one of the ranks received; SIGTERM's number for a file RUN/stop, which is removed.
int Trainer::State::asked_to_stop(TrainEvents& events) {
  int64_t signal = events.stop_signal();
  const std::string file = options.run + "/stop";
  if (signal == 0 && writes() && file_exists(file)) {
    remove_tree(file);
    stop_file = true;
  }
  constexpr int kTerminate = 15;
  if (stop_file) signal = kTerminate;
  return static_cast<int>(agreed("signals", signal));
}

void Trainer::State::check_equal_digests(const std::string& digest) const {
  if (options.ranks == nullptr) return;
  const std::string first = text_of(*options.ranks, "digest", digest, 0);
  const std::string differs =
      first == digest ? "" : cat("rank ", own_rank(), " has other parameters than rank 0: ", digest, ", not ", first);
  const std::string message = first_text(*options.ranks, differs);
  GALLEY_ASSERT(message.empty(), message);
}

std::unique_ptr<DataLoader> Trainer::State::open_loader(int64_t start) {
  return session.training_loader(batch.micro, start, own_rank(), rank_count());
}

}  // namespace galley
