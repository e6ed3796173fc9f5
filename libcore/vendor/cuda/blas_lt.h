#pragma once
// cuBLASLt, NVIDIA's library of matrix products, opened at run time. Names, types and values are those of cublasLt.h (version 13,
// https://docs.nvidia.com/cuda/cublas), declared here as those of the driver are.

#include "libcore/vendor/cuda/library.h"

namespace galley::cuda::lt {

using Status = int;  ///< cublasStatus_t
using Handle = struct cublasLtContext*;
using Product = struct cublasLtMatmulDescOpaque_t*;
using Layout = struct cublasLtMatrixLayoutOpaque_t*;
using Preference = struct cublasLtMatmulPreferenceOpaque_t*;

inline constexpr Status kSuccess = 0, kNotSupported = 15;
// cublasComputeType_t: products and sums in f32; with the operands rounded to TF32; of i8 in i32
inline constexpr int kComputeF32 = 68, kComputeTf32 = 77, kComputeI32 = 72;
// cudaDataType
inline constexpr int kRealF32 = 0, kRealF16 = 2, kRealI8 = 3, kRealI32 = 10, kRealBF16 = 14, kRealF8E4M3 = 28;
// cublasLtMatmulDescAttributes_t
inline constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasAddress = 8, kBiasType = 26;
// cublasLtEpilogue_t: functions of the result, which add
inline constexpr unsigned kPlain = 1, kRelu = 2, kBias = 4;
// cublasLtMatrixLayoutAttribute_t
inline constexpr int kBatches = 5, kBatchStride = 6;
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kMostWorkspace = 1, kReductions = 3, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;

// cublasLtReductionScheme_t: where the parts of a sum are added up: in the result, whose parts come in their order of arrival; in the
// workspace by a step of its own, in f32 or in the type of the result
inline constexpr unsigned kReduceInPlace = 1, kReduceInF32 = 2, kReduceInResultType = 4;

struct Algorithm {  ///< cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct Candidate {  ///< cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace;
  Status status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Candidate) == 96);

/// The functions that Galley uses: X(name, arguments). All but the first return a Status.
#define GALLEY_CUDA_BLAS_LT_FUNCTIONS(X)                                                                                                \
  X(cublasLtCreate, (Handle * handle))                                                                                                  \
  X(cublasLtDestroy, (Handle handle))                                                                                                   \
  X(cublasLtMatmulDescCreate, (Product * product, int compute_type, int scale_type))                                                    \
  X(cublasLtMatmulDescDestroy, (Product product))                                                                                       \
  X(cublasLtMatmulDescSetAttribute, (Product product, int attribute, const void* value, size_t bytes))                                  \
  X(cublasLtMatrixLayoutCreate, (Layout * layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                          \
  X(cublasLtMatrixLayoutDestroy, (Layout layout))                                                                                       \
  X(cublasLtMatrixLayoutSetAttribute, (Layout layout, int attribute, const void* value, size_t bytes))                                  \
  X(cublasLtMatmulPreferenceCreate, (Preference * preference))                                                                          \
  X(cublasLtMatmulPreferenceDestroy, (Preference preference))                                                                           \
  X(cublasLtMatmulPreferenceSetAttribute, (Preference preference, int attribute, const void* value, size_t bytes))                      \
  X(cublasLtMatmulAlgoGetHeuristic, (Handle handle, Product product, Layout a, Layout b, Layout c, Layout d, Preference preference,     \
                                     int wanted, Candidate* candidates, int* found))                                                    \
  X(cublasLtMatmul, (Handle handle, Product product, const void* alpha, const void* a, Layout a_layout, const void* b, Layout b_layout, \
                     const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout, const Algorithm* algorithm,            \
                     void* workspace, size_t workspace_bytes, StreamHandle stream))

/// The functions, by their names.
struct Functions {
  size_t (*cublasLtGetVersion)() = nullptr;
#define GALLEY_CUDA_MEMBER(name, arguments) Status(*name) arguments = nullptr;
  GALLEY_CUDA_BLAS_LT_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The library; `state.problem` says why it cannot be used.
struct BlasLt {
  Functions functions;
  LibraryState state;
};
/// Opens it from these folders (open_library), for tests. Never throws.
BlasLt open_blas_lt(const std::vector<std::string>& folders);
/// Opened at the first call.
const BlasLt& blas_lt();

/// Throws Error (kResource) unless the status is kSuccess. `what`: the call, for the message.
void check(Status status, const std::string& what);

}  // namespace galley::cuda::lt
