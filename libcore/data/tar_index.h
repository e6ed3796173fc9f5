#pragma once
// Positions of the members of a tar archive.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

/// A regular file of an archive.
struct TarMember {
  std::string name;
  int64_t offset = 0;  ///< Of the data, in bytes from the start of the archive.
  int64_t size = 0;    ///< In bytes.
};

/// The regular files of an uncompressed tar archive (ustar, pax, GNU), in the archive's order; folders are left out. Throws Error (exit 4),
/// naming `path` and the member, for links and devices, sparse members, names that are absolute or contain ".." or control characters,
/// duplicate names, data beyond the end of the archive, and a missing end mark (a truncated archive).
std::vector<TarMember> index_tar(std::span<const std::byte> archive, const std::string& path);

}  // namespace galley
