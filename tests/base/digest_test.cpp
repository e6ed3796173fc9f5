// Law: digests are XXH3-128 in canonical order (golden values from python-xxhash 3.x), incremental and one-shot digests are equal, and a
// text can contain its own digest.
#include "libcore/base/digest.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley {
namespace {

TEST(Digest, GoldenValues) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(digest_of("The quick brown fox jumps over the lazy dog"), "ddd650205ca3e7fa24a1cc2e3a8a7651");
}

TEST(Digest, PartsEqualTheWhole) {
  std::string text;
  for (int i = 0; i < 256 * 17; ++i) text += static_cast<char>(i % 256);
  for (const size_t part : {1u, 7u, 240u, 1024u}) {
    Digest digest;
    for (size_t at = 0; at < text.size(); at += part) digest.update(std::string_view(text).substr(at, part));
    EXPECT_EQ(digest.hex(), "aaca5c3a6288f76c56f05ca6814af06f") << part;
  }
  EXPECT_EQ(digest_of(text), "aaca5c3a6288f76c56f05ca6814af06f");
}

TEST(Digest, HoleIsReadAsZeros) {
  std::string text = "head " + std::string(kDigestDigits, '0') + " tail";
  const std::string own = digest_with_hole(text, 5);
  EXPECT_EQ(own, digest_of(text));
  text.replace(5, kDigestDigits, own);
  EXPECT_EQ(digest_with_hole(text, 5), own);
  text.back() = 'L';
  EXPECT_NE(digest_with_hole(text, 5), own);
}

}  // namespace
}  // namespace galley
