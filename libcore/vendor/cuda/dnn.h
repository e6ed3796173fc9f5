#pragma once
// cuDNN's graph interface in C (version 9, https://docs.nvidia.com/deeplearning/cudnn), opened at run time. Names, types and values are
// those of cudnn_graph.h, declared here as those of the driver are.

#include <utility>
#include <vector>

#include "libcore/vendor/cuda/library.h"

namespace galley::cuda::dnn {

using Status = int;  ///< cudnnStatus_t
using Handle = struct cudnnContext*;
using RawDescriptor = void*;  ///< cudnnBackendDescriptor_t

inline constexpr Status kSuccess = 0, kDriverFailed = 5001;

/// cudnnBackendDescriptorType_t
enum Kind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfiguration = 3,
  kHeuristic = 4,
  kPlan = 5,
  kConvolutionForward = 10,
  kConvolutionWeights = 11,
  kConvolutionData = 12,
  kPointwiseOperation = 13,
  kStatisticsOperation = 14,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDeviceProperties = 38,
};
/// cudnnBackendAttributeType_t
enum Type : int {
  kTypeHandle = 0,
  kTypeData = 1,
  kTypeBoolean = 2,
  kTypeI64 = 3,
  kTypeFloat = 4,
  kTypeAddress = 6,
  kTypeMode = 7,
  kTypeHeuristic = 8,
  kTypeNote = 11,
  kTypePointwise = 14,
  kTypeDescriptor = 15,
  kTypeStatistics = 16,
  kTypeReduction = 18,
  kTypeI32 = 23,
  kTypeChar = 24,
};
/// cudnnBackendAttributeName_t. Of a convolution, the first of its attributes: alpha, beta, description, weight, x, y.
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwiseCompute = 1,
  kPointwiseAxis = 9,
  kComputeType = 100,
  kMode = 101,
  kDilations = 102,
  kStrides = 103,
  kPaddingAfter = 104,
  kPaddingBefore = 105,
  kSpatial = 106,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
  kConfigurationEngine = 300,
  kConfigurationWorkspace = 303,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspace = 402,
  kPlanJson = 405,
  kPlanDevice = 407,
  kForward = 700,
  kData = 706,
  kWeights = 712,
  kPointwiseFunction = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kStatisticsMode = 770,
  kStatisticsCompute = 771,
  kStatisticsX = 772,
  kStatisticsSum = 773,
  kStatisticsSquares = 774,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorVirtual = 907,
  kTensorByValue = 908,
  kPackIds = 1000,
  kPackAddresses = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kMatmulCompute = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulProduct = 1523,
  kReductionMode = 1600,
  kReductionCompute = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionFunction = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceJson = 2702,
};
// cudnnDataType_t, cudnnConvolutionMode_t, cudnnBackendHeurMode_t
inline constexpr int kDataF32 = 0, kDataF16 = 2, kDataBF16 = 9, kCorrelation = 1, kHeuristicModeA = 3, kHeuristicFallback = 2;
inline constexpr int kDataI32 = 4, kDataBoolean = 11;
// cudnnPointwiseMode_t, cudnnReduceTensorOp_t, cudnnGenStatsMode_t
inline constexpr int kAdd = 0, kMultiply = 1, kSubtract = 9, kDivide = 6, kExp = 13, kLog = 15, kIdentity = 21, kReluForward = 100,
                     kGreaterEqual = 303, kLess = 304, kAnd = 400, kIndex = 501, kSelect = 601, kReduceSum = 0, kReduceMaximum = 3,
                     kSumAndSquares = 0;
// cudnnBackendNumericalNote_t: products by tensor cores, which round f32 to TF32; inputs are rounded; sums in an order that differs between
// runs
inline constexpr int kTensorCores = 0, kRoundsInputs = 1, kNotDeterministic = 4;

/// The functions that Galley uses: X(name, arguments). All return a Status.
#define GALLEY_CUDA_DNN_FUNCTIONS(X)                                                                                               \
  X(cudnnCreate, (Handle * handle))                                                                                                \
  X(cudnnDestroy, (Handle handle))                                                                                                 \
  X(cudnnSetStream, (Handle handle, StreamHandle stream))                                                                          \
  X(cudnnGraphVersionCheck, ())                                                                                                    \
  X(cudnnOpsVersionCheck, ())                                                                                                      \
  X(cudnnCnnVersionCheck, ())                                                                                                      \
  X(cudnnBackendCreateDescriptor, (Kind kind, RawDescriptor * descriptor))                                                         \
  X(cudnnBackendDestroyDescriptor, (RawDescriptor descriptor))                                                                     \
  X(cudnnBackendFinalize, (RawDescriptor descriptor))                                                                              \
  X(cudnnBackendSetAttribute, (RawDescriptor descriptor, Attribute name, Type type, int64_t count, const void* values))            \
  X(cudnnBackendGetAttribute, (RawDescriptor descriptor, Attribute name, Type type, int64_t wanted, int64_t* count, void* values)) \
  X(cudnnBackendExecute, (Handle handle, RawDescriptor plan, RawDescriptor variant_pack))

/// The functions, by their names.
struct Functions {
  size_t (*cudnnGetVersion)() = nullptr;
  const char* (*cudnnGetErrorString)(Status status) = nullptr;
#define GALLEY_CUDA_MEMBER(name, arguments) Status(*name) arguments = nullptr;
  GALLEY_CUDA_DNN_FUNCTIONS(GALLEY_CUDA_MEMBER)
#undef GALLEY_CUDA_MEMBER
};

/// The library; `state.problem` says why it cannot be used.
struct Dnn {
  Functions functions;
  LibraryState state;
};
/// Opens it from these folders (open_library), for tests. Never throws.
Dnn open_dnn(const std::vector<std::string>& folders);
/// Opened at the first call.
const Dnn& dnn();

/// Throws Error (kResource) unless the status is kSuccess. `what`: the call, for the message.
void check(Status status, const std::string& what);

/// A descriptor of the graph interface. Descriptors that others refer to must outlive them.
class Descriptor {
 public:
  explicit Descriptor(Kind kind);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void set(Attribute name, Type type, int64_t count, const void* values);
  void set(Attribute name, const std::vector<int64_t>& values) { set(name, kTypeI64, static_cast<int64_t>(values.size()), values.data()); }
  void set(Attribute name, Type type, int value) { set(name, type, 1, &value); }
  void set(Attribute name, const Descriptor& value) { set(name, kTypeDescriptor, 1, &value.raw_); }
  /// The status of the end of its description.
  Status finish();
  RawDescriptor raw() const { return raw_; }

 private:
  RawDescriptor raw_ = nullptr;
};

}  // namespace galley::cuda::dnn
