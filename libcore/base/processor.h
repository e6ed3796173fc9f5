#pragma once
// What the processor offers beyond what the compiler's __builtin_cpu_supports tells.

namespace galley {

/// Products that the tile unit (Intel AMX: 16 rows of 64 bytes a tile) computes for this process.
struct TileUnit {
  bool int8 = false;  // tdpbusd and its like: bytes, summed in 32 bits
  bool bf16 = false;  // tdpbf16ps: bf16, summed in f32
};

/// All false where the processor or the system has none. Linux saves the tiles of a process only after it has asked (arch_prctl,
/// ARCH_REQ_XCOMP_PERM): the first call does.
const TileUnit& tile_unit();

/// Has the processor instructions that multiply bf16 faster than f32? AMX's, or avx512_bf16's vdpbf16ps where it makes more products than
/// vfmadd. Intel's processors with avx512_fp16 (Sapphire Rapids and later) make half as many (measured: docs/instruction_sets.md): they
/// leave bf16 to AMX, which virtual machines may hide.
bool has_fast_bf16();

}  // namespace galley
