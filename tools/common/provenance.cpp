#include "tools/common/provenance.h"

#include <nettle/sha2.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "tools/common/tool.h"
#include "tools/common/version.h"

namespace galley::tools {

std::string instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  std::string isa = "sse4.2";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa = "avx2";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) isa = "avx512";
  if (isa == "avx512" && __builtin_cpu_supports("avx512vnni")) isa += "+vnni";
  if (isa.starts_with("avx512") && __builtin_cpu_supports("avx512bf16")) isa += "+bf16";
  if (tile_unit().int8 || tile_unit().bf16) isa += "+amx";
  return isa;
#else
  return "generic";
#endif
}

namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

nlohmann::ordered_json provenance_json(const Provenance& provenance) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  nlohmann::ordered_json json;
  json["tool"] = provenance.tool;
  json["version"] = kVersion;
  json["commit"] = kCommit;
  json["time"] = utc_now();
  json["host"] = host;
  json["isa"] = instruction_set();
  json["threads"] = provenance.threads > 0 ? provenance.threads : compute_threads();
  json["recipe_sha256"] = provenance.recipe_sha256;
  json["overrides"] = provenance.overrides;
  json["seed"] = provenance.seed;
  return json;
}

std::string sha256_hex(const std::string& text) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, text.size(), reinterpret_cast<const uint8_t*>(text.data()));
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest;
  sha256_digest(&context, digest.size(), digest.data());
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (uint8_t byte : digest) {
    hex += kHex[byte >> 4];
    hex += kHex[byte & 15];
  }
  return hex;
}

std::string version_text(const std::string& tool) {
  return cat(tool, " ", kVersion, " (", kCommit, "), ", instruction_set(), ", ", compute_threads(), " threads");
}

}  // namespace galley::tools
