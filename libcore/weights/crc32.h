#pragma once
// CRC-32 of zip archives (ISO 3309, reflected polynomial 0xEDB88320), as fast as memory where the processor multiplies
// polynomials: files are checked whenever they are loaded.

#include <cstddef>
#include <cstdint>
#include <span>

namespace galley {

/// The checksum of `bytes` that follow bytes of the checksum `before` (0: none).
uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace galley
