#pragma once
// Runs one quantized node by the CPU kernel and by the reference. Arrays end at a protected page, so that an access past their end stops
// the test, and bytes before results must be unchanged.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"

namespace galley::test {

/// `bytes` of memory followed by a protected page.
class Fenced {
 public:
  explicit Fenced(int64_t bytes, int64_t alignment = 1) {
    constexpr int64_t kPage = 4096;
    const int64_t size = (bytes + alignment - 1) / alignment * alignment;
    pages_ = (size + kGuard + kPage - 1) / kPage * kPage;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, static_cast<size_t>(pages_ + kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + pages_, kPage, PROT_NONE), 0);
    total_ = pages_ + kPage;
    data_ = base_ + pages_ - size;
    std::memset(base_, 0xA5, static_cast<size_t>(pages_));
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  ~Fenced() { munmap(base_, static_cast<size_t>(total_)); }
  std::byte* data() { return data_; }
  /// Whether the bytes before the array are unchanged.
  bool intact() const {
    for (const std::byte* p = base_; p < data_; ++p) {
      if (*p != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  int64_t pages_ = 0, total_ = 0;
  std::byte *base_ = nullptr, *data_ = nullptr;
};

inline Value quantized_input(Graph& graph, DType dtype, const Shape& shape, const MemoryFormat& format = {},
                             ValueRole role = ValueRole::kInput) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  type.format = format;
  return graph.add_input(cat("in", graph.inputs().size()), type, role);
}

/// Arrays for the inputs of a graph, in order: integers in [low, high] (default: the range of the dtype), floats in scale_low..scale_high.
struct Range {
  double low = 0, high = 0;
};
inline std::vector<Tensor> random_inputs(const Graph& graph, uint32_t seed, const std::vector<Range>& ranges = {}) {
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const TensorType& type = graph.type(graph.inputs()[i]);
    Range range = i < ranges.size() ? ranges[i] : Range{};
    if (range.low == 0 && range.high == 0) {
      range = type.dtype == DType::kU8 ? Range{0, 255} : type.dtype == DType::kI8 ? Range{-128, 127} : Range{-2, 2};
    }
    std::vector<double> values(static_cast<size_t>(type.shape.elements()));
    for (double& v : values) {
      const double u = static_cast<double>(random()) / 4294967296.0;
      v = type.dtype == DType::kF32 ? range.low + u * (range.high - range.low) : std::floor(range.low + u * (range.high - range.low + 1));
    }
    inputs.emplace_back(type.dtype, type.shape);
    inputs.back().from_doubles(values);
  }
  return inputs;
}

/// The outputs of the last node, whose inputs are those of the graph in order, by the reference or by the first kernel that supports it.
inline std::vector<Tensor> run_outputs(const Graph& graph, const std::vector<Tensor>& inputs, bool reference, int threads = 1,
                                       std::string* implementation = nullptr) {
  set_compute_threads(threads);
  const Node& node = graph.nodes().back();
  const KernelQuery query{node, context_of(graph, node), threads};
  const KernelChoice choice = (reference ? ref() : cpu()).choose(query);
  EXPECT_NE(choice.kernel, nullptr);
  EXPECT_EQ(choice.kernel->reference, reference) << node.op->name << (choice.declined.empty() ? "" : ": " + choice.declined.front());
  std::vector<std::unique_ptr<Fenced>> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const ValueId id : node.inputs) {
    if (id == kNoValue) {
      in.push_back(nullptr);
      continue;
    }
    size_t at = 0;
    while (graph.inputs()[at] != id) ++at;
    const TensorType& type = graph.type(id);
    Tensor formatted(type.dtype, type.shape, type.format);
    formatted.from_doubles(inputs[at].to_doubles());
    memory.push_back(std::make_unique<Fenced>(formatted.bytes(), dtype_size(type.dtype)));
    std::memcpy(memory.back()->data(), formatted.data(), static_cast<size_t>(formatted.bytes()));
    in.push_back(memory.back()->data());
  }
  const size_t first_output = memory.size();
  std::vector<Tensor> outputs;
  for (const ValueId id : node.outputs) {
    const TensorType& type = graph.type(id);
    outputs.emplace_back(type.dtype, type.shape, type.format);
    memory.push_back(std::make_unique<Fenced>(outputs.back().bytes(), dtype_size(type.dtype)));
    out.push_back(memory.back()->data());
  }
  const auto kernel = choice.kernel->prepare(query);
  if (implementation) *implementation = kernel->implementation();
  Fenced scratch(std::max<int64_t>(64, kernel->scratch_bytes()), 64);
  kernel->run(host_stream(), {in, out, scratch.data()});
  for (size_t i = first_output; i < memory.size(); ++i) EXPECT_TRUE(memory[i]->intact()) << "bytes before output " << i - first_output;
  EXPECT_TRUE(scratch.intact()) << "bytes before scratch";
  for (size_t i = 0; i < outputs.size(); ++i)
    std::memcpy(outputs[i].data(), memory[first_output + i]->data(), static_cast<size_t>(outputs[i].bytes()));
  return outputs;
}
inline Tensor run_node(const Graph& graph, const std::vector<Tensor>& inputs, bool reference, int threads = 1,
                       std::string* implementation = nullptr) {
  return run_outputs(graph, inputs, reference, threads, implementation).front();
}

/// Expects equal arrays. With `ties`, this share of the elements may differ by one level: those whose result in double is within the error
/// of float32 from the middle between two levels.
inline void expect_same(const Tensor& got, const Tensor& want, const std::string& what, double ties = 0) {
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size()) << what;
  int64_t off = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double limit = got.dtype() == DType::kF32 ? 1e-5 * std::max(1.0, std::abs(b[i])) * (ties > 0) : ties > 0;
    ASSERT_TRUE(std::abs(a[i] - b[i]) <= limit) << what << "[" << i << "]: " << a[i] << " != " << b[i];
    off += got.dtype() != DType::kF32 && a[i] != b[i];
  }
  EXPECT_TRUE(static_cast<double>(off) <= std::ceil(ties * static_cast<double>(a.size())))
      << what << ": " << off << " of " << a.size() << " off by one";
}

}  // namespace galley::test
