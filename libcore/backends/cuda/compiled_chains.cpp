#include "libcore/backends/cuda/compiled_chains.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "libcore/backends/cuda/kernels.h"
#include "libcore/backends/cuda/plan_cache.h"
#include "libcore/base/error.h"
#include "libcore/base/log.h"

// The texts that a kernel includes.
#define GALLEY_ASSEMBLY __asm__
#define GALLEY_TEXT(name, file)                                                                                    \
  GALLEY_ASSEMBLY(".section .rodata\n" #name ":\n.incbin \"" GALLEY_CUDA_SOURCES file "\"\n.byte 0\n.previous\n"); \
  extern "C" const char name[] __attribute__((visibility("hidden")))
GALLEY_TEXT(galley_text_calls, "/libcore/backends/cuda/kernels/calls.h");
GALLEY_TEXT(galley_text_portable, "/libcore/backends/cuda/kernels/portable.h");
GALLEY_TEXT(galley_text_functions, "/libcore/backends/cuda/kernels/functions.h");
GALLEY_TEXT(galley_text_elementwise, "/libcore/ops/elementwise_functions.h");

namespace galley {
namespace {

using device::ChainCall;
using device::ChainStepCall;
namespace nvrtc = cuda::nvrtc;

/// NVRTC has no headers of the C++ library.
constexpr const char* kIntegers =
    "#pragma once\n"
    "using int8_t = signed char; using uint8_t = unsigned char; using int16_t = short; using uint16_t = unsigned short;\n"
    "using int32_t = int; using uint32_t = unsigned; using int64_t = long long; using uint64_t = unsigned long long;\n";

constexpr const char* kHead = R"(#include "libcore/backends/cuda/kernels/functions.h"
namespace galley::device {
template <int kPosition, class First, class... Rest>
struct At : At<kPosition - 1, Rest...> {};
template <class First, class... Rest>
struct At<0, First, Rest...> { using Type = First; };
template <int kPosition, class... F>
GALLEY_DEVICE typename At<kPosition, F...>::Type* find(FunctionList<F...>);
template <class T> struct Pointed;
template <class T> struct Pointed<T*> { using Type = T; };
template <int kPosition>
using Nth = typename Pointed<decltype(find<kPosition>(Functions()))>::Type;
)";

/// The places of the inputs for element i, as at0, at1, ...
std::string places(const ChainCall& call) {
  std::string text, rest = "i";
  std::array<std::string, device::kMostChainInputs> at;
  for (int d = call.dimensions - 1; d >= 0; --d) {
    const std::string name = cat("place", d), size = cat("static_cast<Index>(call.sizes[", d, "])");
    if (d > 0) {
      text += cat("    const Index outer", d, " = ", rest, " / ", size, ", ", name, " = ", rest, " - outer", d, " * ", size, ";\n");
    } else {
      text += cat("    const Index ", name, " = ", rest, ";\n");
    }
    rest = cat("outer", d);
    for (int j = 0; j < call.inputs_count; ++j) {
      const int64_t step = call.steps[j][d];
      if (step == 0) continue;
      at[static_cast<size_t>(j)] += cat(" + ", name, step == 1 ? "" : cat(" * static_cast<Index>(call.steps[", j, "][", d, "])"));
    }
  }
  for (int j = 0; j < call.inputs_count; ++j) text += cat("    const Index at", j, " = 0", at[static_cast<size_t>(j)], ";\n");
  return text;
}

/// Step k, whose result is v[kMostChainInputs + k]. Its numbers are parameters, as sizes are: one kernel serves many calls.
std::string step_text(const ChainStepCall& step, int k, const char* type, bool rounds) {
  const int result = device::kMostChainInputs + k;
  const std::string first = cat("v", step.operands[0]), second = cat("v", step.operands[1]);
  const std::string numbers = cat("call.chain[", k, "].numbers[0], call.chain[", k, "].numbers[1]");
  std::string operands, value;
  if (step.kind == ChainStepCall::kBackward) {
    value = cat("backward_of<Nth<", step.function, ">>(", first, ", ", second, ", ", numbers, ")");
  } else {
    operands = cat("  const float x", result, "[3] = {", first, ", ", second, ", 0};\n");
    value = cat("value_of<Nth<", step.function, ">>(x", result, ", ", numbers, ")");
  }
  return cat(operands, "  const float v", result, " = ", rounds ? cat("rounded(", value, ", ", type, ")") : value, ";\n");
}

}  // namespace

int chain_width(const ChainCall& call) {
  const int most = call.type == device::kF32 ? 4 : 8, last = call.dimensions - 1;
  for (int j = 0; j < call.inputs_count; ++j) {
    const int64_t inner = call.steps[j][last];
    if (inner != 0 && inner != 1) return 1;
    for (int d = 0; d < last && inner == 1; ++d)
      if (call.steps[j][d] % most != 0) return 1;
  }
  return last > 0 && call.sizes[last] % most != 0 ? 1 : most;
}

std::string chain_source(const ChainCall& call) {
  const char* type = call.type == device::kBF16 ? "kBF16" : call.type == device::kF16 ? "kF16" : "kF32";
  const int width = chain_width(call), last = call.dimensions - 1;
  const char* number = call.type == device::kF32 ? "float" : "uint16_t";
  const bool narrow = call.elements < int64_t{1} << 31;
  std::string operands, read, pack_values, values, tail;
  for (int j = 0; j < call.inputs_count; ++j) {
    const bool packed = width > 1 && call.steps[j][last] == 1;
    operands += cat(", float v", j);
    values += cat(", load_real(call.inputs[", j, "], at", j, ", ", type, ")");
    pack_values += packed ? cat(", load_real(p", j, ".v, e, ", type, ")") : cat(", p", j);
    read += packed ? cat("    const Pack p", j, " = *reinterpret_cast<const Pack*>(static_cast<const ", number, "*>(call.inputs[", j,
                         "]) + at", j, ");\n")
                   : cat("    const float p", j, " = load_real(call.inputs[", j, "], at", j, ", ", type, ");\n");
  }
  std::string text = cat(kHead, "using Index = ", narrow ? "uint32_t" : "int64_t", ";\nstruct alignas(", width * (number[0] == 'f' ? 4 : 2),
                         ") Pack { ", number, " v[", width, "]; };\nGALLEY_DEVICE float value(const ChainCall& call", operands, ") {\n");
  for (int k = 0; k < call.steps_count; ++k) text += step_text(call.chain[k], k, type, k + 1 < call.steps_count);
  text += cat("  return v", device::kMostChainInputs + call.steps_count - 1, ";\n}\n");
  if (width > 1 && last == 0) {  // what remains after the last whole pack
    tail = cat("  for (Index i = packs * ", width,
               " + static_cast<Index>(first_element()); i < static_cast<Index>(call.elements); i += "
               "static_cast<Index>(all_threads())) {\n",
               places(call), "    store_real(value(call", values, "), call.output, i, ", type, ");\n  }\n");
  }
  text += cat("GALLEY_KERNEL(chain, (const ChainCall call)) {\n  const Index packs = static_cast<Index>(call.elements) / ", width,
              ";\n  for (Index c = static_cast<Index>(first_element()); c < packs; c += static_cast<Index>(all_threads())) {\n"
              "    const Index i = c * ",
              width, ";\n", places(call), read, "    Pack result;\n    GALLEY_UNROLL\n    for (int e = 0; e < ", width,
              "; ++e) store_real(value(call", pack_values, "), result.v, e, ", type,
              ");\n    static_cast<Pack*>(call.output)[c] = result;\n  }\n", tail, "}\n}  // namespace galley::device\n");
  return text;
}

std::string compile_for_gpu(const nvrtc::Nvrtc& compiler, const std::string& source, int architecture) {
  const nvrtc::Functions& library = compiler.functions;
  const char* texts[] = {kIntegers, galley_text_calls, galley_text_portable, galley_text_functions, galley_text_elementwise};
  const char* names[] = {"cstdint", "libcore/backends/cuda/kernels/calls.h", "libcore/backends/cuda/kernels/portable.h",
                         "libcore/backends/cuda/kernels/functions.h", "libcore/ops/elementwise_functions.h"};
  nvrtc::Program program = nullptr;
  nvrtc::Result result = library.nvrtcCreateProgram(&program, source.c_str(), "chain.cu", std::size(names), texts, names);
  const auto fail = [&](const std::string& more) {
    throw Error(ErrorCode::kInternal,
                cat("NVRTC (", compiler.state.file, "): ", library.nvrtcGetErrorString(result), more.empty() ? "" : cat("\n", more)));
  };
  if (result != nvrtc::kSuccess) fail("");
  const std::string target = cat("--gpu-architecture=sm_", architecture);
  const char* options[] = {target.c_str(), "-std=c++20"};
  result = library.nvrtcCompileProgram(program, std::size(options), options);
  std::string log, image;
  size_t bytes = 0;
  if (result == nvrtc::kSuccess) {
    result = library.nvrtcGetCUBINSize(program, &bytes);
    image.resize(bytes);
    if (result == nvrtc::kSuccess) result = library.nvrtcGetCUBIN(program, image.data());
  } else if (library.nvrtcGetProgramLogSize(program, &bytes) == nvrtc::kSuccess) {
    log.resize(bytes);
    library.nvrtcGetProgramLog(program, log.data());
  }
  library.nvrtcDestroyProgram(&program);
  if (result != nvrtc::kSuccess) fail(log);
  return image;
}

namespace {

/// The image of the plan cache, or of the compiler.
std::string image_of(const CudaDevice& device, const std::string& source) {
  const nvrtc::Nvrtc& compiler = nvrtc::nvrtc();
  const std::string key = plan_key(device, compiler.state, source);
  if (const std::optional<std::string> stored = stored_plan(key)) return *stored;
  std::string image = compile_for_gpu(compiler, source, device.facts().capability);
  store_plan(key, image);
  return image;
}

/// Images stay loaded, and are kept for the driver.
struct Loaded {
  std::string image;
  cuda::KernelHandle kernel = nullptr;
};

}  // namespace

cuda::KernelHandle compiled_chain(const CudaDevice& device, const ChainCall& call) {
  static std::mutex mutex;
  static std::map<std::pair<const CudaDevice*, std::string>, Loaded>& loaded =
      *new std::map<std::pair<const CudaDevice*, std::string>, Loaded>;
  static bool said = false;
  const std::lock_guard lock(mutex);
  if (const std::string& problem = nvrtc::nvrtc().state.problem; !problem.empty()) {
    if (!std::exchange(said, true))
      log(LogLevel::kInfo, cat(problem, ". Until then general kernels compute element-wise functions and chains of them, more slowly"));
    return nullptr;
  }
  const std::string source = chain_source(call);
  const auto [place, added] = loaded.try_emplace({&device, source});
  Loaded& made = place->second;
  if (!added) return made.kernel;
  try {
    made.image = image_of(device, source);
    device.make_current();
    cuda::LibraryHandle library = nullptr;
    cuda::check(cuda::driver().cuLibraryLoadData(&library, made.image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "loading a chain");
    cuda::check(cuda::driver().cuLibraryGetKernel(&made.kernel, library, "chain"), "finding a chain");
  } catch (const Error& error) {
    log(LogLevel::kWarning, cat("a chain of element-wise functions is interpreted: ", error.message()));
  }
  return made.kernel;
}

bool launch_compiled(Stream& stream, cuda::KernelHandle kernel, const ChainCall& call) {
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (kernel == nullptr || !aligned(call.output) || !std::all_of(call.inputs, call.inputs + call.inputs_count, aligned)) return false;
  ChainCall copy = call;
  void* arguments[] = {&copy};
  cuda_launch(stream, kernel, "chain", cuda_blocks(stream, (call.elements + chain_width(call) - 1) / chain_width(call)), arguments);
  return true;
}

}  // namespace galley
