#pragma once
// Graphs of cuDNN's operations: how they are described, which engines may run them, and their plans.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libcore/backends/cuda/device.h"
#include "libcore/tensor/dtype.h"
#include "libcore/vendor/cuda/dnn.h"

namespace galley {

/// cuDNN's handle of a GPU. Each use sets its stream, so uses exclude one another.
struct DnnHandle {
  std::mutex mutex;
  cuda::dnn::Handle handle = nullptr;
  cuda::dnn::Status status = cuda::dnn::kSuccess;  ///< Of its creation.
};
DnnHandle& dnn_handle(const CudaDevice& device);

/// cudnnDataType_t of f32, f16, bf16, i8 and i32.
int dnn_type(DType dtype);

/// What engines may do.
struct DnnLimits {
  bool rounds_inputs = true;  ///< Operands may be rounded (f32 to TF32).
  bool deterministic = true;  ///< Equal operands give equal bits in each run.
  int64_t workspace = int64_t{1} << 30;
};

/// Properties of a GPU that this machine need not have, by cuDNN's JSON.
cuda::dnn::Descriptor dnn_card(const std::string& json);

/// The configurations that the heuristics list for a graph, the probably fastest first, then those that fit any graph. `card`: null: the
/// GPU of the graph's handle.
std::vector<cuda::dnn::Descriptor> dnn_configurations(const cuda::dnn::Descriptor& graph, const cuda::dnn::Descriptor* card);
/// Whether an engine keeps the limits, by its notes.
bool dnn_allows(const cuda::dnn::Descriptor& configuration, const DnnLimits& limits);

/// The workspace of a configuration, without its plan; -1: unknown.
int64_t dnn_workspace(const cuda::dnn::Descriptor& configuration);

/// A plan of a configuration, and its workspace; -1: there is none.
struct DnnPlan {
  cuda::dnn::Descriptor descriptor{cuda::dnn::kPlan};
  int64_t workspace = -1;
  cuda::dnn::Status status = cuda::dnn::kSuccess;  ///< kDriverFailed: it was compiled, but the driver did not load it.
  DnnPlan(const cuda::dnn::Descriptor& configuration, cuda::dnn::Handle handle, const cuda::dnn::Descriptor* card);
  /// From its text.
  DnnPlan(const std::string& json, cuda::dnn::Handle handle);
  /// Its text; empty: the library has none.
  std::string json() const;

 private:
  void read_workspace();
};

/// A plan with what it refers to.
struct ChosenDnnPlan {
  std::shared_ptr<const void> graph;  // null: the plan is from the cache
  std::optional<cuda::dnn::Descriptor> configuration = {};
  DnnPlan plan;
};
/// A graph whose description has ended with a status; `owner` keeps it.
struct DescribedGraph {
  std::shared_ptr<const void> owner;
  const cuda::dnn::Descriptor* graph = nullptr;
  cuda::dnn::Status status = cuda::dnn::kSuccess;
};
/// The plan for a GPU: the stored one of `form` (plan_cache.h), else that of the first engine of the heuristics that keeps the limits,
/// which is stored. null with the reason. `form`: equal for equal graphs and limits.
std::unique_ptr<const ChosenDnnPlan> choose_dnn_plan(const CudaDevice& device, const std::string& form, const DnnLimits& limits,
                                                     const std::function<DescribedGraph(cuda::dnn::Handle)>& describe, std::string& reason);

/// What was built for each GPU and form, or why not. Never destroy one: the library may be closed before.
template <class Built>
class DnnPlans {
 public:
  /// build(reason): null with the reason; called once for a form.
  template <class Build>
  std::shared_ptr<const Built> of(const CudaDevice& device, const std::string& form, std::string& reason, const Build& build) {
    const std::lock_guard lock(mutex_);
    const auto [place, added] = entries_.try_emplace({&device, form});
    Entry& entry = place->second;
    if (added) entry.plan = build(entry.reason);
    reason = entry.reason;
    return entry.plan;
  }

 private:
  struct Entry {
    std::shared_ptr<const Built> plan;
    std::string reason;
  };
  std::mutex mutex_;
  std::map<std::pair<const CudaDevice*, std::string>, Entry> entries_;
};

/// Runs a plan on a stream with operands by their ids. Throws Error (kResource). `what`: for its message.
void run_dnn_plan(Stream& stream, const cuda::dnn::Descriptor& plan, const std::vector<int64_t>& ids, std::vector<void*> addresses,
                  void* workspace, const std::string& what);

/// The window of a convolution over rows and columns.
struct DnnWindow {
  std::vector<int64_t> stride, padding, dilation;
};

/// A graph of convolutions, point-wise functions, products and reductions. Values are named by their positions; intermediate ones exist in
/// registers only.
class DnnGraph {
 public:
  using Value = int;
  using Sizes = std::vector<int64_t>;

  /// An operand in the device's memory, known by `id` when the graph runs. type: cudnnDataType_t.
  Value operand(int64_t id, int type, const Sizes& sizes, const Sizes& steps);
  /// A number in f32 that each run passes from the host's memory.
  Value number(int64_t id);
  /// Contiguous, unless `steps` are given.
  Value intermediate(int type, const Sizes& sizes, const Sizes& steps = {});

  /// y = mode(x, b, t); b and t may be absent (-1). axis: of an index.
  void pointwise(int mode, Value y, Value x, Value b = -1, Value t = -1, int compute = cuda::dnn::kDataF32, int64_t axis = -1);
  void matmul(Value y, Value a, Value b);
  /// kind: which of x, weight and y is computed: kConvolutionForward (y), kConvolutionData (x), kConvolutionWeights. compute: of the sums.
  void convolve(cuda::dnn::Kind kind, Value x, Value weight, Value y, const DnnWindow& window);
  void reduce(int mode, Value y, Value x);
  /// The sums of x [N,C,...] and of its squares for each channel, [1,C,1,1].
  void statistics(Value sum, Value squares, Value x);
  /// y: the elements of x by other sizes or steps.
  void reshape(Value y, Value x);

  /// Ends the description. `handle`: null for a GPU that this machine does not have. Returns the status of the graph.
  cuda::dnn::Status finish(cuda::dnn::Handle handle);
  const cuda::dnn::Descriptor& graph() const { return graph_; }

 private:
  Value add_tensor(int64_t id, int type, const Sizes& sizes, const Sizes& steps, bool is_virtual, bool by_value);
  cuda::dnn::Descriptor& add(cuda::dnn::Kind kind) { return parts_.emplace_back(kind); }
  const cuda::dnn::Descriptor& at(Value value) const { return *values_[static_cast<size_t>(value)]; }
  void add_operation(cuda::dnn::Descriptor& operation);

  std::deque<cuda::dnn::Descriptor> parts_;  // descriptors that others refer to; they do not move
  std::vector<const cuda::dnn::Descriptor*> values_;
  std::vector<cuda::dnn::RawDescriptor> operations_;
  cuda::dnn::Descriptor graph_{cuda::dnn::kGraph};
  int64_t next_virtual_ = 1000;
};

}  // namespace galley
