#pragma once
// What the stand-in of cuDNN knows of a descriptor, and its graphs of point-wise functions, products and reductions.

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "libcore/vendor/cuda/dnn.h"
#include "tests/backends/cuda/stand_in/emulate.h"
// The types, after the emulation.
#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::stand_in {

namespace dnn = cuda::dnn;

struct Node {
  dnn::Kind kind;
  std::map<int, std::vector<std::byte>> attributes;
  std::map<int, dnn::Type> types = {};
  int64_t engine = -1;          // of a configuration, or of the engine of one
  const Node* graph = nullptr;  // of a configuration

  template <class T>
  T one(int name) const {
    T value{};
    const auto found = attributes.find(name);
    if (found != attributes.end() && found->second.size() >= sizeof(T)) std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }
  const Node* other(int name) const { return one<const Node*>(name); }
  std::vector<int64_t> numbers(int name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<int64_t> values(found->second.size() / sizeof(int64_t));
    std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
};
inline Node& of(dnn::RawDescriptor raw) { return *static_cast<Node*>(raw); }

inline size_t size_of(dnn::Type type) {
  switch (type) {
    case dnn::kTypeChar:
    case dnn::kTypeBoolean: return 1;
    case dnn::kTypeData:
    case dnn::kTypeMode:
    case dnn::kTypeHeuristic:
    case dnn::kTypeNote:
    case dnn::kTypePointwise:
    case dnn::kTypeReduction:
    case dnn::kTypeStatistics:
    case dnn::kTypeFloat:
    case dnn::kTypeI32: return 4;
    default: return 8;
  }
}

inline device::Type type_of(int type) {
  switch (type) {
    case dnn::kDataF32: return device::kF32;
    case dnn::kDataF16: return device::kF16;
    case dnn::kDataI32: return device::kI32;
    default: return device::kBF16;
  }
}

inline bool is_convolution(const Node& operation) {
  return operation.kind >= dnn::kConvolutionForward && operation.kind <= dnn::kConvolutionData;
}
/// What a convolution refers to.
struct ConvolutionParts {
  const Node *x, *weight, *y;
  std::vector<int64_t> stride, padding, dilation;
};
ConvolutionParts parts_of(const Node& convolution);

/// The work of a graph's operations, in their order, in double, with operands by their ids; numbers that the host passes are read now.
/// Convolutions round f32 to TF32 if wanted, and have the relative error that the work gets. Empty: an operand is not there.
std::function<void(double error)> graph_work(const Node& graph, const std::map<int64_t, void*>& operands, bool tf32);

/// The text of a plan with all that it refers to, and the plan of a text: the configuration, or null if it is damaged. Plans of texts are
/// never destroyed.
std::string text_of(const Node& configuration);
Node* node_of(const std::string& text);

}  // namespace galley::stand_in
