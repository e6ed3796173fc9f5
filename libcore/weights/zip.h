#pragma once
// Zip archives with stored (uncompressed) entries, as PyTorch writes them. The reader is strict: every byte of the file belongs to exactly
// one entry or to the directory, both headers of an entry agree, nothing is compressed or encrypted, and no name leaves the archive.
// Therefore no data is hidden, overlapping or expanding. Format: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

/// An entry of an archive.
struct ZipEntry {
  std::string name;
  int64_t begin = 0;  ///< Byte range of the values in the file.
  int64_t end = 0;
  uint32_t crc32 = 0;  ///< 0 may also mean that the writer omitted it.
};

/// Largest number of entries of an archive.
constexpr int64_t kZipEntryLimit = 100'000;

/// Whether a file begins like a zip archive.
bool is_zip(std::span<const std::byte> file);

/// Parses the entries, sorted by offset. A pure function; throws Error (exit code 4) naming the entry and the violated rule.
std::vector<ZipEntry> parse_zip(std::span<const std::byte> file);

}  // namespace galley
