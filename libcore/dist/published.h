#pragma once
// Published training runs, and what the simulator predicts for them. docs/performance/simulator.md has the table.

#include <string>
#include <vector>

#include "libcore/dist/job.h"
#include "libcore/dist/transformer.h"

namespace galley {

/// A run as published, and the assumptions under which it is simulated.
struct PublishedRun {
  std::string source, name;
  std::string unit;  ///< Of `published`: "TFLOP/s" (recomputation counted), "tokens/s" per device.
  double published = 0;
  double memory = 0;  ///< Published peak in bytes; 0: not published.
  std::string assumptions;
  TransformerShape shape;
  TransformerRun run;
  JobPlan job;
  Cluster cluster;
  bool copies = false;  ///< Gradients are copied into a bucket for their reduction, and stages keep what they sent.
  double reserved = 1;  ///< Memory that the framework's allocator reserves, divided by what is in use.
};

struct PublishedRow {
  const PublishedRun* run = nullptr;
  double predicted = 0;         ///< In the run's unit.
  double predicted_memory = 0;  ///< Bytes.
  double kept_memory = 0;       ///< Bytes of activations that wait for the backward pass, in predicted_memory.
  bool fits = true;             ///< In the memory of the devices, as far as the run is described.
  double step_s = 0;
  double mfu = 0, hfu = 0;
  double ratio() const { return predicted / run->published; }
  double memory_ratio() const { return run->memory > 0 ? predicted_memory / run->memory : 0; }
};

/// All runs, in the order of the documentation.
const std::vector<PublishedRun>& published_runs();
PublishedRow predict(const PublishedRun& run);

}  // namespace galley
