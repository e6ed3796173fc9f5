#include "libcore/backends/cuda/dnn_graph.h"

#include <algorithm>

#include "libcore/backends/cuda/plan_cache.h"
#include "libcore/base/error.h"
#include "libcore/base/log.h"

namespace galley {

using namespace cuda;
using dnn::Descriptor;

namespace {

const dnn::Functions& library() { return dnn::dnn().functions; }

}  // namespace

DnnHandle& dnn_handle(const CudaDevice& device) {
  static std::mutex mutex;
  static std::map<const CudaDevice*, DnnHandle>& handles = *new std::map<const CudaDevice*, DnnHandle>;
  const std::lock_guard lock(mutex);
  const auto [place, added] = handles.try_emplace(&device);
  if (added) {
    device.make_current();
    place->second.status = library().cudnnCreate(&place->second.handle);
  }
  return place->second;
}

int dnn_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return dnn::kDataF32;
    case DType::kF16: return dnn::kDataF16;
    case DType::kBF16: return dnn::kDataBF16;
    default: throw InternalError(cat("cuDNN is not asked for ", dtype));
  }
}

Descriptor dnn_card(const std::string& json) {
  Descriptor properties(dnn::kDeviceProperties);
  properties.set(dnn::kDeviceJson, dnn::kTypeChar, std::ssize(json) + 1, json.c_str());
  dnn::check(properties.finish(), "describing a GPU");
  return properties;
}

std::vector<Descriptor> dnn_configurations(const Descriptor& graph, const Descriptor* card) {
  constexpr int64_t kMost = 64;
  std::vector<Descriptor> found;
  for (const int mode : {dnn::kHeuristicModeA, dnn::kHeuristicFallback}) {
    Descriptor heuristic(dnn::kHeuristic);
    heuristic.set(dnn::kHeuristicGraph, graph);
    heuristic.set(dnn::kHeuristicMode, dnn::kTypeHeuristic, mode);
    if (card != nullptr) heuristic.set(dnn::kHeuristicDevice, *card);
    if (heuristic.finish() != dnn::kSuccess) continue;
    std::vector<Descriptor> each;
    std::vector<dnn::RawDescriptor> raw;
    for (int64_t i = 0; i < kMost; ++i) raw.push_back(each.emplace_back(dnn::kEngineConfiguration).raw());
    int64_t count = 0;
    if (library().cudnnBackendGetAttribute(heuristic.raw(), dnn::kHeuristicResults, dnn::kTypeDescriptor, kMost, &count, raw.data()) !=
        dnn::kSuccess)
      continue;
    for (int64_t i = 0; i < std::min(count, kMost); ++i) found.push_back(std::move(each[static_cast<size_t>(i)]));
  }
  return found;
}

bool dnn_allows(const Descriptor& configuration, const DnnLimits& limits) {
  constexpr int64_t kMost = 16;
  Descriptor engine(dnn::kEngine);
  dnn::RawDescriptor raw = engine.raw();
  int64_t count = 0;
  if (library().cudnnBackendGetAttribute(configuration.raw(), dnn::kConfigurationEngine, dnn::kTypeDescriptor, 1, &count, &raw) !=
      dnn::kSuccess)
    return false;
  int notes[kMost] = {};
  if (library().cudnnBackendGetAttribute(engine.raw(), dnn::kEngineNotes, dnn::kTypeNote, kMost, &count, notes) != dnn::kSuccess)
    return false;
  return std::none_of(notes, notes + std::min(count, kMost), [&](int note) {
    const bool rounds = note == dnn::kRoundsInputs || note == dnn::kTensorCores;
    return (limits.deterministic && note == dnn::kNotDeterministic) || (rounds && !limits.rounds_inputs);
  });
}

int64_t dnn_workspace(const Descriptor& configuration) {
  int64_t count = 0, bytes = -1;
  const dnn::Status status =
      library().cudnnBackendGetAttribute(configuration.raw(), dnn::kConfigurationWorkspace, dnn::kTypeI64, 1, &count, &bytes);
  return status == dnn::kSuccess ? bytes : -1;
}

DnnPlan::DnnPlan(const Descriptor& configuration, dnn::Handle handle, const Descriptor* card) {
  if (handle != nullptr) descriptor.set(dnn::kPlanHandle, dnn::kTypeHandle, 1, &handle);
  descriptor.set(dnn::kPlanConfiguration, configuration);
  if (card != nullptr) descriptor.set(dnn::kPlanDevice, *card);
  read_workspace();
}
DnnPlan::DnnPlan(const std::string& json, dnn::Handle handle) {
  descriptor.set(dnn::kPlanHandle, dnn::kTypeHandle, 1, &handle);
  descriptor.set(dnn::kPlanJson, dnn::kTypeChar, std::ssize(json), json.data());
  read_workspace();
}
void DnnPlan::read_workspace() {
  if (status = descriptor.finish(); status != dnn::kSuccess) return;
  int64_t count = 0, bytes = 0;
  if (library().cudnnBackendGetAttribute(descriptor.raw(), dnn::kPlanWorkspace, dnn::kTypeI64, 1, &count, &bytes) == dnn::kSuccess)
    workspace = bytes;
}
std::string DnnPlan::json() const {
  const auto read = [&](int64_t wanted, void* to) {
    int64_t count = 0;
    const dnn::Status read = library().cudnnBackendGetAttribute(descriptor.raw(), dnn::kPlanJson, dnn::kTypeChar, wanted, &count, to);
    return read == dnn::kSuccess ? count : 0;
  };
  std::string text(static_cast<size_t>(std::max<int64_t>(0, read(0, nullptr))), ' ');
  return !text.empty() && read(std::ssize(text), text.data()) == std::ssize(text) ? text : "";
}

namespace {

/// The plan of the cache; null: none that the library takes.
std::unique_ptr<const ChosenDnnPlan> restored(const std::string& key, const DnnLimits& limits, dnn::Handle handle) {
  const std::optional<std::string> text = stored_plan(key);
  if (!text) return nullptr;
  try {
    DnnPlan plan(*text, handle);
    if (plan.workspace >= 0 && plan.workspace <= limits.workspace)
      return std::make_unique<const ChosenDnnPlan>(ChosenDnnPlan{.graph = nullptr, .plan = std::move(plan)});
  } catch (const Error&) {
  }
  log(LogLevel::kInfo, "cuDNN does not take a stored plan: it is made again");
  return nullptr;
}

}  // namespace

std::unique_ptr<const ChosenDnnPlan> choose_dnn_plan(const CudaDevice& device, const std::string& form, const DnnLimits& limits,
                                                     const std::function<DescribedGraph(dnn::Handle)>& describe, std::string& reason) {
  const DnnHandle& on = dnn_handle(device);
  const dnn::Dnn& dnn = dnn::dnn();
  if (on.status != dnn::kSuccess) {
    reason = cat("cuDNN (", dnn.state.file, ") cannot start: ", library().cudnnGetErrorString(on.status));
    return nullptr;
  }
  const std::string key = plan_key(device, dnn.state, form);
  if (auto found = restored(key, limits, on.handle)) return found;
  const DescribedGraph described = describe(on.handle);
  if (described.status != dnn::kSuccess) {
    reason = cat("cuDNN refuses the graph: ", library().cudnnGetErrorString(described.status));
    return nullptr;
  }
  std::vector<Descriptor> configurations = dnn_configurations(*described.graph, nullptr);
  for (Descriptor& configuration : configurations) {
    if (!dnn_allows(configuration, limits)) continue;
    DnnPlan plan(configuration, on.handle, nullptr);
    if (plan.workspace < 0 || plan.workspace > limits.workspace) continue;
    if (const std::string text = plan.json(); !text.empty()) store_plan(key, text);
    return std::make_unique<const ChosenDnnPlan>(
        ChosenDnnPlan{.graph = described.owner, .configuration = std::move(configuration), .plan = std::move(plan)});
  }
  reason = cat("none of cuDNN's ", configurations.size(), " engines has a plan that ",
               limits.deterministic ? "gives equal bits in each run (deterministic: true) and " : "", "needs at most 1 GiB");
  return nullptr;
}

void run_dnn_plan(Stream& stream, const Descriptor& plan, const std::vector<int64_t>& ids, std::vector<void*> addresses, void* workspace,
                  const std::string& what) {
  const auto& device = static_cast<CudaDevice&>(stream.device());
  device.make_current();
  Descriptor pack(dnn::kVariantPack);
  pack.set(dnn::kPackIds, ids);
  pack.set(dnn::kPackAddresses, dnn::kTypeAddress, std::ssize(addresses), addresses.data());
  pack.set(dnn::kPackWorkspace, dnn::kTypeAddress, 1, &workspace);
  dnn::check(pack.finish(), "describing operands");
  DnnHandle& used = dnn_handle(device);
  const std::lock_guard lock(used.mutex);
  dnn::check(library().cudnnSetStream(used.handle, cuda_stream(stream)), "choosing a stream");
  dnn::check(library().cudnnBackendExecute(used.handle, plan.raw(), pack.raw()), cat("starting ", what));
}

DnnGraph::Value DnnGraph::add_tensor(int64_t id, int type, const Sizes& sizes, const Sizes& steps, bool is_virtual, bool by_value) {
  Descriptor& made = add(dnn::kTensor);
  made.set(dnn::kTensorId, {id});
  made.set(dnn::kTensorType, dnn::kTypeData, type);
  made.set(dnn::kTensorSizes, sizes);
  made.set(dnn::kTensorStrides, steps);
  made.set(dnn::kTensorAlignment, {16});
  if (is_virtual) made.set(dnn::kTensorVirtual, dnn::kTypeBoolean, 1, &is_virtual);
  if (by_value) made.set(dnn::kTensorByValue, dnn::kTypeBoolean, 1, &by_value);
  dnn::check(made.finish(), "describing a tensor");
  values_.push_back(&made);
  return static_cast<Value>(values_.size()) - 1;
}
DnnGraph::Value DnnGraph::operand(int64_t id, int type, const Sizes& sizes, const Sizes& steps) {
  return add_tensor(id, type, sizes, steps, false, false);
}
DnnGraph::Value DnnGraph::number(int64_t id) { return add_tensor(id, dnn::kDataF32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true); }
DnnGraph::Value DnnGraph::intermediate(int type, const Sizes& sizes, const Sizes& steps) {
  Sizes contiguous(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d > 0; --d) contiguous[d - 1] = contiguous[d] * sizes[d];
  return add_tensor(next_virtual_++, type, sizes, steps.empty() ? contiguous : steps, true, false);
}

void DnnGraph::add_operation(Descriptor& operation) {
  dnn::check(operation.finish(), "describing an operation");
  operations_.push_back(operation.raw());
}
void DnnGraph::pointwise(int mode, Value y, Value x, Value b, Value t, int compute, int64_t axis) {
  Descriptor& function = add(dnn::kPointwise);
  function.set(dnn::kPointwiseMode, dnn::kTypePointwise, mode);
  function.set(dnn::kPointwiseCompute, dnn::kTypeData, compute);
  if (axis >= 0) function.set(dnn::kPointwiseAxis, {axis});
  dnn::check(function.finish(), "describing a function");
  Descriptor& operation = add(dnn::kPointwiseOperation);
  operation.set(dnn::kPointwiseFunction, function);
  operation.set(dnn::kPointwiseX, at(x));
  if (b >= 0) operation.set(dnn::kPointwiseB, at(b));
  if (t >= 0) operation.set(dnn::kPointwiseT, at(t));
  operation.set(dnn::kPointwiseY, at(y));
  add_operation(operation);
}
void DnnGraph::matmul(Value y, Value a, Value b) {
  Descriptor& product = add(dnn::kMatmul);
  product.set(dnn::kMatmulCompute, dnn::kTypeData, dnn::kDataF32);
  dnn::check(product.finish(), "describing a product");
  Descriptor& operation = add(dnn::kMatmulOperation);
  operation.set(dnn::kMatmulA, at(a));
  operation.set(dnn::kMatmulB, at(b));
  operation.set(dnn::kMatmulC, at(y));
  operation.set(dnn::kMatmulProduct, product);
  add_operation(operation);
}
void DnnGraph::convolve(dnn::Kind kind, Value x, Value weight, Value y, const DnnWindow& window) {
  Descriptor& convolution = add(dnn::kConvolution);
  convolution.set(dnn::kComputeType, dnn::kTypeData, dnn::kDataF32);
  convolution.set(dnn::kMode, dnn::kTypeMode, dnn::kCorrelation);
  convolution.set(dnn::kSpatial, {2});
  convolution.set(dnn::kStrides, window.stride);
  convolution.set(dnn::kDilations, window.dilation);
  convolution.set(dnn::kPaddingBefore, window.padding);
  convolution.set(dnn::kPaddingAfter, window.padding);
  dnn::check(convolution.finish(), "describing a convolution");
  const int first = kind == dnn::kConvolutionForward ? dnn::kForward : kind == dnn::kConvolutionData ? dnn::kData : dnn::kWeights;
  const auto name = [&](int place) { return static_cast<dnn::Attribute>(first + place); };
  const float one = 1, zero = 0;
  Descriptor& operation = add(kind);
  operation.set(name(0), dnn::kTypeFloat, 1, &one);
  operation.set(name(1), dnn::kTypeFloat, 1, &zero);
  operation.set(name(2), convolution);
  operation.set(name(3), at(weight));
  operation.set(name(4), at(x));
  operation.set(name(5), at(y));
  add_operation(operation);
}
void DnnGraph::reduce(int mode, Value y, Value x) {
  Descriptor& reduction = add(dnn::kReduction);
  reduction.set(dnn::kReductionMode, dnn::kTypeReduction, mode);
  reduction.set(dnn::kReductionCompute, dnn::kTypeData, dnn::kDataF32);
  dnn::check(reduction.finish(), "describing a reduction");
  Descriptor& operation = add(dnn::kReductionOperation);
  operation.set(dnn::kReductionX, at(x));
  operation.set(dnn::kReductionY, at(y));
  operation.set(dnn::kReductionFunction, reduction);
  add_operation(operation);
}
void DnnGraph::statistics(Value sum, Value squares, Value x) {
  Descriptor& operation = add(dnn::kStatisticsOperation);
  operation.set(dnn::kStatisticsMode, dnn::kTypeStatistics, dnn::kSumAndSquares);
  operation.set(dnn::kStatisticsCompute, dnn::kTypeData, dnn::kDataF32);
  operation.set(dnn::kStatisticsX, at(x));
  operation.set(dnn::kStatisticsSum, at(sum));
  operation.set(dnn::kStatisticsSquares, at(squares));
  add_operation(operation);
}
void DnnGraph::reshape(Value y, Value x) {
  Descriptor& operation = add(dnn::kReshapeOperation);
  operation.set(dnn::kReshapeX, at(x));
  operation.set(dnn::kReshapeY, at(y));
  add_operation(operation);
}

dnn::Status DnnGraph::finish(dnn::Handle handle) {
  if (handle != nullptr) graph_.set(dnn::kGraphHandle, dnn::kTypeHandle, 1, &handle);
  graph_.set(dnn::kGraphOperations, dnn::kTypeDescriptor, std::ssize(operations_), operations_.data());
  return graph_.finish();
}

}  // namespace galley
