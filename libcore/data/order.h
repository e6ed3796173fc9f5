#pragma once
// Which sample comes when: pure functions of seed, epoch and position, so that a run resumes anywhere and any number of workers
// reads the same.

#include <cstdint>
#include <optional>
#include <string_view>

#include "libcore/base/units.h"

namespace galley {

/// A random permutation of 0 .. size-1 in constant memory: a Feistel network with Philox rounds over the next power of two, walked
/// until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, std::string_view purpose, uint64_t index);
  int64_t operator()(int64_t position) const;

 private:
  uint64_t size_, key_, index_;
  int low_bits_, high_bits_;
};

/// What becomes of the samples that do not fill a batch: it runs on into the next epoch, they are left out, or the batch is short.
enum class LastBatchRule { kWrap, kDrop, kKeep };

struct OrderOptions {
  Slice slice;
  std::optional<uint64_t> slice_seed;  ///< The slice is taken after a permutation by this seed.
  bool shuffle = false;
  LastBatchRule last_batch = LastBatchRule::kKeep;
  int64_t batch = 1;
  uint64_t seed = 0;
};

/// Position (samples consumed since the start of training) to sample.
class SampleOrder {
 public:
  SampleOrder(int64_t source_size, const OrderOptions& options);

  struct Place {
    int64_t epoch = 0;
    int64_t index = 0;  ///< In the source.
  };
  Place at(int64_t position) const;
  /// The sample that stands in for the one at `position` when it is damaged: `tries` further on in the slice.
  Place instead_of(int64_t position, int64_t tries) const;
  /// Samples that one epoch delivers.
  int64_t epoch_samples() const { return epoch_samples_; }
  /// Samples of the batch that begins at a position: `batch`, or what is left of the epoch (keep).
  int64_t batch_samples(int64_t position) const;
  /// Samples of the slice.
  int64_t size() const { return count_; }

 private:
  Place place(int64_t position, int64_t tries) const;
  OrderOptions options_;
  int64_t source_size_, begin_ = 0, count_ = 0, epoch_samples_ = 0;
};

}  // namespace galley
