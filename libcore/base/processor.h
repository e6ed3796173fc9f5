#pragma once
// Processor features that __builtin_cpu_supports does not report.

namespace galley {

/// Matrix products that the tile unit (Intel AMX, tiles of 16 rows of 64 bytes) computes for this process.
struct TileUnit {
  bool int8 = false;  // tdpbusd and related: 8-bit integers, accumulated in 32 bits
  bool bf16 = false;  // tdpbf16ps: bf16, accumulated in f32
};

/// All false if the processor or the system does not support it. Linux saves the tile registers of a process only after a request
/// (arch_prctl, ARCH_REQ_XCOMP_PERM), which the first call makes.
const TileUnit& tile_unit();

/// Whether the processor multiplies bf16 faster than f32: with AMX, or with avx512_bf16's vdpbf16ps if its throughput exceeds vfmadd's. On
/// Intel processors with avx512_fp16 (Sapphire Rapids and later) vdpbf16ps has half that throughput (measured in docs/instruction_sets.md),
/// so they need AMX, which virtual machines may hide.
bool has_fast_bf16();

}  // namespace galley
