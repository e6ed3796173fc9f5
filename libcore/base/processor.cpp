#include "libcore/base/processor.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace galley {

const TileUnit& tile_unit() {
  static const TileUnit unit = [] {
    TileUnit found;
#if defined(__x86_64__) && defined(__linux__)
    // Intel SDM vol. 2, CPUID leaf 7: EDX bits 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8. Linux: Documentation/arch/x86/xstate.rst.
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0) return found;
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return found;
    found = {(edx & kInt8) != 0, (edx & kBf16) != 0};
#endif
    return found;
  }();
  return unit;
}

bool has_fast_bf16() {
  static const bool fast = [] {
#if defined(__x86_64__) && defined(__linux__)
    __builtin_cpu_init();
    if (tile_unit().bf16) return true;
    // Intel SDM vol. 2, CPUID leaf 7: EDX bit 23 AVX512-FP16; __builtin_cpu_supports does not know the name before clang 15.
    constexpr unsigned kFp16 = 1u << 23;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const bool fp16 = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kFp16) != 0;
    return __builtin_cpu_supports("avx512bf16") && !(__builtin_cpu_is("intel") && fp16);
#else
    return false;
#endif
  }();
  return fast;
}

}  // namespace galley
