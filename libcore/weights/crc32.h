#pragma once
// CRC-32 of zip archives (ISO 3309, reflected polynomial 0xEDB88320). Uses carry-less multiplication where available and then runs at
// memory speed, because files are checked whenever they are loaded.

#include <cstddef>
#include <cstdint>
#include <span>

namespace galley {

/// The checksum of `bytes`, continuing from the checksum `before` of preceding bytes (0: none).
uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace galley
