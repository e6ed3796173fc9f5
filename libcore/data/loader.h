#pragma once
// DataLoader: batches of a source, in order, prefetched by worker threads. The bits of every batch are the same for any number of workers,
// and for a loader that starts at a later position.

#include <array>
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

/// What happens at a damaged sample: the pass ends with its error; the next good sample replaces it; or its row is zeros and
/// Batch::unreadable holds the message.
enum class OnErrorRule { kFail, kSkip, kReport };

/// Options of a DataLoader.
struct LoaderOptions {
  OrderOptions order;    ///< Batch size, shuffling, slice, last batch, seed.
  int64_t workers = 0;   ///< Threads that prepare batches; 0: next() prepares them.
  int64_t prefetch = 4;  ///< Batches prepared ahead (at least 1 with workers).
  int64_t held = 1;      ///< Batches that next() returned last and that stay valid (at least 1).
  OnErrorRule on_error = OnErrorRule::kFail;
  MemoryFormat format;       ///< Format of image batches: contiguous or channels_last.
  int64_t classes = 0;       ///< Number of classes, 0: unknown. Labels are checked against it; batch transforms need it.
  int64_t pad_label = -100;  ///< Class of rows after the valid ones and of mask pixels without a class (cross_entropy's
                             ///< ignore_index). Other fields are zero in rows after the valid ones.
  int64_t start = 0;         ///< Position of the first batch: number of samples consumed earlier.
  int64_t passes = 0;        ///< Number of epochs after which the loader ends; 0: never.
  int64_t max_samples = 0;   ///< Position at which the loader ends; 0: never.
  int64_t rank = 0;          ///< Batches of order.batch samples are divided into `ranks` parts, equal or different by one sample, of which
  int64_t ranks = 1;         ///< the loader delivers part `rank`. Positions count the samples of all parts.
  bool fit = false;          ///< Images of different size (pad_to with `sizes`) are on the smallest canvas that holds those of a batch.
  /// Images that are still bytes after the pipeline are bytes in batches too (DataLoader::pixels), for a device that normalizes them.
  bool bytes = false;
  bool zero_rows = false;  ///< With `bytes`: rows after the valid ones count as pixels, so they must be 0 for the model, which no byte is.
  bool cut = false;        ///< Batches end at the shortest of FieldType::lengths that holds their samples; such samples come together.
};

/// Damaged samples that were replaced by the next good sample of the slice, which is the same in every run. Counts delivered batches only.
struct SkipReport {
  struct Cause {
    int64_t count = 0;
    std::string first;  ///< Message of the first such sample.
  };
  int64_t skipped = 0;
  std::map<std::string, Cause> causes;
};

/// Samples of files that deviate from their format but were read in full (Irregularity). Counts delivered batches only.
struct IrregularReport {
  int64_t samples = 0;
  std::map<std::string, SkipReport::Cause> kinds;
};

/// Reads, transforms and batches the samples of a source.
class DataLoader {
 public:
  /// The source may be shared with other splits. Maps its fields through the pipeline and the batch transforms and allocates the batch
  /// buffers. Reads one sample to find sizes that the source does not declare, and to report unsuitable data early. Throws Error if options
  /// contradict each other, and the errors of Pipeline::fields.
  DataLoader(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms,
             LoaderOptions options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  /// The next batch, valid until the next call, or that after LoaderOptions::held - 1 more; null at the end. If a row could not be read,
  /// throws the error of the first such row.
  const Batch* next();
  /// Position of the batch that next() returns next: the number of samples delivered so far. A checkpoint saves it after it has consumed
  /// the last delivered batch.
  int64_t position() const;
  /// With LoaderOptions::ranks: the samples of the last delivered part, divided by those of all parts of its batch. 0: the part would be
  /// empty, and has a sample of another part instead.
  double share() const;
  /// Samples of one epoch, and of all epochs together (0: endless).
  int64_t epoch_samples() const;
  int64_t total_samples() const;
  /// The source of the samples.
  const Source& source() const;
  /// The pixels of a sample's first pass in its original image of height x width pixels; nullopt: unknown (Pipeline::grid).
  std::optional<PixelGrid> grid(int64_t height, int64_t width, int64_t index) const;
  /// The fields of every batch.
  const std::vector<FieldType>& types() const;
  /// Names, dtypes and shapes (N first) of the tensors of every batch; with LoaderOptions::cut, of the longest.
  const std::map<std::string, Tensor>& layout() const;
  /// With LoaderOptions::cut the lengths of batches, ascending; the last is that of layout(). Empty: all batches have the same shapes.
  const std::vector<int64_t>& lengths() const;
  /// With LoaderOptions::fit rows and columns of the canvases of batches, by area; the last is that of layout(). Empty: all are the same.
  const std::vector<std::array<int64_t, 2>>& sizes() const;
  /// Whether batches differ in that field's rows and columns.
  static bool is_sized(const FieldType& type);
  /// With LoaderOptions::bytes: the fields in bytes, and how the model's numbers follow from them.
  const PixelConversions& pixels() const;
  /// With LoaderOptions::bytes: why images are in f32 all the same; empty: they are in bytes, or there are none.
  const std::string& float_reason() const;
  /// Size of all batch buffers together.
  int64_t buffer_bytes() const;
  /// Counts of damaged and irregular samples in the batches delivered so far.
  const SkipReport& skips() const;
  const IrregularReport& irregular() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
