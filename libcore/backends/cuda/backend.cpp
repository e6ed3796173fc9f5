#include "libcore/backends/cuda/backend.h"

#include <algorithm>

#include "libcore/backends/bias_sums.h"
#include "libcore/backends/convolution_sums.h"
#include "libcore/backends/cuda/device.h"
#include "libcore/backends/cuda/kernels.h"
#include "libcore/backends/cuda/nccl_ranks.h"
#include "libcore/backends/cuda/step_graph.h"
#include "libcore/backends/cuda/table.h"
#include "libcore/backends/half_gradients.h"
#include "libcore/backends/joined_heads.h"
#include "libcore/backends/joined_norms.h"
#include "libcore/backends/mixed_loss.h"
#include "libcore/backends/pixel_casts.h"
#include "libcore/backends/residual_norms.h"
#include "libcore/backends/table.h"
#include "libcore/backends/weight_only.h"
#include "libcore/comm/mpi.h"
#include "libcore/passes/fuse_chains.h"
#include "libcore/passes/order_updates.h"
#include "libcore/vendor/cuda/blas_lt.h"
#include "libcore/vendor/cuda/cupti.h"
#include "libcore/vendor/cuda/dnn.h"
#include "libcore/vendor/cuda/nccl.h"
#include "libcore/vendor/cuda/nvrtc.h"

namespace galley {
namespace {

/// The ranks of a machine use its GPUs one after the other.
int gpu_of_rank(int index) {
  const std::optional<LaunchedRank> rank = launched_rank();
  return index == 0 && rank ? rank->local_rank % std::max(1, count_of_gpus()) : index;
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options) : Backend(options), device_(cuda_device(gpu_of_rank(options.index))) {}
  std::string_view name() const override { return "cuda"; }
  CudaDevice& device() const override { return device_; }
  Limits limits() const override { return {.threads = options().threads, .alignment = 256}; }
  std::unique_ptr<Runner> runner(const BoundProgram& program) const override { return step_graph(device_, program); }
  void rewrite(Graph& graph, Stage stage, PassReport& report) const override {
    // One launch for many parameters (joined_updates.h); the gradients of a group take a third of this, or less.
    constexpr int64_t kGroupBytes = int64_t{256} << 20;
    if (stage == Stage::kBeforeLayout) {
      report.add(use_stored_weights(graph, *this, false, false));
      report.add(join_heads(graph, *this));
      report.add(use_mixed_losses(graph, *this));
      report.add(use_residual_norms(graph, *this));
      report.add(use_bias_sums(graph, *this));
      report.add(use_convolution_sums(graph, *this));
      report.add(use_half_gradients(graph, *this));
      report.add(fold_pixel_casts(graph, *this));
      report.add(join_norms(graph, *this, kGroupBytes));
    }
    if (stage != Stage::kAfterLayout) return;
    if (options().chains) report.add(fuse_chains(graph, *this));
    order_updates_in_groups(graph, kGroupBytes);
  }
  std::unique_ptr<DeviceRanks> connect(Communicator& ranks, DeviceRanks* before) const override {
    return connect_nccl(device_, ranks, before);
  }
  std::span<const Kernel* const> kernels(const OpDef& op) const override {
    static const KernelTable tables[] = {table(false, false), table(false, true), table(true, false), table(true, true)};
    return tables[(options().tf32 ? 2 : 0) + (options().deterministic ? 1 : 0)].of(op);
  }

 private:
  static KernelTable table(bool tf32, bool deterministic) {
    return {cuda_library_products(tf32, deterministic),
            cuda_library_attention(deterministic),
            cuda_library_integers(),
            cuda_library_f8(),
            cuda_elementwise(),
            cuda_chains(),
            cuda_bias_sums(),
            cuda_boxes(),
            cuda_collective(),
            cuda_copy(),
            cuda_index(),
            cuda_reduce(),
            cuda_products(),
            cuda_pixels(),
            cuda_pool(),
            cuda_quantized(),
            cuda_sampling(),
            cuda_select(),
            cuda_rows(),
            cuda_batch_norm(),
            cuda_layer_norms(),
            cuda_attention(),
            cuda_cached_attention(),
            cuda_update(),
            cuda_loss()};
  }

  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<Backend> open_cuda(const BackendOptions& options) {
  ensure_weight_only_operator();
  ensure_mixed_loss_operators();
  ensure_residual_norm_operators();
  ensure_bias_sum_operators();
  ensure_convolution_sum_operators();
  auto backend = std::make_unique<CudaBackend>(options);
  load_cuda_kernels(backend->device());  // an image that the GPU cannot run is an error now, not in the first program
  return backend;
}

std::string cuda_requirements() {
  const cuda::LibraryState driver = cuda::driver_state();
  const std::string release = cuda::driver_release(), architectures(cuda_architectures());
  std::string all = architectures.empty() ? "no kernels: built without nvcc (scripts/setup --cuda)"
                                          : cat("kernels for ", architectures, " and PTX of the last one");
  all += "; " + (driver.problem.empty() ? cat("driver ", release, release.empty() ? "" : " ", "of CUDA ", driver.version, ", ", driver.file)
                                        : driver.problem);
  for (const cuda::LibraryState* library : {&cuda::lt::blas_lt().state, &cuda::dnn::dnn().state, &cuda::nccl::nccl().state,
                                            &cuda::nvrtc::nvrtc().state, &cuda::cupti::cupti().state}) {
    if (library->problem.empty()) {
      all += cat("; ", library->name, " ", library->version, ", ", library->file);
    } else if (driver.problem.empty()) {  // else the first thing to install is the driver
      all += "; " + library->problem;
    }
  }
  return all;
}

}  // namespace galley
