#pragma once
// Tables of algorithms. One file for each family of operators that has several (attention_, conv_, matmul_, norm_, pool_ and
// quantized_algorithms.cpp) lists them in the order in which they are tried: the first one that supports a node runs it. The reference
// kernels of backends/ref come after all of them. Families with one algorithm are in their own files.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// What the file of an algorithm gives to the table of its family: the functions of a Kernel.
struct Algorithm {
  Support (*supports)(const KernelQuery& query);
  std::unique_ptr<PreparedKernel> (*prepare)(const KernelQuery& query);
  MemoryFormat (*preferred_format)(const KernelQuery& query, int input) = nullptr;
};

/// `prepare` of a kernel class that is constructed from the query.
template <class K>
std::unique_ptr<PreparedKernel> prepare_as(const KernelQuery& query) {
  return std::make_unique<K>(query);
}

struct AlgorithmRow {
  std::string_view op;
  std::string_view name;  ///< In verbose output, benchmarks and tests.
  const Algorithm& algorithm;
  std::string_view rule;    ///< The nodes that it takes.
  std::string_view reason;  ///< Why it comes before the rows below.
};

/// The rows as kernels, in their order.
std::vector<Kernel> kernels_of(std::span<const AlgorithmRow> rows);

/// attention and its gradients.
std::span<const AlgorithmRow> attention_algorithms();
/// conv2d, its gradients, and the operators that the CPU's rewrites make of them.
std::span<const AlgorithmRow> conv_algorithms();
/// linear, also with weights that are stored as integers, and matmul.
std::span<const AlgorithmRow> matmul_algorithms();
/// batch_norm, its gradients, and the operators that the CPU's rewrites make of them.
std::span<const AlgorithmRow> norm_algorithms();
/// Pooling of floats and integers.
std::span<const AlgorithmRow> pool_algorithms();
/// Convolutions and linear layers of integers.
std::span<const AlgorithmRow> quantized_algorithms();

/// The algorithms; each is defined in the file that its comment names.
namespace algorithm {

extern const Algorithm kAttentionFlash;          // attention.cpp
extern const Algorithm kAttentionFlashBackward;  // attention.cpp

extern const Algorithm kSkinnyGemmConv;                       // skinny_gemm.cpp
extern const Algorithm kSkinnyGemmLinear;                     // skinny_gemm.cpp
extern const Algorithm kWeightOnlyGemm;                       // weight_only_gemm.cpp
extern const Algorithm kWeightOnlyInt4;                       // weight_only_int4.cpp
extern const Algorithm kWeightOnlyPanels;                     // weight_only_panels.cpp
extern const Algorithm kPacked1x1;                            // packed_1x1.cpp
extern const Algorithm kPacked1x1Data;                        // packed_1x1.cpp
extern const Algorithm kDepthwiseData;                        // depthwise_data.cpp
extern const Algorithm kDepthwiseWeights;                     // depthwise_weights.cpp
extern const Algorithm kConvWeightsAmx;                       // conv_weights_amx.cpp
extern const Algorithm kConvWeightsImplicitGemm;              // conv_weights_implicit_gemm.cpp
extern const Algorithm kConvWeightsDirect;                    // conv_weights_direct.cpp
extern const Algorithm kConvWeights1x1;                       // conv_weights_1x1.cpp
extern const Algorithm kWinogradConv;                         // winograd.cpp
extern const Algorithm kWinogradTransform;                    // winograd_weights.cpp
extern const Algorithm kWinogradWeights;                      // winograd_weights.cpp
extern const Algorithm kBatchNormDepthwise;                   // batch_norm_depthwise.cpp
extern const Algorithm kBatchNormDepthwiseBackward;           // batch_norm_depthwise.cpp
extern const Algorithm kPointwiseBatchNormDepthwise;          // pointwise_batch_norm_depthwise.cpp
extern const Algorithm kPointwiseBatchNormDepthwiseBackward;  // pointwise_batch_norm_depthwise.cpp

extern const Algorithm kBatchNormRows;               // norm.cpp
extern const Algorithm kBatchNormRowsBackward;       // norm.cpp
extern const Algorithm kBatchNormRowsInference;      // norm.cpp
extern const Algorithm kGatedBatchNormBackward;      // norm.cpp
extern const Algorithm kPointwiseBatchNormBackward;  // norm.cpp
extern const Algorithm kBatchNormPlanes;             // norm_contiguous.cpp
extern const Algorithm kBatchNormPlanesBackward;     // norm_contiguous.cpp
extern const Algorithm kBatchNormPlanesInference;    // norm_contiguous.cpp

extern const Algorithm kMaxPoolChannels;                  // pool.cpp
extern const Algorithm kMaxPoolChannelsBackward;          // pool.cpp
extern const Algorithm kAvgPoolChannels;                  // pool.cpp
extern const Algorithm kAvgPoolChannelsBackward;          // pool.cpp
extern const Algorithm kAdaptiveAvgPoolInside;            // extents.cpp
extern const Algorithm kAdaptiveAvgPoolChannels;          // pool.cpp
extern const Algorithm kAdaptiveAvgPoolChannelsBackward;  // pool.cpp
extern const Algorithm kMaxPoolPlanes;                    // pool_contiguous.cpp
extern const Algorithm kMaxPoolPlanesBackward;            // pool_contiguous.cpp
extern const Algorithm kAvgPoolPlanes;                    // pool_contiguous.cpp
extern const Algorithm kAvgPoolPlanesBackward;            // pool_contiguous.cpp
extern const Algorithm kAdaptiveAvgPoolPlanes;            // pool_contiguous.cpp
extern const Algorithm kAdaptiveAvgPoolPlanesBackward;    // pool_contiguous.cpp
extern const Algorithm kAdaptiveMaxPool;                  // pool_contiguous.cpp
extern const Algorithm kAdaptiveMaxPoolBackward;          // pool_contiguous.cpp
extern const Algorithm kMaxPoolBytes;                     // quantized_pool.cpp
extern const Algorithm kQuantizedAvgPool;                 // quantized_pool.cpp
extern const Algorithm kQuantizedAdaptiveAvgPool;         // quantized_pool.cpp

extern const Algorithm kQuantizedDepthwise;          // quantized_depthwise.cpp
extern const Algorithm kQuantizedConv;               // quantized_conv.cpp
extern const Algorithm kQuantizedLinear;             // quantized_conv.cpp
extern const Algorithm kDynamicQuantizedLinear;      // quantized_conv.cpp
extern const Algorithm kQuantizedWinogradConv;       // quantized_winograd.cpp
extern const Algorithm kQuantizedWinogradTransform;  // quantized_winograd.cpp

extern const Algorithm kOneDnnConv;         // onednn/conv.cpp
extern const Algorithm kOneDnnConvData;     // onednn/conv.cpp
extern const Algorithm kOneDnnConvWeights;  // onednn/conv.cpp
extern const Algorithm kOneDnnLinear;       // onednn/matmul.cpp
extern const Algorithm kOneDnnMatmul;       // onednn/matmul.cpp

}  // namespace algorithm
}  // namespace galley
