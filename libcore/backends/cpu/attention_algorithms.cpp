// Attention: the algorithms of each operator, in the order in which they are tried.

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"attention", "flash", algorithm::kAttentionFlash, "f32 or bf16, on vectors of 256 bits or more",
     "tiles of scores stay in a core's cache"},
    {"attention_backward", "flash", algorithm::kAttentionFlashBackward, "as attention", "recomputes the scores tile by tile"},
};

}  // namespace

std::span<const AlgorithmRow> attention_algorithms() { return kRows; }

std::span<const Kernel> cpu_attention() {
  static const std::vector<Kernel> kernels = kernels_of(attention_algorithms());
  return kernels;
}

}  // namespace galley
