// Parser of tar archives: any bytes give an Error or members whose data lies inside the archive.

#include <cstdint>
#include <cstdlib>

#include "libcore/base/error.h"
#include "libcore/data/tar_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const galley::TarMember& member : galley::index_tar({reinterpret_cast<const std::byte*>(data), size}, "fuzz.tar")) {
      if (member.offset < 0 || member.size < 0 || member.offset > static_cast<int64_t>(size) ||
          member.size > static_cast<int64_t>(size) - member.offset)
        std::abort();
    }
  } catch (const galley::Error&) {
  }
  return 0;
}
