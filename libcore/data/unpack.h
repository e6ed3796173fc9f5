#pragma once
// Compressed files into memory, under a budget.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// The contents of a gzip file (all members; CRC and length verified), or of a file that is not compressed. Throws beyond
/// `budget` bytes and where the data is damaged.
std::vector<std::byte> read_gzip(const std::string& path, int64_t budget);

/// The contents of a file compressed by xz, bzip2, zstd or lzma (whatever libarchive's filters know). Throws as above.
std::vector<std::byte> read_compressed(const std::string& path, int64_t budget);

/// Whether a file starts as gzip does.
bool is_gzip(const std::string& path);

}  // namespace galley
