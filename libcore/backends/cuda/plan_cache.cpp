#include "libcore/backends/cuda/plan_cache.h"

#include <atomic>
#include <cstdlib>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"

namespace galley {
namespace {

constexpr std::string_view kHead = "galley cuda plan 1\n";
constexpr int64_t kMostBytes = int64_t{64} << 20;

/// Empty: plans are not kept.
std::string folder() {
  const auto given = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string named = given("GALLEY_CUDA_PLANS");
  if (!named.empty()) return named == "none" ? "" : named;
  if (const std::string cache = given("XDG_CACHE_HOME"); !cache.empty()) return cache + "/galley/cuda-plans";
  const std::string home = given("HOME");
  return home.empty() ? "" : home + "/.cache/galley/cuda-plans";
}

std::string path_of(const std::string& in, const std::string& key) { return cat(in, "/", digest_of(key), ".plan"); }

}  // namespace

std::string plan_key(const CudaDevice& device, const cuda::LibraryState& library, const std::string& form) {
  const CudaFacts& facts = device.facts();
  return cat(library.name, " ", library.version, "; ", facts.name, ", ", facts.capability, ", ", facts.processors, " processors; driver ",
             cuda::driver_state().version, " ", cuda::driver_release(), "; ", form);
}

// A file: the head, the digest of what follows, the key on a line, the plan.
std::optional<std::string> stored_plan(const std::string& key) {
  const std::string in = folder(), path = path_of(in, key);
  if (in.empty() || !file_exists(path)) return std::nullopt;
  try {
    const std::string all = read_file(path, kMostBytes);
    const std::string_view text = all;
    const size_t begin = kHead.size() + kDigestDigits + 1;
    const bool whole = text.starts_with(kHead) && text.size() > begin && text[begin - 1] == '\n' &&
                       digest_of(text.substr(begin)) == text.substr(kHead.size(), kDigestDigits);
    if (!whole) {
      log(LogLevel::kInfo, cat("the stored plan ", path, " is damaged: it is made again"));
      return std::nullopt;
    }
    if (!text.substr(begin).starts_with(key + "\n")) return std::nullopt;  // of another key with the same digest
    return std::string(text.substr(begin + key.size() + 1));
  } catch (const Error& error) {
    log(LogLevel::kInfo, cat("the stored plan ", path, " cannot be read: ", error.message()));
    return std::nullopt;
  }
}

void store_plan(const std::string& key, std::string_view plan) {
  static std::atomic<bool> failed = false;
  const std::string in = folder();
  if (in.empty() || failed) return;
  const std::string body = cat(key, "\n", plan);
  try {
    make_folders(in);
    write_file(path_of(in, key), cat(kHead, digest_of(body), "\n", body));
  } catch (const Error& error) {
    failed = true;
    log(LogLevel::kInfo, cat("plans are not kept for the next run: ", error.message()));
  }
}

}  // namespace galley
