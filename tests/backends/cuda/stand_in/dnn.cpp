// A stand-in for libcudnn.so.9: the graph interface for single convolutions and the graphs of dnn_graph.cpp, computed in double over the
// memory and the streams of the stand-in driver. Its first engine rounds to TF32, its second gives other last bits in each run, its third
// has no plans, its last computes exactly.

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

struct Array {
  std::vector<int64_t> sizes, steps;
  device::Type type{};
  void* values = nullptr;
  double at(const std::vector<int64_t>& index, bool tf32) const {
    device::Bits bits;
    bits.number = device::load<float>(values, place(index), type);
    if (tf32) bits.bits = (bits.bits + 0xfffu + (bits.bits >> 13 & 1u)) & ~0x1fffu;
    return bits.number;
  }
  int64_t place(const std::vector<int64_t>& index) const {
    int64_t place = 0;
    for (size_t d = 0; d < 4; ++d) place += index[d] * steps[d];
    return place;
  }
};
Array array_of(const Node& tensor) {
  return {tensor.numbers(dnn::kTensorSizes), tensor.numbers(dnn::kTensorStrides), type_of(tensor.one<int>(dnn::kTensorType)), nullptr};
}

struct Convolution {
  dnn::Kind kind{};
  Array x, weight, y;
  std::vector<int64_t> stride, padding, dilation;
  bool tf32 = false;
  double error = 0;

  /// Calls `add` for each product: places of y, x and the weight.
  template <class F>
  void each(const F& add) const {
    const int64_t per_group = weight.sizes[0] / (x.sizes[1] / weight.sizes[1]);
    for (int64_t n = 0; n < y.sizes[0]; ++n)
      for (int64_t o = 0; o < y.sizes[1]; ++o)
        for (int64_t h = 0; h < y.sizes[2]; ++h)
          for (int64_t w = 0; w < y.sizes[3]; ++w)
            for (int64_t c = 0; c < weight.sizes[1]; ++c)
              for (int64_t kh = 0; kh < weight.sizes[2]; ++kh)
                for (int64_t kw = 0; kw < weight.sizes[3]; ++kw) {
                  const int64_t row = h * stride[0] - padding[0] + kh * dilation[0], column = w * stride[1] - padding[1] + kw * dilation[1];
                  if (row < 0 || row >= x.sizes[2] || column < 0 || column >= x.sizes[3]) continue;
                  add(std::vector{n, o, h, w}, std::vector{n, o / per_group * weight.sizes[1] + c, row, column}, std::vector{o, c, kh, kw});
                }
  }
  void compute() const {
    const Array& result = kind == dnn::kConvolutionForward ? y : kind == dnn::kConvolutionData ? x : weight;
    std::map<int64_t, double> sums;
    for (int64_t a = 0; a < result.sizes[0]; ++a)
      for (int64_t b = 0; b < result.sizes[1]; ++b)
        for (int64_t c = 0; c < result.sizes[2]; ++c)
          for (int64_t d = 0; d < result.sizes[3]; ++d) sums[result.place({a, b, c, d})] = 0;
    each([&](const std::vector<int64_t>& at_y, const std::vector<int64_t>& at_x, const std::vector<int64_t>& at_weight) {
      if (kind == dnn::kConvolutionForward) sums[y.place(at_y)] += x.at(at_x, tf32) * weight.at(at_weight, tf32);
      if (kind == dnn::kConvolutionData) sums[x.place(at_x)] += y.at(at_y, tf32) * weight.at(at_weight, tf32);
      if (kind == dnn::kConvolutionWeights) sums[weight.place(at_weight)] += y.at(at_y, tf32) * x.at(at_x, tf32);
    });
    for (const auto& [place, sum] : sums) device::store(static_cast<float>(sum + sum * error), result.values, place, result.type);
  }
};

int first_attribute(dnn::Kind kind) {
  return kind == dnn::kConvolutionForward ? dnn::kForward : kind == dnn::kConvolutionData ? dnn::kData : dnn::kWeights;
}

/// Whether the sizes agree.
bool agrees(const Convolution& c) {
  for (const Array* array : {&c.x, &c.weight, &c.y})
    if (array->sizes.size() != 4 || array->steps.size() != 4 || array->type != c.x.type) return false;
  if (c.stride.size() != 2 || c.padding.size() != 2 || c.dilation.size() != 2) return false;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t reach = (c.weight.sizes[d + 2] - 1) * c.dilation[d] + 1;
    if ((c.x.sizes[d + 2] + 2 * c.padding[d] - reach) / c.stride[d] + 1 != c.y.sizes[d + 2]) return false;
  }
  return c.x.sizes[0] == c.y.sizes[0] && c.weight.sizes[0] == c.y.sizes[1] && c.x.sizes[1] % c.weight.sizes[1] == 0;
}

Convolution convolution_of(const Node& operation) {
  const int first = first_attribute(operation.kind);
  const Node& description = *operation.other(first + 2);
  return {operation.kind,
          array_of(*operation.other(first + 4)),
          array_of(*operation.other(first + 3)),
          array_of(*operation.other(first + 5)),
          description.numbers(dnn::kStrides),
          description.numbers(dnn::kPaddingBefore),
          description.numbers(dnn::kDilations)};
}

cuda::Result execute_graph(dnn::Handle handle, const Node& graph, const Node& pack) {
  const std::vector<int64_t> ids = pack.numbers(dnn::kPackIds), addresses = pack.numbers(dnn::kPackAddresses);
  std::map<int64_t, void*> operands;
  for (size_t i = 0; i < ids.size(); ++i) operands[ids[i]] = reinterpret_cast<void*>(addresses[i]);
  const std::function<void()> work = graph_work(graph, operands);
  void* workspace = pack.one<void*>(dnn::kPackWorkspace);
  if (work == nullptr || workspace == nullptr) return kBadParameter;
  return stand_in::enqueue(*reinterpret_cast<StreamHandle*>(handle), "cudnnBackendExecute", 0, [=] {
    std::memset(workspace, 0xff, kWorkspace);
    work();
  });
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
    case dnn::kConvolutionWeights: return agrees(convolution_of(node)) ? dnn::kSuccess : kBadParameter;
    case dnn::kGraph: return node.one<void*>(dnn::kGraphHandle) != nullptr ? dnn::kSuccess : kBadParameter;
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
  if (operation.kind < dnn::kConvolutionForward || operation.kind > dnn::kConvolutionData)
    return execute_graph(handle, *configuration.graph, of(pack));
  Convolution convolution = convolution_of(operation);
  convolution.tf32 = configuration.engine == kTf32Engine && convolution.x.type == device::kF32;
  const std::vector<int64_t> ids = of(pack).numbers(dnn::kPackIds), addresses = of(pack).numbers(dnn::kPackAddresses);
  const int first = first_attribute(operation.kind);
  for (const auto& [array, place] : {std::pair(&convolution.weight, 3), {&convolution.x, 4}, {&convolution.y, 5}}) {
    const int64_t id = operation.other(first + place)->numbers(dnn::kTensorId).front();
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == id) array->values = reinterpret_cast<void*>(addresses[i]);
    if (array->values == nullptr) return kBadParameter;
  }
  void* workspace = of(pack).one<void*>(dnn::kPackWorkspace);
  if (workspace == nullptr) return kBadParameter;
  return stand_in::enqueue(*reinterpret_cast<StreamHandle*>(handle), "cudnnBackendExecute", static_cast<unsigned>(operation.kind),
                           [=, any_order = configuration.engine == kAnyOrderEngine]() mutable {
                             std::memset(workspace, 0xff, kWorkspace);
                             convolution.error = any_order ? stand_in::error_of_order() : 0;
                             convolution.compute();
                           });
}
