#pragma once
// Collectors that ask the source about its samples: what batches of numbers cannot hold.

#include <functional>
#include <optional>

#include "libcore/data/source.h"
#include "libcore/tasks/task.h"

namespace galley {

/// A collector that knows the source in which Batch::indices count.
class SourceCollector : public Collector {
 public:
  /// Called before the first batch. The source outlives the evaluation.
  virtual void begin(const Source& source) = 0;
  /// The pixels that the model received of a sample, in its image of height x width pixels; nullopt: unknown (Pipeline::grid).
  using Locator = std::function<std::optional<PixelGrid>(int64_t height, int64_t width, int64_t index)>;
  /// Called before the first batch.
  virtual void locate(Locator locator) { static_cast<void>(locator); }
};

}  // namespace galley
