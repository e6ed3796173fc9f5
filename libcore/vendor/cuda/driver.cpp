#include "libcore/vendor/cuda/driver.h"

#include <dlfcn.h>

#include <cctype>
#include <cstdlib>
#include <fstream>

#include "libcore/base/error.h"
#include "libcore/vendor/cuda/library.h"

namespace galley::cuda {
namespace {

constexpr const char* kEnvironment = "GALLEY_CUDA_DRIVER";
constexpr const char* kInstall = "install NVIDIA's driver 580 or later (nvidia-smi shows the one installed)";

struct Opened {
  Driver functions;
  LibraryState state{.name = "driver", .version = "", .file = "", .problem = ""};
};

std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

std::string problem_of_stub(const std::string& file) {
  return cat("the driver ", file, " is the stub of a CUDA toolkit, which computes nothing; ", kInstall,
             ", and remove the stub from the path");
}

/// Fills the table. Returns why it cannot be filled; empty: it is.
std::string load_functions(void* library, const std::string& file, Driver& functions) {
  // The names of some functions stand for an older interface; cuGetProcAddress gives those of a version.
  using GetAddress = Result (*)(const char* name, void** function, int version, uint64_t flags, void* status);
  const auto address_of = reinterpret_cast<GetAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (address_of == nullptr) return cat("the driver ", file, " has no cuGetProcAddress_v2; ", kInstall);
  std::string missing;
  bool stub = false;
  const auto take = [&](const char* name, auto& target) {
    void* function = nullptr;
    const Result found = address_of(name, &function, kNeededVersion, 0, nullptr);
    stub = stub || found == kStubLibrary;
    if (found != kSuccess || function == nullptr) missing += cat(missing.empty() ? "" : ", ", name);
    target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(function);
  };
#define GALLEY_CUDA_TAKE(name, arguments) take(#name, functions.name);
  GALLEY_CUDA_DRIVER_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  if (stub) return problem_of_stub(file);
  return missing.empty() ? "" : cat("the driver ", file, " has no ", missing, "; ", kInstall);
}

/// Why the driver cannot be used; empty: it can.
std::string initialize(Opened& opened) {
  const Driver& functions = opened.functions;
  int version = 0;
  const Result read = functions.cuDriverGetVersion(&version);
  if (read == kStubLibrary) return problem_of_stub(opened.state.file);
  if (read != kSuccess) return cat("the version of ", opened.state.file, " cannot be read (error ", read, "); ", kInstall);
  if (version < kNeededVersion)
    return cat("the driver ", opened.state.file, " is of CUDA ", version_text(version), ", but ", version_text(kNeededVersion),
               " or later is needed; ", kInstall);
  const Result started = functions.cuInit(0);
  if (started == kNoDevice) return cat("the driver ", opened.state.file, " finds no NVIDIA GPU; nvidia-smi lists those that it may use");
  if (started != kSuccess) {
    const char* text = nullptr;
    functions.cuGetErrorString(started, &text);
    return cat("the driver ", opened.state.file, " cannot start: ", text != nullptr ? text : "unknown error", " (", started,
               "); nvidia-smi may say more");
  }
  opened.state.version = version_text(version);
  return "";
}

Opened open_driver() {
  Opened opened;
  const char* named = std::getenv(kEnvironment);
  const bool given = named != nullptr && *named != '\0';
  const std::string file = given ? named : "libcuda.so.1";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.state.problem = given
                               ? cat("the driver that ", kEnvironment, " names cannot be opened: ", dlerror(), "; unset it, or ", kInstall)
                               : cat("no NVIDIA driver was found: ", dlerror(), " (searched where the loader looks); ", kInstall);
    return opened;
  }
  opened.state.file = file_of(dlsym(library, "cuInit"));
  if (opened.state.file.empty()) opened.state.file = file;
  opened.state.problem = load_functions(library, opened.state.file, opened.functions);
  if (opened.state.problem.empty()) opened.state.problem = initialize(opened);
  return opened;
}

const Opened& opened() {
  static const Opened kOpened = open_driver();
  return kOpened;
}

}  // namespace

const Driver& driver() {
  if (!opened().state.problem.empty())
    throw Error(ErrorCode::kResource, cat("device cuda: ", opened().state.problem))
        .key("device")
        .suggest("device=cpu computes on the processor");
  return opened().functions;
}

LibraryState driver_state() { return opened().state; }

std::string driver_release() {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ..."
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0 && word.find('.') != std::string::npos) return word;
  }
  return "";
}

void check(Result result, const std::string& what) {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  opened().functions.cuGetErrorName(result, &name);
  opened().functions.cuGetErrorString(result, &text);
  throw Error(ErrorCode::kResource, cat("CUDA: ", what, ": ", text != nullptr ? text : "unknown error", " (",
                                        name != nullptr ? name : "CUDA_ERROR", " ", result, ")"));
}

}  // namespace galley::cuda
