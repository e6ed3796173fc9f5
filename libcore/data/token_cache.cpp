#include "libcore/data/token_cache.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/text/tokenizer.h"

namespace galley {
namespace {

/// At the start of a cache; the ids follow, little-endian.
struct Header {
  char magic[16];
  char key[kDigestDigits];
  char digest[kDigestDigits];  // Of the ids.
  int64_t count;
  int64_t width;  // Bytes of an id: 2 or 4.
};
static_assert(sizeof(Header) == 96);
constexpr char kMagic[] = "galley tokens 1";
static_assert(sizeof(kMagic) == sizeof(Header::magic));

std::string user_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return cat(cache, "/galley/tokens");
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? cat(home, "/.cache/galley/tokens") : "";
}

/// Writes ids of `width` bytes.
void write_cache(const std::string& path, const std::string& key, const std::vector<int32_t>& ids, int64_t width) {
  std::vector<uint16_t> narrow;
  if (width == 2) narrow.assign(ids.begin(), ids.end());
  const auto bytes = width == 2 ? std::as_bytes(std::span(narrow)) : std::as_bytes(std::span(ids));
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  std::memcpy(header.key, key.data(), kDigestDigits);
  std::memcpy(header.digest, digest_of(bytes).data(), kDigestDigits);
  header.count = static_cast<int64_t>(ids.size());
  header.width = width;
  make_folders(parent_folder(path));
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(bytes);
  file.finish();
}

}  // namespace

TokenList::TokenList(std::vector<int32_t> ids) {
  const auto owner = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  wide_ = owner->data();
  size_ = static_cast<int64_t>(owner->size());
  owner_ = owner;
}

TokenCache::TokenCache(const text::Tokenizer& tokenizer, const std::string& where) : tokenizer_(tokenizer) {
  if (where == "none") return;
  folder_ = where == "auto" ? user_folder() : where;
  if (where == "auto") least_ = kLeastBytes;
  digest_ = digest_of(tokenizer.saved());
}

/// The tokens of a cache; none if the file is missing or damaged.
TokenList TokenCache::map(const std::string& path, const std::string& key) const {
  TokenList list;
  if (!file_exists(path)) return list;
  const auto file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file->bytes();
  Header header{};
  if (bytes.size() < sizeof header) return list;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> ids = bytes.subspan(sizeof header);
  const bool fits = (header.width == 2 || header.width == 4) && header.count > 0 &&
                    header.count <= std::numeric_limits<int64_t>::max() / 4 &&
                    ids.size() == static_cast<size_t>(header.count * header.width);
  if (!fits || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || std::memcmp(header.key, key.data(), kDigestDigits) != 0 ||
      std::memcmp(header.digest, digest_of(ids).data(), kDigestDigits) != 0)
    return list;
  list.owner_ = file;
  list.size_ = header.count;
  list.mapped_ = true;
  if (header.width == 2) {
    list.narrow_ = reinterpret_cast<const uint16_t*>(ids.data());
  } else {
    list.wide_ = reinterpret_cast<const int32_t*>(ids.data());
  }
  return list;
}

TokenList TokenCache::tokens_of(const std::string& path) const {
  const std::string text = read_file(path);
  // A file is a part of the text: nothing is put around it, and special tokens that it spells out count.
  const auto encode = [&] { return tokenizer_.encode(text, {.add_special = false, .name = path}); };
  if (folder_.empty() || static_cast<int64_t>(text.size()) < least_) return TokenList(encode());
  const std::string key = digest_of(cat(digest_, " ", digest_of(text))), cache = cat(folder_, "/", key, ".tokens");
  TokenList list = map(cache, key);
  if (list.size() > 0) return list;
  std::vector<int32_t> ids = encode();
  if (ids.empty()) return TokenList(std::move(ids));
  try {
    write_cache(cache, key, ids, tokenizer_.size() <= int64_t{1} << 16 ? 2 : 4);
    list = map(cache, key);
  } catch (const Error& error) {
    log(LogLevel::kWarning, cat("the tokens of ", path, " are not kept for the next start: ", error.message()));
  }
  return list.size() > 0 ? list : TokenList(std::move(ids));
}

}  // namespace galley
