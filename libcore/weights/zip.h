#pragma once
// Zip archives whose entries are stored, as PyTorch writes them. Strict: every byte of the file belongs to exactly one entry or
// to the directory, both headers of an entry agree, nothing is compressed or encrypted, and no name leaves the archive. So
// nothing can hide, overlap or unfold. Format: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

struct ZipEntry {
  std::string name;
  int64_t begin = 0;  ///< Of the values, in bytes from the start of the file.
  int64_t end = 0;
  uint32_t crc32 = 0;  ///< 0 may also mean that the writer left it out.
};

constexpr int64_t kZipEntryLimit = 100'000;

/// Whether a file begins as a zip archive does.
bool is_zip(std::span<const std::byte> file);

/// The entries in the order of their bytes. A pure function; throws Error (exit code 4) naming the entry and the rule broken.
std::vector<ZipEntry> parse_zip(std::span<const std::byte> file);

}  // namespace galley
