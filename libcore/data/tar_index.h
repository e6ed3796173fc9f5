#pragma once
// Positions of the members of a tar archive.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace galley {

struct TarMember {
  std::string name;
  int64_t offset = 0;  ///< Of the data, from the start of the archive.
  int64_t size = 0;
};

/// The regular files of an uncompressed tar archive (ustar, pax, GNU), in its order; folders are left out. Throws Error, naming
/// `path` and the member, for links and devices, sparse members, names that are absolute, hold ".." or control characters or
/// stand twice, data beyond the end of the archive, and an archive without its end mark (a truncated one).
std::vector<TarMember> index_tar(std::span<const std::byte> archive, const std::string& path);

}  // namespace galley
