#include "libcore/backends/cuda/library_convolutions.h"

#include <map>
#include <mutex>
#include <vector>

#include "libcore/backends/cuda/dnn_graph.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using namespace cuda;
using dnn::Descriptor;

std::vector<int64_t> four(const int64_t* values) { return {values, values + 4}; }
std::vector<int64_t> two(const int64_t* values) { return {values, values + 2}; }

enum Operand : int64_t { kX = 1, kWeight = 2, kY = 3 };  // their ids in the graph

Descriptor tensor(Operand id, DType dtype, const int64_t* sizes, const int64_t* steps) {
  Descriptor made(dnn::kTensor);
  made.set(dnn::kTensorId, {static_cast<int64_t>(id)});
  made.set(dnn::kTensorType, dnn::kTypeData, dnn_type(dtype));
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

DnnLimits limits_of(const ConvolutionForm& form) {
  return {.rounds_inputs = form.dtype != DType::kF32 || form.tf32, .deterministic = form.deterministic};
}

class Planned : public LibraryConvolution {
 public:
  explicit Planned(std::unique_ptr<const ChosenDnnPlan> chosen) : chosen_(std::move(chosen)) {}
  int64_t workspace_bytes() const override { return chosen_->plan.workspace; }
  void run(Stream& stream, void* x, void* weight, void* y, void* workspace) const override {
    run_dnn_plan(stream, chosen_->plan.descriptor, {kX, kWeight, kY}, {x, weight, y}, workspace, "a convolution");
  }

 private:
  std::unique_ptr<const ChosenDnnPlan> chosen_;
};

/// Why the library is not asked; empty: it is.
std::string declines(const ConvolutionForm& form) {
  if (form.dtype != DType::kF32 && form.dtype != DType::kF16 && form.dtype != DType::kBF16) return cat("dtype ", form.dtype);
  for (const int64_t* sizes : {form.x_size, form.weight_size, form.y_size}) {
    for (int d = 0; d < 4; ++d)
      if (sizes[d] <= 0 || sizes[d] >= int64_t{1} << 31) return "a size of 0, or of 2^31 or more";
  }
  return warn_of_problem(dnn::dnn().state);
}

std::shared_ptr<const LibraryConvolution> build(const ConvolutionForm& form, std::string& reason) {
  const auto describe = [&](dnn::Handle handle) {
    const auto made = std::make_shared<Operation>(form);
    const dnn::Status status = made->finish(handle);
    return DescribedGraph{made, &made->graph, status};
  };
  auto chosen = choose_dnn_plan("convolution " + form.text(), limits_of(form), describe, reason);
  return chosen == nullptr ? nullptr : std::make_shared<Planned>(std::move(chosen));
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
  const Descriptor properties = dnn_card(card);
  ConvolutionSupport support;
  Operation operation(form);
  if (operation.finish(nullptr) != dnn::kSuccess) return support;
  for (const Descriptor& configuration : dnn_configurations(operation.graph, &properties)) {
    ++support.listed;
    if (!dnn_allows(configuration, limits_of(form))) continue;
    const DnnPlan plan(configuration, nullptr, &properties);
    if (plan.workspace < 0) continue;
    if (support.usable++ == 0) support.workspace = plan.workspace;
  }
  return support;
}

}  // namespace galley
