#pragma once
// Reads compressed files into memory, up to a size limit.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// The contents of a gzip file (all members; CRC and length are verified), or of a file that is not compressed. Throws Error (exit 4) if
/// the data is damaged or the contents exceed `budget` bytes.
std::vector<std::byte> read_gzip(const std::string& path, int64_t budget);

/// The contents of a file compressed with xz, bzip2, zstd or lzma (any filter of libarchive). Throws Error (exit 4) as read_gzip does.
std::vector<std::byte> read_compressed(const std::string& path, int64_t budget);

/// Whether a file starts with the magic number of gzip.
bool is_gzip(const std::string& path);

}  // namespace galley
