#include "libcore/backends/cpu/algorithms.h"

namespace galley {

std::vector<Kernel> kernels_of(std::span<const AlgorithmRow> rows) {
  std::vector<Kernel> kernels;
  for (const AlgorithmRow& row : rows)
    kernels.push_back({row.op, row.name, row.algorithm.supports, row.algorithm.prepare, row.algorithm.preferred_format});
  return kernels;
}

}  // namespace galley
