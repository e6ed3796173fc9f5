// What TrainStep reads after an update: losses, the norm of the gradients, and where numbers that are not finite come from.

#include <algorithm>
#include <cmath>

#include "libcore/comm/rank_scope.h"
#include "libcore/comm/texts.h"
#include "libcore/data/bad_row.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/step.h"

namespace galley {
namespace {

constexpr double kSmallestLossScale = 1.0 / 1024;  // gradients that overflow with it are no rounding matter

}  // namespace

/// Describes a fault in the data of a batch: the first sample with a value that is not finite, or labels that are all ignored; "" without
/// fault.
std::string TrainStep::fault_of_data(const Execution& execution, const Batch& batch) const {
  if (const auto bad = first_bad_row(batch, [&](const std::string& field) { return execution.takes(field); })) {
    const auto row = static_cast<size_t>(bad->row);
    const std::string sample = row >= batch.indices.size() ? cat("row ", row, " of the batch")
                               : sample_name_              ? sample_name_(batch.indices[row])
                                                           : cat("sample ", batch.indices[row]);
    return cat("the field `", bad->field, "` of ", sample, " contains ", bad->value);
  }
  const int64_t ignored = session_.ignored_class();
  for (const FieldType& target : session_.task().targets()) {
    const auto found = batch.fields.find(target.name);
    if (found == batch.fields.end() || target.classes == 0 || found->second.dtype() != DType::kI64) continue;
    const int64_t *labels = found->second.data_as<int64_t>(), count = found->second.elements();
    if (std::all_of(labels, labels + count, [&](int64_t label) { return label == ignored; }))
      return cat("all labels of the batch are ", ignored, ", the value of loss.ignore_index, so the loss has no terms");
  }
  return "";
}

/// The update was skipped: parameters and state are those before the step, so repeating the forward and backward pass gives the same
/// numbers.
void TrainStep::stop(const Stage& stage, int64_t step, int64_t micro_batch, double loss, const Batch& last_batch) const {
  const RankScope alone(nullptr);  // each rank repeats its own part
  const bool last = micro_batch + 1 == batch_.accumulation;
  Execution& execution = last ? update_for(stage, last_batch) : *stage.accumulate;
  const Batch* batch = last ? &last_batch : reload_ ? &reload_(firsts_[static_cast<size_t>(micro_batch)]) : nullptr;
  const bool still_fed = last && ahead_.batch == nullptr && ahead_.error == nullptr;
  if (!still_fed && batch != nullptr) feed_batch(execution, *batch, step, weight_of(*batch));
  stop_with(step, loss, execution, batch);
}

/// `batch`: nullptr: not known any more.
void TrainStep::stop_with(int64_t step, double loss, Execution& execution, const Batch* batch) const {
  // A rank alone cannot gather units, and has parts of matrices.
  const auto culprit = batch != nullptr && !gathers() && tensor_ == nullptr ? find_non_finite(execution) : std::nullopt;
  std::string where = culprit ? "; first in " + culprit->text() : "";
  std::string fault = batch != nullptr ? fault_of_data(execution, *batch) : "";
  if (ranks_ != nullptr) {
    // The first rank with a culprit speaks for all.
    const std::string own = where.empty() && fault.empty() ? "" : cat(where, " (rank ", ranks_->rank(), ")\n", fault);
    const std::string first = first_text(*ranks_, own);
    const size_t end = std::min(first.find('\n'), first.size());
    where = first.substr(0, end);
    fault = first.substr(std::min(end + 1, first.size()));
  }
  throw Error(ErrorCode::kNumeric, cat("the loss is ",
                                       std::isnan(loss) ? "nan"
                                       : loss > 0       ? "inf"
                                                        : "-inf",
                                       " at step ", step, where, fault.empty() ? "" : "; " + fault))
      .key("train.guard.nan")
      .suggest(cat(fault.empty() ? "lower train.optimizer.lr, set train.clip=1.0, or check the data" : "correct or remove such samples",
                   "; this step changed no parameters"));
}

void TrainStep::read_losses(const Stage& stage, int64_t step, const Batch& last_batch, Outcome& outcome) const {
  const Execution& update = update_for(stage, last_batch);
  for (const std::string& name : losses_) outcome.losses.emplace_back(name, 0);
  // The update's losses are sums over ranks already; those of earlier micro-batches are this rank's parts.
  earlier_.clear();
  for (int64_t k = 0; k + 1 < batch_.accumulation; ++k) {
    earlier_.push_back(stage.accumulate->scalar("loss", batch_.accumulation - 2 - k));
    for (const std::string& name : losses_) earlier_.push_back(stage.accumulate->scalar("loss." + name, batch_.accumulation - 2 - k));
  }
  if (ranks_ != nullptr && !earlier_.empty())
    ranks_->all_reduce("losses", earlier_.data(), earlier_.data(), static_cast<int64_t>(earlier_.size()), DType::kF64);
  for (int64_t k = 0; k < batch_.accumulation; ++k) {
    const bool last = k + 1 == batch_.accumulation;
    const auto read = [&](const std::string& output, size_t place) {
      return last ? update.scalar(output) : earlier_[static_cast<size_t>(k) * (1 + losses_.size()) + place];
    };
    const double loss = read("loss", 0);
    if (guards() && !std::isfinite(loss)) stop(stage, step, k, loss, last_batch);
    outcome.loss += loss;
    for (size_t i = 0; i < outcome.losses.size(); ++i)
      outcome.losses[i].second += read("loss." + outcome.losses[i].first, 1 + i) / static_cast<double>(batch_.accumulation);
  }
  outcome.loss /= static_cast<double>(batch_.accumulation);
}

void TrainStep::read_update(const Execution& update, int64_t step, Outcome& outcome) {
  outcome.grad_norm = update.scalar("grad_norm");
  if (!scaling_) return;
  outcome.loss_scale = engine_.store().get(kLossScale).to_doubles().front();
  if (std::isfinite(outcome.grad_norm) || !scaling_->dynamic || *outcome.loss_scale >= kSmallestLossScale) return;
  throw Error(ErrorCode::kNumeric,
              cat("the gradients are not finite at step ", step, ", with any loss scale down to ", *outcome.loss_scale))
      .key("precision.compute")
      .suggest("write precision: bf16, or keep the modules with the largest values in f32 (precision.keep_f32)");
}

}  // namespace galley
