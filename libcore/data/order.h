#pragma once
// Which sample comes when: pure functions of seed, epoch and position, so that a run resumes anywhere and any number of workers
// reads the same.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

/// A part of a source: "0%..100%", "1000..2000", "..500", "90%..". Counts and percent do not mix.
struct Slice {
  double begin = 0;
  std::optional<double> end;  ///< Absent: to the end of the source.
  bool percent = false;

  /// Throws Error (exit 3) where the text is not a slice.
  static Slice parse(std::string_view text);
  std::string str() const;
  /// First sample and number of samples; throws where the slice is empty or reaches beyond the source.
  std::pair<int64_t, int64_t> of(int64_t size) const;
};

enum class LastBatch { kWrap, kDrop, kKeep };
inline constexpr std::string_view kLastBatchNames[] = {"wrap", "drop", "keep"};

struct OrderOptions {
  Slice slice;
  std::optional<uint64_t> slice_seed;  ///< The slice is taken after a permutation by this seed.
  bool shuffle = false;
  LastBatch last_batch = LastBatch::kKeep;
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
