// A stand-in for libcudnn.so.9: the graph interface for single convolutions and the graphs of dnn_graph.cpp, computed in double over the
// memory and the streams of the stand-in driver. Its first engine rounds to TF32, its second gives other last bits in each run, its third
// has no plans, its last computes exactly.

#include <array>

#include "tests/backends/cuda/stand_in/calls.h"
#include "tests/backends/cuda/stand_in/dnn_node.h"

namespace {

using namespace galley;
using namespace galley::cuda;
using namespace galley::stand_in;
using dnn::Status;

constexpr Status kBadParameter = 2000, kNotSupported = 3000;
constexpr int64_t kWorkspace = 128;
enum Engine : int64_t { kTf32Engine, kAnyOrderEngine, kNoPlans, kExactEngine, kEngines };

/// Whether a graph has no statistics, or those that cuDNN has: of a convolution in f16 whose arrays are all in channels_last.
bool statistics_are_known(const Node& graph) {
  const std::vector<int64_t> operations = graph.numbers(dnn::kGraphOperations);
  const auto at = [&](size_t i) -> const Node& { return *reinterpret_cast<const Node*>(operations[i]); };
  if (operations.size() < 2 || at(1).kind != dnn::kStatisticsOperation) return true;
  const ConvolutionParts parts = parts_of(at(0));
  for (const Node* tensor : {parts.x, parts.weight, parts.y}) {
    const std::vector<int64_t> sizes = tensor->numbers(dnn::kTensorSizes), steps = tensor->numbers(dnn::kTensorStrides);
    const bool channels_last = steps[1] == 1 && steps[3] == sizes[1] && steps[2] == sizes[1] * sizes[3];
    if (tensor->one<int>(dnn::kTensorType) != dnn::kDataF16 || !channels_last) return false;
  }
  return true;
}

/// Whether the sizes of a convolution agree.
bool agrees(const Node& operation) {
  const ConvolutionParts parts = parts_of(operation);
  std::vector<int64_t> sizes[3];
  for (int i = 0; i < 3; ++i) {
    const Node& tensor = *std::array{parts.x, parts.weight, parts.y}[static_cast<size_t>(i)];
    sizes[i] = tensor.numbers(dnn::kTensorSizes);
    if (sizes[i].size() != 4 || tensor.numbers(dnn::kTensorStrides).size() != 4) return false;
  }
  const int x_type = parts.x->one<int>(dnn::kTensorType);
  if (parts.weight->one<int>(dnn::kTensorType) != x_type) return false;
  const auto &x = sizes[0], &weight = sizes[1], &y = sizes[2];
  if (parts.stride.size() != 2 || parts.padding.size() != 2 || parts.dilation.size() != 2) return false;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t reach = (weight[d + 2] - 1) * parts.dilation[d] + 1;
    if ((x[d + 2] + 2 * parts.padding[d] - reach) / parts.stride[d] + 1 != y[d + 2]) return false;
  }
  return x[0] == y[0] && weight[0] == y[1] && x[1] % weight[1] == 0;
}

}  // namespace

#define GALLEY_EXPORT extern "C" __attribute__((visibility("default")))

GALLEY_EXPORT size_t cudnnGetVersion() { return 91900; }
GALLEY_EXPORT const char* cudnnGetErrorString(Status status) {
  return status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED" : status == kBadParameter ? "CUDNN_STATUS_BAD_PARAM" : "an error";
}
GALLEY_EXPORT Status cudnnCreate(dnn::Handle* handle) {
  GALLEY_CALL("cudnnCreate");
  *handle = reinterpret_cast<dnn::Handle>(new StreamHandle{});
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnDestroy(dnn::Handle handle) {
  delete reinterpret_cast<StreamHandle*>(handle);
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnSetStream(dnn::Handle handle, StreamHandle stream) {
  *reinterpret_cast<StreamHandle*>(handle) = stream;
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnGraphVersionCheck() { return dnn::kSuccess; }
GALLEY_EXPORT Status cudnnOpsVersionCheck() { return dnn::kSuccess; }
GALLEY_EXPORT Status cudnnCnnVersionCheck() { return dnn::kSuccess; }
GALLEY_EXPORT Status cudnnBackendCreateDescriptor(dnn::Kind kind, dnn::RawDescriptor* descriptor) {
  *descriptor = new Node{.kind = kind, .attributes = {}};
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnBackendDestroyDescriptor(dnn::RawDescriptor descriptor) {
  delete static_cast<Node*>(descriptor);
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnBackendSetAttribute(dnn::RawDescriptor descriptor, dnn::Attribute name, dnn::Type type, int64_t count,
                                              const void* values) {
  const auto* bytes = static_cast<const std::byte*>(values);
  of(descriptor).attributes[name].assign(bytes, bytes + static_cast<size_t>(count) * size_of(type));
  of(descriptor).types[name] = type;
  return dnn::kSuccess;
}
GALLEY_EXPORT Status cudnnBackendFinalize(dnn::RawDescriptor descriptor) {
  GALLEY_CALL(of(descriptor).kind == dnn::kHeuristic ? "cudnnHeuristic" : "cudnnBackendFinalize");
  Node& node = of(descriptor);
  switch (node.kind) {
    case dnn::kConvolutionForward:
    case dnn::kConvolutionData:
    case dnn::kConvolutionWeights: return agrees(node) ? dnn::kSuccess : kBadParameter;
    case dnn::kGraph:
      if (node.one<void*>(dnn::kGraphHandle) == nullptr) return kBadParameter;
      return statistics_are_known(node) ? dnn::kSuccess : kNotSupported;
    case dnn::kPlan:
      if (const auto text = node.attributes.find(dnn::kPlanJson); text != node.attributes.end()) {
        Node* configuration = node_of({reinterpret_cast<const char*>(text->second.data()), text->second.size()});
        if (configuration == nullptr) return kBadParameter;
        const auto* address = reinterpret_cast<const std::byte*>(&configuration);
        node.attributes[dnn::kPlanConfiguration].assign(address, address + sizeof configuration);
      }
      return of(node.one<void*>(dnn::kPlanConfiguration)).engine == kNoPlans ? kNotSupported : dnn::kSuccess;
    default: return dnn::kSuccess;
  }
}
GALLEY_EXPORT Status cudnnBackendGetAttribute(dnn::RawDescriptor descriptor, dnn::Attribute name, dnn::Type, int64_t wanted, int64_t* count,
                                              void* values) {
  Node& node = of(descriptor);
  if (node.kind == dnn::kHeuristic && name == dnn::kHeuristicResults) {
    *count = std::min<int64_t>(wanted, kEngines);
    for (int64_t i = 0; i < *count; ++i) {
      Node& configuration = of(static_cast<dnn::RawDescriptor*>(values)[i]);
      configuration.engine = i;
      configuration.graph = node.other(dnn::kHeuristicGraph);
    }
    return dnn::kSuccess;
  }
  if (node.kind == dnn::kEngineConfiguration && name == dnn::kConfigurationEngine) {
    *count = 1;
    of(*static_cast<dnn::RawDescriptor*>(values)).engine = node.engine;
    return dnn::kSuccess;
  }
  if (node.kind == dnn::kEngine && name == dnn::kEngineNotes) {
    *count = node.engine <= kAnyOrderEngine ? 1 : 0;
    if (*count > 0) *static_cast<int*>(values) = node.engine == kTf32Engine ? dnn::kTensorCores : dnn::kNotDeterministic;
    return dnn::kSuccess;
  }
  if (node.kind == dnn::kPlan && name == dnn::kPlanWorkspace) {
    *count = 1;
    *static_cast<int64_t*>(values) = kWorkspace;
    return dnn::kSuccess;
  }
  if (node.kind == dnn::kPlan && name == dnn::kPlanJson) {
    const std::string text = text_of(*node.other(dnn::kPlanConfiguration));
    *count = std::ssize(text);
    if (values != nullptr) std::memcpy(values, text.data(), static_cast<size_t>(std::min(wanted, *count)));
    return dnn::kSuccess;
  }
  return kBadParameter;
}
GALLEY_EXPORT Status cudnnBackendExecute(dnn::Handle handle, dnn::RawDescriptor plan, dnn::RawDescriptor pack) {
  GALLEY_CALL("cudnnBackendExecute");
  const Node& configuration = *of(plan).other(dnn::kPlanConfiguration);
  const Node& operation = *configuration.graph->other(dnn::kGraphOperations);
  const std::vector<int64_t> ids = of(pack).numbers(dnn::kPackIds), addresses = of(pack).numbers(dnn::kPackAddresses);
  std::map<int64_t, void*> operands;
  for (size_t i = 0; i < ids.size(); ++i) operands[ids[i]] = reinterpret_cast<void*>(addresses[i]);
  const bool any_order = configuration.engine == kAnyOrderEngine;
  const auto work = graph_work(*configuration.graph, operands, configuration.engine == kTf32Engine);
  void* workspace = of(pack).one<void*>(dnn::kPackWorkspace);
  if (work == nullptr || workspace == nullptr) return kBadParameter;
  return stand_in::enqueue(*reinterpret_cast<StreamHandle*>(handle), "cudnnBackendExecute",
                           is_convolution(operation) ? static_cast<unsigned>(operation.kind) : 0, [=] {
                             std::memset(workspace, 0xff, kWorkspace);
                             work(any_order ? stand_in::error_of_order() : 0);
                           });
}
