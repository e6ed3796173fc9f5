#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
// A number is a pure function of (seed, stream, counter), so it does not depend on threads, ranks or order of calls.

#include <array>
#include <cstdint>
#include <string_view>

namespace galley {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Four random words for a 64-bit key and a 128-bit counter.
inline PhiloxBlock philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock x{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32), static_cast<uint32_t>(counter_high),
                static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * x[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1,
         static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

/// Uniform in [0,1) from the top 24 bits of a word; exact in float.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

/// Key of a named stream: FNV-1a of the name and the seed, with splitmix64's finalizer.
inline uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull ^ seed;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h += 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

/// A sequence of random numbers for one purpose. The key comes from (seed, name); the first counter word counts, the second is `index`
/// (e.g. a sample or a step). Cheap to construct; not thread-safe.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, uint64_t index = 0) : key_(stream_key(seed, name)), index_(index) {}
  uint32_t bits() {
    if (used_ == 4) {
      block_ = philox(key_, counter_++, index_);
      used_ = 0;
    }
    return block_[used_++];
  }
  /// Uniform in [0,1).
  double uniform() {
    const uint64_t high = bits() >> 5, low = bits() >> 6;
    return static_cast<double>((high << 26) | low) * 0x1p-53;
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform integer in [0, n), n >= 1, without bias (rejection).
  uint64_t below(uint64_t n) {
    const uint64_t limit = ~uint64_t{0} - ~uint64_t{0} % n;
    uint64_t word = 0;
    do {
      word = (static_cast<uint64_t>(bits()) << 32) | bits();
    } while (word >= limit);
    return word % n;
  }
  /// Standard normal (Box-Muller).
  double normal();

 private:
  uint64_t key_;
  uint64_t index_;
  uint64_t counter_ = 0;
  PhiloxBlock block_{};
  size_t used_ = 4;
};

}  // namespace galley
