#pragma once
// Collectors that ask the source about its samples: what batches of numbers cannot hold.

#include "libcore/data/source.h"
#include "libcore/tasks/task.h"

namespace galley {

/// A collector that knows the source in which Batch::indices count.
class SourceCollector : public Collector {
 public:
  /// Called before the first batch. The source outlives the evaluation.
  virtual void begin(const Source& source) = 0;
};

}  // namespace galley
