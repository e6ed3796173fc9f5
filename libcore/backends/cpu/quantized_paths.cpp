// The instructions that multiply quantized values, in the order in which they are tried, and the choice among them.

#include "libcore/backends/cpu/quantized_paths.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>

#include "libcore/backends/cpu/quantized_gemm.h"
#include "libcore/backends/cpu/quantized_thresholds.h"
#include "libcore/base/processor.h"

namespace galley::quantized {
namespace {

struct PathRow {
  Path path;
  std::string_view name;
  /// Is it the path of choice on this machine?
  bool (*takes)(Saturation saturation);
  std::string_view rule, reason;
};

constexpr std::array<PathRow, 4> kPaths{{
    {Path::kAmx, "amx", [](Saturation) { return offers(Path::kAmx); },
     "processors with AMX-INT8 (tdpbusd), bytes; not fewer than 8 pixels or 32 inputs (fitting)",
     "16 x 16 sums of 64 products per instruction"},
    {Path::kVnni, "vnni", [](Saturation) { return vector_code().avx512 && offers(Path::kVnni); }, "AVX-512 with VNNI (vpdpbusd), bytes",
     "four products per lane in one instruction"},
    {Path::kReduced, "reduced", [](Saturation s) { return s == Saturation::kReduced && vector_code().byte_pairs; },
     "SSSE3 and wider (vpmaddubsw), bytes, where the node promises that two products fit 16 bits",
     "four products per lane in three instructions; exact takes four instructions"},
    {Path::kExact, "exact", [](Saturation) { return true; }, "everywhere (vpmaddwd), both operands widened to 16 bits", "always right"},
}};

std::atomic<int> forced{-1};

}  // namespace

bool available() { return vector_code().vectors; }

bool offers(Path path) {
  const VectorCode code = vector_code();
#if defined(__x86_64__) || defined(__i386__)
  if (path == Path::kVnni && code.avx512) return __builtin_cpu_supports("avx512vnni");
#endif
  if (path == Path::kAmx) return code.avx512 && tile_unit().int8 && offers(Path::kVnni);
  return path != Path::kReduced || code.byte_pairs;
}

Path best_path(Saturation saturation) {
  if (forced >= 0) return static_cast<Path>(forced.load());
  return std::find_if(kPaths.begin(), kPaths.end(), [&](const PathRow& row) { return row.takes(saturation); })->path;
}

Path fitting(Path path, int64_t pixels, int64_t run_quads) {
  const bool few = pixels < quantized_threshold::kAmxPixels.value || run_quads < quantized_threshold::kAmxQuads.value;
  return path == Path::kAmx && forced < 0 && few ? Path::kVnni : path;
}

void force_path(const Path* path) { forced = path ? static_cast<int>(*path) : -1; }

std::string path_name(Path path) {
  std::string target = vector_code().target;
  for (char& c : target) c = static_cast<char>(std::tolower(c));
  return cat(std::find_if(kPaths.begin(), kPaths.end(), [&](const PathRow& row) { return row.path == path; })->name, ":", target);
}

}  // namespace galley::quantized
