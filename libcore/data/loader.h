#pragma once
// DataLoader: batches of a source, in order, prepared ahead by threads of its own. The bits of every batch are the same for any number
// of workers, and for a loader that starts in the middle.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/data/batch_transform.h"
#include "libcore/data/order.h"
#include "libcore/data/pipeline.h"
#include "libcore/data/source.h"
#include "libcore/tensor/batch.h"

namespace galley {

/// What a damaged sample does: end the pass, give its place to the next good one, or leave its row empty and say why (Batch::unreadable).
enum class OnErrorRule { kFail, kSkip, kReport };

struct LoaderOptions {
  OrderOptions order;    ///< Batch size, shuffling, slice, last batch, seed.
  int64_t workers = 0;   ///< Threads that prepare batches; 0: next() does it.
  int64_t prefetch = 4;  ///< Whole batches prepared ahead (at least 1 where there are workers).
  OnErrorRule on_error = OnErrorRule::kFail;
  MemoryFormat format;       ///< Of an image batch: contiguous or channels_last.
  int64_t classes = 0;       ///< All labels are checked against it before the first batch; needed by batch transforms; 0: unknown.
  int64_t pad_label = -100;  ///< Class of the rows past `valid` and of masks' pixels without one (cross_entropy's ignore_index); other
                             ///< fields are zeros there.
  int64_t start = 0;         ///< Position of the first batch: samples consumed before.
  int64_t passes = 0;        ///< Ends after so many epochs; 0: never.
  int64_t max_samples = 0;   ///< Ends after so many samples, counted from position 0; 0: no bound.
};

/// Damaged samples that were replaced (by the next sample of the slice, the same on every run), counted over delivered batches only.
struct SkipReport {
  struct Cause {
    int64_t count = 0;
    std::string first;  ///< Message of the first one in order.
  };
  int64_t skipped = 0;
  std::map<std::string, Cause> causes;
};

/// Samples of files that are irregular but were read in full (Irregularity), counted over delivered batches only.
struct IrregularReport {
  int64_t samples = 0;
  std::map<std::string, SkipReport::Cause> kinds;
};

class DataLoader {
 public:
  /// Keeps the source (shared with other splits). Maps the source's fields through the pipeline and the batch transforms and allocates
  /// batches of the result; one sample is read, for sizes that are still open, and so that data that do not fit are found early. Throws
  /// where options contradict each other, and what Pipeline::fields throws.
  DataLoader(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms,
             LoaderOptions options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// The next batch, valid until the next call; null at the end. Throws the error of its first bad row.
  const Batch* next();
  /// Position of the batch that next() will give: all samples before were delivered. What a checkpoint saves, where the last batch
  /// delivered was also consumed.
  int64_t position() const;
  /// Samples of one epoch, and of all passes (0: endless).
  int64_t epoch_samples() const;
  int64_t total_samples() const;
  const Source& source() const;
  /// The fields of every batch.
  const std::vector<FieldType>& types() const;
  /// Names, dtypes and shapes (N first) of the tensors of every batch.
  const std::map<std::string, Tensor>& layout() const;
  /// Bytes of all batch buffers.
  int64_t buffer_bytes() const;
  const SkipReport& skips() const;
  const IrregularReport& irregular() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
