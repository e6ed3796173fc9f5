#include "libcore/backends/cuda/library_convolutions.h"

#include <vector>

#include "libcore/backends/cuda/dnn_graph.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using namespace cuda;
using dnn::Descriptor;

std::vector<int64_t> four(const int64_t* values) { return {values, values + 4}; }
std::vector<int64_t> two(const int64_t* values) { return {values, values + 2}; }

enum Id : int64_t { kX = 1, kWeight, kY, kBias, kResidual, kSum, kSquares };  // of operands

/// The convolution, and what is added to its result before that is rounded.
std::shared_ptr<DnnGraph> describe(const ConvolutionForm& form) {
  const bool plain = !form.bias && !form.residual && !form.relu;
  const int type = dnn_type(form.dtype);
  auto graph = std::make_shared<DnnGraph>();
  const DnnGraph::Value x = graph->operand(kX, type, four(form.x_size), four(form.x_steps));
  const DnnGraph::Value weight = graph->operand(kWeight, type, four(form.weight_size), four(form.weight_steps));
  const DnnGraph::Value y = graph->operand(kY, type, four(form.y_size), four(form.y_steps));
  const auto real = [&] { return graph->intermediate(dnn::kDataF32, four(form.y_size), four(form.y_steps)); };
  const DnnWindow window{two(form.stride), two(form.padding), two(form.dilation)};
  DnnGraph::Value result = plain ? y : real();
  graph->convolve(form.result == ConvolutionResult::kY        ? dnn::kConvolutionForward
                  : form.result == ConvolutionResult::kWeight ? dnn::kConvolutionWeights
                                                              : dnn::kConvolutionData,
                  x, weight, result, window);
  int left = (form.bias ? 1 : 0) + (form.residual ? 1 : 0) + (form.relu ? 1 : 0);
  const auto then = [&](int mode, DnnGraph::Value with) {
    const DnnGraph::Value next = --left == 0 ? y : real();
    graph->pointwise(mode, next, result, with);
    result = next;
  };
  const int64_t channels = form.y_size[1];
  // In this order the library has compiled engines; with the bias first it compiles one at run time. With a bias in f32 beside operands of
  // 16 bits cuDNN 9.14 has an engine that gives wrong results on an H200.
  if (form.residual) then(dnn::kAdd, graph->operand(kResidual, type, four(form.y_size), four(form.y_steps)));
  if (form.bias) then(dnn::kAdd, graph->operand(kBias, type, {1, channels, 1, 1}, {channels, 1, channels, channels}));
  if (form.relu) then(dnn::kReluForward, -1);
  if (form.statistics) {
    const auto of_channels = [&](int64_t id) {
      return graph->operand(id, dnn::kDataF32, {1, channels, 1, 1}, {channels, 1, channels, channels});
    };
    const DnnGraph::Value sum = of_channels(kSum), squares = of_channels(kSquares);
    graph->statistics(sum, squares, y);
  }
  return graph;
}

DnnLimits limits_of(const ConvolutionForm& form) {
  return {.rounds_inputs = form.dtype != DType::kF32 || form.tf32, .deterministic = form.deterministic};  // bf16 and f16 are exact there
}

class Planned : public LibraryConvolution {
 public:
  explicit Planned(std::unique_ptr<const ChosenDnnPlan> chosen) : chosen_(std::move(chosen)) {}
  int64_t workspace_bytes() const override { return chosen_->plan.workspace; }
  void run(Stream& stream, const ConvolutionOperands& operands, void* workspace) const override {
    std::vector<int64_t> ids{kX, kWeight, kY};
    std::vector<void*> at{operands.x, operands.weight, operands.y};
    using Operand = std::pair<Id, const void*>;
    for (const auto& [id, address] : {Operand{kBias, operands.bias}, Operand{kResidual, operands.residual}, Operand{kSum, operands.sum},
                                      Operand{kSquares, operands.squares}}) {
      if (address == nullptr) continue;
      ids.push_back(id);
      at.push_back(const_cast<void*>(address));
    }
    run_dnn_plan(stream, chosen_->plan.descriptor, ids, at, workspace, "a convolution");
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

std::shared_ptr<const LibraryConvolution> build(const CudaDevice& device, const ConvolutionForm& form, std::string& reason) {
  const auto described = [&](dnn::Handle handle) {
    const std::shared_ptr<DnnGraph> graph = describe(form);
    const dnn::Status status = graph->finish(handle);
    return DescribedGraph{graph, &graph->graph(), status};
  };
  auto chosen = choose_dnn_plan(device, "convolution " + form.text(), limits_of(form), described, reason);
  return chosen == nullptr ? nullptr : std::make_shared<Planned>(std::move(chosen));
}

}  // namespace

std::string ConvolutionForm::text() const {
  std::string all = cat(static_cast<int>(result), " ", dtype, tf32 ? " tf32" : "", deterministic ? "" : " any order", bias ? " bias" : "",
                        residual ? " residual" : "", relu ? " relu" : "", statistics ? " statistics" : "");
  for (const int64_t* values : {x_size, weight_size, y_size, x_steps, weight_steps, y_steps}) {
    for (int d = 0; d < 4; ++d) all += cat(" ", values[d]);
  }
  for (const int64_t* values : {stride, padding, dilation}) all += cat(" ", values[0], " ", values[1]);
  return all;
}

std::shared_ptr<const LibraryConvolution> library_convolution(const CudaDevice& device, const ConvolutionForm& form, std::string& reason) {
  reason = declines(form);
  if (!reason.empty()) return nullptr;
  static DnnPlans<LibraryConvolution>& plans = *new DnnPlans<LibraryConvolution>;
  return plans.of(device, form.text(), reason, [&](std::string& why) { return build(device, form, why); });
}

ConvolutionSupport convolution_support(const ConvolutionForm& form, const std::string& card) {
  if (const std::string reason = declines(form); !reason.empty()) throw Error(ErrorCode::kResource, reason);
  const Descriptor properties = dnn_card(card);
  ConvolutionSupport support;
  const std::shared_ptr<DnnGraph> graph = describe(form);
  if (graph->finish(nullptr) != dnn::kSuccess) return support;
  for (const Descriptor& configuration : dnn_configurations(graph->graph(), &properties)) {
    ++support.listed;
    if (!dnn_allows(configuration, limits_of(form))) continue;
    const DnnPlan plan(configuration, nullptr, &properties);
    if (plan.workspace < 0) continue;
    if (support.usable++ == 0) support.workspace = plan.workspace;
  }
  return support;
}

}  // namespace galley
