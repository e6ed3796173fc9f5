#include "libcore/backends/cuda/library_convolutions.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/vendor/cuda/dnn.h"

namespace galley {
namespace {

using namespace cuda;
using dnn::Descriptor;

const dnn::Functions& library() { return dnn::dnn().functions; }

/// The handle of a GPU. Each use sets its stream, so uses exclude one another.
struct DeviceHandle {
  std::mutex mutex;
  dnn::Handle handle = nullptr;
  dnn::Status status = dnn::kSuccess;
};
DeviceHandle& handle_of(const CudaDevice& device) {
  static std::mutex mutex;
  static std::map<const CudaDevice*, DeviceHandle>& handles = *new std::map<const CudaDevice*, DeviceHandle>;
  const std::lock_guard lock(mutex);
  const auto [place, added] = handles.try_emplace(&device);
  if (added) {
    device.make_current();
    place->second.status = library().cudnnCreate(&place->second.handle);
  }
  return place->second;
}

int type_of(DType dtype) { return dtype == DType::kF32 ? dnn::kDataF32 : dtype == DType::kF16 ? dnn::kDataF16 : dnn::kDataBF16; }
std::vector<int64_t> four(const int64_t* values) { return {values, values + 4}; }
std::vector<int64_t> two(const int64_t* values) { return {values, values + 2}; }

enum Operand : int64_t { kX = 1, kWeight = 2, kY = 3 };  // their ids in the graph

Descriptor tensor(Operand id, DType dtype, const int64_t* sizes, const int64_t* steps) {
  Descriptor made(dnn::kTensor);
  made.set(dnn::kTensorId, {static_cast<int64_t>(id)});
  made.set(dnn::kTensorType, dnn::kTypeData, type_of(dtype));
  made.set(dnn::kTensorSizes, four(sizes));
  made.set(dnn::kTensorStrides, four(steps));
  made.set(dnn::kTensorAlignment, {16});
  dnn::check(made.finish(), "describing a tensor");
  return made;
}

/// The graph of one operation, with what it refers to.
struct Operation {
  Descriptor x, weight, y, convolution, operation, graph;

  explicit Operation(const ConvolutionForm& form)
      : x(tensor(kX, form.dtype, form.x_size, form.x_steps)),
        weight(tensor(kWeight, form.dtype, form.weight_size, form.weight_steps)),
        y(tensor(kY, form.dtype, form.y_size, form.y_steps)),
        convolution(dnn::kConvolution),
        operation(form.result == ConvolutionResult::kY        ? dnn::kConvolutionForward
                  : form.result == ConvolutionResult::kWeight ? dnn::kConvolutionWeights
                                                              : dnn::kConvolutionData),
        graph(dnn::kGraph) {
    convolution.set(dnn::kComputeType, dnn::kTypeData, dnn::kDataF32);
    convolution.set(dnn::kMode, dnn::kTypeMode, dnn::kCorrelation);
    convolution.set(dnn::kSpatial, {2});
    convolution.set(dnn::kStrides, two(form.stride));
    convolution.set(dnn::kDilations, two(form.dilation));
    convolution.set(dnn::kPaddingBefore, two(form.padding));
    convolution.set(dnn::kPaddingAfter, two(form.padding));
    dnn::check(convolution.finish(), "describing a convolution");
    set_operands(form.result);
    dnn::check(operation.finish(), "describing an operation");
  }
  /// `handle`: null for a GPU that this machine does not have. Returns the status of the graph.
  dnn::Status finish(dnn::Handle handle) {
    if (handle != nullptr) graph.set(dnn::kGraphHandle, dnn::kTypeHandle, 1, &handle);
    graph.set(dnn::kGraphOperations, operation);
    return graph.finish();
  }

 private:
  /// The attributes are alpha, beta, the convolution, and the operands in an order of each operation.
  void set_operands(ConvolutionResult result) {
    const int first = result == ConvolutionResult::kY ? dnn::kForward : result == ConvolutionResult::kWeight ? dnn::kWeights : dnn::kData;
    const auto name = [&](int place) { return static_cast<dnn::Attribute>(first + place); };
    const float one = 1, zero = 0;
    operation.set(name(0), dnn::kTypeFloat, 1, &one);
    operation.set(name(1), dnn::kTypeFloat, 1, &zero);
    operation.set(name(2), convolution);
    operation.set(name(3), weight);  // W, W, DW
    operation.set(name(4), x);       // X, DX, X
    operation.set(name(5), y);       // Y, DY, DY
  }
};

/// The configurations that the heuristics list for a graph, the probably fastest first, then those that fit any graph. `card`: properties
/// of a GPU; null: the handle's.
std::vector<Descriptor> configurations(const Operation& of, const Descriptor* card) {
  constexpr int64_t kMost = 64;
  std::vector<Descriptor> found;
  for (const int mode : {dnn::kHeuristicModeA, dnn::kHeuristicFallback}) {
    Descriptor heuristic(dnn::kHeuristic);
    heuristic.set(dnn::kHeuristicGraph, of.graph);
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

/// Whether the engine rounds inputs only if it may, and gives equal bits in each run if it must.
bool is_allowed(const Descriptor& configuration, const ConvolutionForm& form) {
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
    return (form.deterministic && note == dnn::kNotDeterministic) || (rounds && form.dtype == DType::kF32 && !form.tf32);
  });
}

/// A plan of a configuration, and its workspace; -1: there is none.
struct Plan {
  Descriptor descriptor{dnn::kPlan};
  int64_t workspace = -1;

  Plan(const Descriptor& configuration, dnn::Handle handle, const Descriptor* card) {
    if (handle != nullptr) descriptor.set(dnn::kPlanHandle, dnn::kTypeHandle, 1, &handle);
    descriptor.set(dnn::kPlanConfiguration, configuration);
    if (card != nullptr) descriptor.set(dnn::kPlanDevice, *card);
    if (descriptor.finish() != dnn::kSuccess) return;
    int64_t count = 0, bytes = 0;
    if (library().cudnnBackendGetAttribute(descriptor.raw(), dnn::kPlanWorkspace, dnn::kTypeI64, 1, &count, &bytes) == dnn::kSuccess)
      workspace = bytes;
  }
};

class Planned : public LibraryConvolution {
 public:
  Planned(std::unique_ptr<Operation> operation, Descriptor configuration, Plan plan)
      : operation_(std::move(operation)), configuration_(std::move(configuration)), plan_(std::move(plan)) {}
  int64_t workspace_bytes() const override { return plan_.workspace; }
  void run(Stream& stream, void* x, void* weight, void* y, void* workspace) const override {
    const auto& device = static_cast<CudaDevice&>(stream.device());
    device.make_current();
    Descriptor pack(dnn::kVariantPack);
    const std::vector<int64_t> ids{kX, kWeight, kY};
    void* addresses[] = {x, weight, y};
    pack.set(dnn::kPackIds, ids);
    pack.set(dnn::kPackAddresses, dnn::kTypeAddress, 3, addresses);
    pack.set(dnn::kPackWorkspace, dnn::kTypeAddress, 1, &workspace);
    dnn::check(pack.finish(), "describing operands");
    DeviceHandle& used = handle_of(device);
    const std::lock_guard lock(used.mutex);
    dnn::check(library().cudnnSetStream(used.handle, cuda_stream(stream)), "choosing a stream");
    dnn::check(library().cudnnBackendExecute(used.handle, plan_.descriptor.raw(), pack.raw()), "starting a convolution");
  }

 private:
  std::unique_ptr<Operation> operation_;
  Descriptor configuration_;
  Plan plan_;
};

/// Why the library is not asked; empty: it is.
std::string declines(const ConvolutionForm& form) {
  const LibraryState& state = dnn::dnn().state;
  if (!state.problem.empty()) return state.problem;
  if (form.dtype != DType::kF32 && form.dtype != DType::kF16 && form.dtype != DType::kBF16) return cat("dtype ", form.dtype);
  for (const int64_t* sizes : {form.x_size, form.weight_size, form.y_size}) {
    for (int d = 0; d < 4; ++d)
      if (sizes[d] <= 0 || sizes[d] >= int64_t{1} << 31) return "a size of 0, or of 2^31 or more";
  }
  return "";
}

std::shared_ptr<const LibraryConvolution> build(const ConvolutionForm& form, std::string& reason) {
  constexpr int64_t kMostWorkspace = int64_t{1} << 30;
  const DeviceHandle& on = handle_of(last_cuda_device());
  if (on.status != dnn::kSuccess) {
    reason = cat("cuDNN (", dnn::dnn().state.file, ") cannot start: ", library().cudnnGetErrorString(on.status));
    return nullptr;
  }
  auto operation = std::make_unique<Operation>(form);
  if (const dnn::Status status = operation->finish(on.handle); status != dnn::kSuccess) {
    reason = cat("cuDNN refuses the graph: ", library().cudnnGetErrorString(status));
    return nullptr;
  }
  std::vector<Descriptor> found = configurations(*operation, nullptr);
  for (Descriptor& configuration : found) {
    if (!is_allowed(configuration, form)) continue;
    Plan plan(configuration, on.handle, nullptr);
    if (plan.workspace >= 0 && plan.workspace <= kMostWorkspace)
      return std::make_shared<Planned>(std::move(operation), std::move(configuration), std::move(plan));
  }
  reason = cat("none of cuDNN's ", found.size(), " engines has a plan that ",
               form.deterministic ? "gives equal bits in each run (deterministic: true) and " : "", "needs at most 1 GiB");
  return nullptr;
}

}  // namespace

std::string ConvolutionForm::text() const {
  std::string all = cat(static_cast<int>(result), " ", dtype, tf32 ? " tf32" : "", deterministic ? "" : " any order");
  for (const int64_t* values : {x_size, weight_size, y_size, x_steps, weight_steps, y_steps}) {
    for (int d = 0; d < 4; ++d) all += cat(" ", values[d]);
  }
  for (const int64_t* values : {stride, padding, dilation}) all += cat(" ", values[0], " ", values[1]);
  return all;
}

std::shared_ptr<const LibraryConvolution> library_convolution(const ConvolutionForm& form, std::string& reason) {
  reason = declines(form);
  if (!reason.empty()) return nullptr;
  struct Entry {
    std::shared_ptr<const LibraryConvolution> plan;
    std::string reason;
  };
  static std::mutex mutex;
  static std::map<std::pair<const CudaDevice*, std::string>, Entry>& built =
      *new std::map<std::pair<const CudaDevice*, std::string>, Entry>;  // never destroyed: the library may be closed before
  const std::lock_guard lock(mutex);
  const auto [place, added] = built.try_emplace({&last_cuda_device(), form.text()});
  if (added) place->second.plan = build(form, place->second.reason);
  reason = place->second.reason;
  return place->second.plan;
}

ConvolutionSupport convolution_support(const ConvolutionForm& form, const std::string& card) {
  if (const std::string reason = declines(form); !reason.empty()) throw Error(ErrorCode::kResource, reason);
  Descriptor properties(dnn::kDeviceProperties);
  properties.set(dnn::kDeviceJson, dnn::kTypeChar, std::ssize(card) + 1, card.c_str());
  dnn::check(properties.finish(), "describing a GPU");
  ConvolutionSupport support;
  Operation operation(form);
  if (operation.finish(nullptr) != dnn::kSuccess) return support;
  for (const Descriptor& configuration : configurations(operation, &properties)) {
    ++support.listed;
    if (!is_allowed(configuration, form)) continue;
    const Plan plan(configuration, nullptr, &properties);
    if (plan.workspace < 0) continue;
    if (support.usable++ == 0) support.workspace = plan.workspace;
  }
  return support;
}

}  // namespace galley
