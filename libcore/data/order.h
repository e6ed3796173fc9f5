#pragma once
// Order of samples. It is a pure function of seed, epoch and position, so that a run can resume at any position and the order does not
// depend on the number of workers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "libcore/base/units.h"

namespace galley {

/// A random permutation of 0 .. size-1 in constant memory: a Feistel network with Philox rounds over the next larger power of two, applied
/// repeatedly until the result is in range (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class Permutation {
 public:
  /// `size` >= 1. `seed`, `purpose` and `index` select the permutation.
  Permutation(int64_t size, uint64_t seed, std::string_view purpose, uint64_t index);
  /// The value at `position`, 0 .. size-1.
  int64_t operator()(int64_t position) const;

 private:
  uint64_t size_, key_, index_;
  int low_bits_, high_bits_;
};

/// How the samples that do not fill the last batch of an epoch are used: with the first samples of the next epoch, not at all, or as a
/// shorter batch.
enum class LastBatchRule { kWrap, kDrop, kKeep };

/// Options of the order of samples.
struct OrderOptions {
  Slice slice;                         ///< The part of the source that is used.
  std::optional<uint64_t> slice_seed;  ///< If set, the source is permuted with this seed before the slice is taken.
  bool shuffle = false;                ///< A new permutation of the slice in each epoch.
  LastBatchRule last_batch = LastBatchRule::kKeep;
  int64_t batch = 1;  ///< Samples of a batch.
  uint64_t seed = 0;
  /// A group for each sample of the source: samples of a group come together, in batches in random order, as far as they are within kWindow
  /// batches of each other. Null: none. Each sample still comes once in an epoch (with kWrap, up to a window at its ends).
  std::shared_ptr<const std::vector<uint8_t>> groups = nullptr;
  static constexpr int64_t kWindow = 64;
};

/// Maps a position (the number of samples consumed since the start of training) to a sample.
class SampleOrder {
 public:
  /// Throws Error if the slice is empty, the batch size is below 1, or LastBatchRule::kDrop leaves no samples.
  SampleOrder(int64_t source_size, const OrderOptions& options);

  /// A sample of an epoch.
  struct Place {
    int64_t epoch = 0;
    int64_t index = 0;  ///< Index in the source.
  };
  /// The sample at a position.
  Place at(int64_t position) const;
  /// The sample that replaces the damaged one at `position`: `tries` samples later in the slice.
  Place instead_of(int64_t position, int64_t tries) const;
  /// Samples that one epoch delivers.
  int64_t epoch_samples() const { return epoch_samples_; }
  /// Number of samples in the batch that starts at a position: `batch`, or with kKeep the rest of the epoch if that is smaller.
  int64_t batch_samples(int64_t position) const;
  /// Number of samples in the slice.
  int64_t size() const { return count_; }

 private:
  Place place(int64_t position, int64_t tries) const;
  int64_t grouped(int64_t position) const;
  struct Windows;
  OrderOptions options_;
  int64_t source_size_, begin_ = 0, count_ = 0, epoch_samples_ = 0;
  std::shared_ptr<Windows> windows_;  // those that were computed last
};

}  // namespace galley
