#include "libcore/base/digest.h"

#include <xxhash.h>

#include "libcore/base/error.h"

namespace galley {
namespace {

std::string to_hex(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace

void Digest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Digest::Digest() : state_(XXH3_createState()) {
  if (state_ == nullptr) fail(ErrorCode::kResource, "not enough memory for a digest");
  XXH3_128bits_reset(state_.get());
}

void Digest::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string Digest::hex() const { return to_hex(XXH3_128bits_digest(state_.get())); }

std::string digest_of(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string digest_with_hole(std::string_view text, size_t at) {
  GALLEY_ASSERT(at + kDigestDigits <= text.size());
  Digest digest;
  digest.update(text.substr(0, at));
  digest.update(std::string(kDigestDigits, '0'));
  digest.update(text.substr(at + kDigestDigits));
  return digest.hex();
}

}  // namespace galley
