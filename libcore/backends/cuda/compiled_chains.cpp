#include "libcore/backends/cuda/compiled_chains.h"

#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

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
GALLEY_DEVICE float number(uint32_t bits) { Bits value; value.bits = bits; return value.number; }
)";

/// Elements that a thread computes at once: 16 bytes, if all operands have them one after the other, or the same one.
int together(const ChainCall& call) {
  const int most = call.type == device::kF32 ? 4 : 8, last = call.dimensions - 1;
  if (call.sizes[last] % most != 0) return 1;
  for (int j = 0; j < call.inputs_count; ++j) {
    const int64_t inner = call.steps[j][last];
    if (inner != 0 && inner != 1) return 1;
    for (int d = 0; d < last && inner == 1; ++d)
      if (call.steps[j][d] % most != 0) return 1;
  }
  return most;
}

std::string number(float value) { return cat("number(", std::bit_cast<uint32_t>(value), "u)"); }

/// The places of the inputs for element i.
std::string places(const ChainCall& call) {
  std::string text, rest = "i";
  std::array<std::string, device::kMostChainInputs> at;
  for (int d = call.dimensions - 1; d >= 0; --d) {
    const std::string name = cat("place", d);
    if (d > 0) {
      text += cat("    const int64_t outer", d, " = ", rest, " / ", call.sizes[d], ", ", name, " = ", rest, " - outer", d, " * ",
                  call.sizes[d], ";\n");
    } else {
      text += cat("    const int64_t ", name, " = ", rest, ";\n");
    }
    rest = cat("outer", d);
    for (int j = 0; j < call.inputs_count; ++j)
      if (call.steps[j][d] != 0) at[static_cast<size_t>(j)] += cat(" + ", name, " * ", call.steps[j][d]);
  }
  for (int j = 0; j < call.inputs_count; ++j) text += cat("    const int64_t at", j, " = 0", at[static_cast<size_t>(j)], ";\n");
  return text;
}

std::string step_text(const ChainStepCall& step, int result, const char* type) {
  const std::string first = cat("v", step.operands[0]), second = cat("v", step.operands[1]);
  const std::string numbers = cat(number(step.numbers[0]), ", ", number(step.numbers[1]));
  std::string operands, value;
  if (step.kind == ChainStepCall::kBackward) {
    value = cat("backward_of<Nth<", step.function, ">>(", first, ", ", second, ", ", numbers, ")");
  } else {
    operands = cat("      const float x", result, "[3] = {", first, ", ", second, ", 0};\n");
    value = cat("value_of<Nth<", step.function, ">>(x", result, ", ", numbers, ")");
  }
  return cat(operands, "      const float v", result, " = rounded(", value, ", ", type, ");\n");
}

}  // namespace

std::string chain_source(const ChainCall& call) {
  const char* type = call.type == device::kBF16 ? "kBF16" : call.type == device::kF16 ? "kF16" : "kF32";
  const int width = together(call), last = call.dimensions - 1;
  const bool wide = call.type == device::kF32;
  std::string text =
      cat(kHead, "struct alignas(", width * (wide ? 4 : 2), ") Pack { ", wide ? "float" : "uint16_t", " v[", width, "]; };\n");
  text += cat("GALLEY_KERNEL(chain, (const ChainCall call)) {\n  for (int64_t c = first_element(); c < ", call.elements / width,
              "; c += all_threads()) {\n    const int64_t i = c * ", width, ";\n", places(call));
  for (int j = 0; j < call.inputs_count; ++j) {
    if (width > 1 && call.steps[j][last] == 1) {
      text += cat("    const Pack p", j, " = *reinterpret_cast<const Pack*>(static_cast<const ", wide ? "float" : "uint16_t",
                  "*>(call.inputs[", j, "]) + at", j, ");\n");
    } else {
      text += cat("    const float p", j, " = load<float>(call.inputs[", j, "], at", j, ", ", type, ");\n");
    }
  }
  text += cat("    Pack result;\n    GALLEY_UNROLL\n    for (int e = 0; e < ", width, "; ++e) {\n");
  for (int j = 0; j < call.inputs_count; ++j) {
    const bool packed = width > 1 && call.steps[j][last] == 1;
    text += cat("      const float v", j, " = ", packed ? cat("load<float>(p", j, ".v, e, ", type, ")") : cat("p", j), ";\n");
  }
  for (int k = 0; k < call.steps_count; ++k) text += step_text(call.chain[k], device::kMostChainInputs + k, type);
  text += cat("      store(v", device::kMostChainInputs + call.steps_count - 1, ", result.v, e, ", type, ");\n    }\n");
  text += cat("    static_cast<Pack*>(call.output)[c] = result;\n  }\n}\n}  // namespace galley::device\n");
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
      log(LogLevel::kInfo, cat(problem, ". Until then one kernel interprets all chains of element-wise functions"));
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

}  // namespace galley
