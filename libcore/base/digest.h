#pragma once
// XXH3-128 digests (libxxhash) that detect damaged data: 32 lower-case hexadecimal digits in the canonical (big-endian) order that `xxhsum
// -H2` prints. They protect against accidents, not against attackers.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace galley {

constexpr size_t kDigestDigits = 32;

/// An incremental digest.
class Digest {
 public:
  Digest();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// Digest of all bytes so far; more may follow.
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

std::string digest_of(std::span<const std::byte> bytes);
inline std::string digest_of(std::string_view text) { return digest_of(std::as_bytes(std::span(text))); }

/// Digest of a text that contains its own digest: computed with the kDigestDigits digits at `at` replaced by zeros.
std::string digest_with_hole(std::string_view text, size_t at);

}  // namespace galley
