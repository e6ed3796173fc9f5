#include "libcore/data/order.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"

namespace galley {

Permutation::Permutation(int64_t size, uint64_t seed, std::string_view purpose, uint64_t index)
    : size_(static_cast<uint64_t>(size)), key_(stream_key(seed, purpose)), index_(index) {
  GALLEY_ASSERT(size >= 1);
  // With halves of only a few bits, a Feistel network favors some permutations. Small sets therefore use a larger domain and cycle
  // walking.
  constexpr int kLeastBits = 8;
  const int bits = std::max(kLeastBits, static_cast<int>(std::bit_width(size_ - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

int64_t Permutation::operator()(int64_t position) const {
  auto value = static_cast<uint64_t>(position);
  GALLEY_ASSERT(value < size_);
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  // Six rounds make a network of random functions look random on small domains; two more for margin.
  constexpr uint64_t kRounds = 8;
  do {
    uint64_t low = value & low_mask, high = value >> low_bits_;
    for (uint64_t round = 0; round < kRounds; round += 2) {
      low ^= philox(key_, (high << 8) | round, index_)[0] & low_mask;
      high ^= philox(key_, (low << 8) | (round + 1), index_)[0] & high_mask;
    }
    value = (high << low_bits_) | low;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

SampleOrder::SampleOrder(int64_t source_size, const OrderOptions& options) : options_(options), source_size_(source_size) {
  GALLEY_CHECK(options.batch >= 1, "the batch size is ", options.batch, "; it must be at least 1");
  const auto [begin, end] = options.slice.of(source_size);
  if (begin >= end) fail(ErrorCode::kNumeric, "no samples: the slice ", options.slice.str(), " of ", source_size, " is empty");
  if (options.groups) windows_ = std::make_shared<Windows>();
  begin_ = begin;
  count_ = end - begin;
  epoch_samples_ = count_;
  if (options.last_batch == LastBatchRule::kDrop) {
    epoch_samples_ = count_ / options.batch * options.batch;
    GALLEY_CHECK(epoch_samples_ > 0, "a batch of ", options.batch, " samples is larger than the data set of ", count_,
                 ", so last_batch: drop leaves no samples; use a smaller batch, or last_batch: wrap or keep");
  }
}

struct SampleOrder::Windows {
  std::mutex mutex;
  std::map<int64_t, std::vector<int64_t>> positions;  // by the position at which a window begins
};

/// The position whose sample comes at this one, so that samples of a group come together. A window ends with an epoch where batches do.
int64_t SampleOrder::grouped(int64_t position) const {
  const int64_t span = OrderOptions::kWindow * options_.batch;
  const int64_t epoch_begin = options_.last_batch == LastBatchRule::kWrap ? 0 : position / epoch_samples_ * epoch_samples_;
  const int64_t begin = epoch_begin + (position - epoch_begin) / span * span;
  const int64_t end = options_.last_batch == LastBatchRule::kWrap ? begin + span : std::min(begin + span, epoch_begin + epoch_samples_);
  const std::lock_guard lock(windows_->mutex);
  std::vector<int64_t>& window = windows_->positions[begin];
  if (window.empty()) {
    constexpr size_t kKept = 4;  // prefetching workers are in at most two
    while (windows_->positions.size() > kKept) {
      const auto first = windows_->positions.begin();
      windows_->positions.erase(first->first == begin ? std::next(first) : first);
    }
    std::vector<std::pair<uint8_t, int64_t>> sorted;
    for (int64_t p = begin; p < end; ++p) sorted.emplace_back((*options_.groups)[static_cast<size_t>(place(p, 0).index)], p);
    std::sort(sorted.begin(), sorted.end());
    const int64_t batches = (end - begin) / options_.batch;
    const Permutation order(std::max<int64_t>(1, batches), options_.seed, "batches", static_cast<uint64_t>(begin));
    window.resize(sorted.size());
    for (int64_t i = 0; i < std::ssize(sorted); ++i) {
      const int64_t batch = i / options_.batch;  // a shorter last one stays the last
      const int64_t to = (options_.shuffle && batch < batches ? order(batch) : batch) * options_.batch + i % options_.batch;
      window[static_cast<size_t>(to)] = sorted[static_cast<size_t>(i)].second;
    }
  }
  return window[static_cast<size_t>(position - begin)];
}

SampleOrder::Place SampleOrder::at(int64_t position) const { return instead_of(position, 0); }
SampleOrder::Place SampleOrder::instead_of(int64_t position, int64_t tries) const {
  return place(options_.groups ? grouped(position) : position, tries);
}

SampleOrder::Place SampleOrder::place(int64_t position, int64_t tries) const {
  const int64_t epoch = position / epoch_samples_;
  int64_t index = position % epoch_samples_;
  if (options_.shuffle) index = Permutation(count_, options_.seed, "shuffle", static_cast<uint64_t>(epoch))(index);
  index = begin_ + (index + tries) % count_;
  if (options_.slice_seed) index = Permutation(source_size_, *options_.slice_seed, "slice", 0)(index);
  return {epoch, index};
}

int64_t SampleOrder::batch_samples(int64_t position) const {
  if (options_.last_batch != LastBatchRule::kKeep) return options_.batch;
  return std::min(options_.batch, epoch_samples_ - position % epoch_samples_);
}

}  // namespace galley
