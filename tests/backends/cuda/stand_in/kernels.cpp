#include "tests/backends/cuda/stand_in/kernels.h"

#include <tuple>
#include <utility>

#include "tests/backends/cuda/stand_in/emulate.h"
// The kernels, after the emulation.
#include "libcore/backends/cuda/kernels/all.h"
#include "libcore/backends/cuda/kernels/list.h"

namespace galley::stand_in {
namespace {

template <class... A, size_t... kIndex>
std::function<void()> bound(void (*kernel)(A...), void** arguments, std::index_sequence<kIndex...>) {
  return [kernel, copies = std::tuple<std::remove_cvref_t<A>...>(*static_cast<const std::remove_cvref_t<A>*>(arguments[kIndex])...)] {
    std::apply(kernel, copies);
  };
}
template <class... A>
std::function<void()> bound(void (*kernel)(A...), void** arguments) {
  return bound(kernel, arguments, std::index_sequence_for<A...>());
}

constexpr HostKernel kKernels[] = {
#define GALLEY_ROW(name) {#name, [](void** arguments) { return bound(&device::name, arguments); }},
    GALLEY_CUDA_KERNELS(GALLEY_ROW)
#undef GALLEY_ROW
};

}  // namespace

const HostKernel* find_kernel(std::string_view name) {
  for (const HostKernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace galley::stand_in
