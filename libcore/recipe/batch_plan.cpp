// How ranks, logical replicas and micro-batches divide a batch.

#include <algorithm>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/recipe/sections.h"

namespace galley {

BatchPlan plan_batch(const BatchSection& batch, int64_t ranks) {
  GALLEY_ASSERT(ranks >= 1);
  BatchPlan plan{.global = batch.global};
  if (!batch.micro.count) {
    if (batch.global % ranks != 0) {
      throw Error(ErrorCode::kRecipe, cat("train.batch: global ", batch.global, " is not a multiple of the ", ranks, " ranks"))
          .key("train.batch.global")
          .suggest(batch.global < ranks
                       ? cat("the smallest batch is ", ranks)
                       : cat("the nearest multiples are ", batch.global / ranks * ranks, " and ", (batch.global / ranks + 1) * ranks));
    }
    plan.micro = batch.global / ranks;
    return plan;
  }
  plan.micro = *batch.micro.count;
  if (plan.micro < 1) throw Error(ErrorCode::kRecipe, "train.batch.micro is 0; it must be auto or at least 1").key("train.batch.micro");
  const int64_t pass = plan.micro * ranks;
  if (batch.global % pass != 0) {
    const std::string product = ranks == 1 ? cat("micro ", plan.micro) : cat("micro ", plan.micro, " * ", ranks, " ranks = ", pass);
    const int64_t below = batch.global / pass * pass;
    throw Error(ErrorCode::kRecipe, cat("train.batch: global ", batch.global, " is not a multiple of ", product, " (", batch.global, " = ",
                                        batch.global / pass, " * ", pass, " + ", batch.global % pass, ")"))
        .key("train.batch")
        .suggest(below > 0 ? cat("global ", below, " or ", below + pass, " would be valid")
                           : cat("micro may be at most ", std::max<int64_t>(1, batch.global / ranks)));
  }
  plan.accumulation = batch.global / pass;
  return plan;
}

BatchPlan plan_replicas(const BatchSection& batch, int64_t replicas, int64_t ranks) {
  GALLEY_ASSERT(replicas >= 1 && ranks >= 1);
  if (batch.global < replicas) {
    throw Error(ErrorCode::kRecipe, cat("deterministic divides a batch into ", counted(replicas, "logical replica"),
                                        ", but train.batch.global is ", batch.global))
        .key("deterministic")
        .suggest(cat("write deterministic: ", batch.global, ", or a larger batch"));
  }
  if (ranks > replicas) {
    throw Error(ErrorCode::kRecipe,
                cat("deterministic has ", counted(replicas, "logical replica"), ", which ", ranks, " ranks cannot divide"))
        .key("deterministic")
        .suggest(cat("start at most ", counted(replicas, "rank"), ", or write deterministic: ", ranks, " (other bits)"));
  }
  return {.global = batch.global, .micro = (batch.global + replicas - 1) / replicas};
}

}  // namespace galley
