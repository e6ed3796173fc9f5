#pragma once
// A recipe with a network that is fast to time.

#include <string>

namespace galley::testing_cli {

inline const std::string kSmallNet =
    "recipe: 1\n"
    "name: net\n"
    "model: {type: cnn, num_classes: 4, channels: [8, 8]}\n"
    "data:\n"
    "  train: {source: {type: synthetic, samples: 24}, workers: 1}\n"
    "  val: {source: {type: synthetic, samples: 10}, batch: 4}\n"
    "train: {duration: 2 steps, batch: 8, optimizer: {type: sgd, lr: 0.05}}\n"
    "benchmark: {stop: {min_runs: 3, max_time: 200ms, ci: 50%}, warmup: 1}\n";

}  // namespace galley::testing_cli
