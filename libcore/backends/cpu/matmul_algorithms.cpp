// Matrix products in f32 and bf16: the algorithms of each operator, in the order in which they are tried. The numbers in the rules are
// those of conv_thresholds.h.

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/rounded_panels.h"
#include "libcore/backends/cpu/table.h"

namespace galley {
namespace {

constexpr AlgorithmRow kRows[] = {
    {"linear", "skinny_gemm", algorithm::kSkinnyGemmLinear, "at most 32 rows in f32, 16 in bf16: classifiers at small batches",
     "reads the weight once, where it is; oneDNN packs it at every run"},
#ifdef GALLEY_WITH_ONEDNN
    {"linear", "onednn", algorithm::kOneDnnLinear, "contiguous; f32 everywhere, bf16 where the processor multiplies it faster than f32",
     "blocked products with packed operands"},
    {"matmul", "onednn", algorithm::kOneDnnMatmul, "as linear, with batches and transposes", "as linear"},
#endif
    {"weight_only_linear", "int8_dot_gemm", algorithm::kWeightOnlyInt4, "weights of 4 bits, activations rounded to 8 bits, at most 16 rows",
     "multiplies integers: a fifth of the instructions of the conversion to floats"},
    {"weight_only_linear", "int8_panels_gemm", algorithm::kRoundedPanels, "activations rounded to 8 bits, more than 16 rows, VNNI",
     "multiplies integers, four times as many per instruction as floats"},
    {"weight_only_linear", "weight_only_gemm", algorithm::kWeightOnlyGemm, "f32 activations, at most 16 rows",
     "reads the stored integers, a quarter or an eighth of the bytes of floats"},
    {"weight_only_linear", "dequantized_gemm", algorithm::kWeightOnlyPanels, "f32 activations, any number of rows",
     "keeps no float copy of the weight"},
};

}  // namespace

std::span<const AlgorithmRow> matmul_algorithms() { return kRows; }

std::span<const Kernel> cpu_matmul() {
  static const std::vector<Kernel> kernels = kernels_of(matmul_algorithms());
  return kernels;
}

}  // namespace galley
