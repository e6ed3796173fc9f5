#include "libcore/data/order.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <tuple>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"

namespace galley {

Permutation::Permutation(int64_t size, uint64_t seed, std::string_view purpose, uint64_t index)
    : size_(static_cast<uint64_t>(size)), key_(stream_key(seed, purpose)), index_(index) {
  GALLEY_ASSERT(size >= 1);
  const int bits = std::max(2, static_cast<int>(std::bit_width(size_ - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

int64_t Permutation::operator()(int64_t position) const {
  auto value = static_cast<uint64_t>(position);
  GALLEY_ASSERT(value < size_);
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  // Two rounds more than the six that make a network of random functions look random on small domains.
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

Slice Slice::parse(std::string_view text) {
  const auto bad = [&] {
    fail(ErrorCode::kRecipe, "'", text, "' is not a slice: write 0%..90%, 1000..2000, ..500 or 90%..");
  };
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) bad();
  Slice slice;
  bool counts = false;
  const auto number = [&](std::string_view part) {
    if (part.ends_with('%')) {
      slice.percent = true;
      part.remove_suffix(1);
    } else {
      counts = true;
    }
    std::string digits;
    for (const char c : part)
      if (c != '_') digits += c;
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || !(value >= 0 && value < 1e15)) bad();
    return value;
  };
  const std::string_view first = text.substr(0, dots), last = text.substr(dots + 2);
  if (!first.empty()) slice.begin = number(first);
  if (!last.empty()) slice.end = number(last);
  if ((slice.percent && counts) || (slice.percent && std::max(slice.begin, slice.end.value_or(0)) > 100)) bad();
  if (counts && (slice.begin != std::floor(slice.begin) || (slice.end && *slice.end != std::floor(*slice.end)))) bad();
  return slice;
}

std::string Slice::str() const {
  const char* unit = percent ? "%" : "";
  const auto number = [&](double value) { return cat(value == std::floor(value) ? cat(static_cast<int64_t>(value)) : cat(value), unit); };
  return (begin == 0 ? std::string() : number(begin)) + ".." + (end ? number(*end) : std::string());
}

std::pair<int64_t, int64_t> Slice::of(int64_t size) const {
  const double unit = percent ? static_cast<double>(size) / 100.0 : 1.0;
  const auto first = static_cast<int64_t>(std::nearbyint(begin * unit));
  const int64_t last = end ? static_cast<int64_t>(std::nearbyint(*end * unit)) : size;
  GALLEY_CHECK(last <= size, "the slice ", str(), " reaches beyond the source's ", size, " samples");
  if (first >= last) fail(ErrorCode::kNumeric, "no samples: the slice ", str(), " of ", size, " samples is empty");
  return {first, last - first};
}

SampleOrder::SampleOrder(int64_t source_size, const OrderOptions& options) : options_(options), source_size_(source_size) {
  GALLEY_CHECK(options.batch >= 1, "a batch of ", options.batch, " samples");
  std::tie(begin_, count_) = options.slice.of(source_size);
  epoch_samples_ = count_;
  if (options.last_batch == LastBatch::kDrop) {
    epoch_samples_ = count_ / options.batch * options.batch;
    GALLEY_CHECK(epoch_samples_ > 0, "a batch of ", options.batch, " samples is larger than the data set of ", count_,
                 ", and last_batch: drop leaves nothing; use a smaller batch, or last_batch: wrap or keep");
  }
}

SampleOrder::Place SampleOrder::at(int64_t position) const { return place(position, 0); }
SampleOrder::Place SampleOrder::instead_of(int64_t position, int64_t tries) const { return place(position, tries); }

SampleOrder::Place SampleOrder::place(int64_t position, int64_t tries) const {
  const int64_t epoch = position / epoch_samples_;
  int64_t index = position % epoch_samples_;
  if (options_.shuffle) index = Permutation(count_, options_.seed, "shuffle", static_cast<uint64_t>(epoch))(index);
  index = begin_ + (index + tries) % count_;
  if (options_.slice_seed) index = Permutation(source_size_, *options_.slice_seed, "slice", 0)(index);
  return {epoch, index};
}

int64_t SampleOrder::batch_samples(int64_t position) const {
  if (options_.last_batch != LastBatch::kKeep) return options_.batch;
  return std::min(options_.batch, epoch_samples_ - position % epoch_samples_);
}

}  // namespace galley
