#include "libcore/backends/cpu/backend.h"

#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/table.h"
#include "libcore/backends/weight_only.h"
#include "libcore/passes/fuse_chains.h"
#ifdef GALLEY_WITH_ONEDNN
#include "libcore/backends/cpu/onednn/table.h"
#endif

namespace galley {
namespace {

const KernelTable& table() {
#ifdef GALLEY_WITH_ONEDNN
  static const KernelTable kernels{cpu_kernels(), onednn_reorder(), ref_kernels()};
#else
  static const KernelTable kernels{cpu_kernels(), ref_kernels()};
#endif
  return kernels;
}

class CpuBackend : public Backend {
 public:
  using Backend::Backend;
  std::string_view name() const override { return "cpu"; }
  std::span<const Kernel* const> kernels(const OpDef& op) const override { return table().of(op); }

  void rewrite(Graph& graph, Stage stage, PassReport& report) const override {
    switch (stage) {
      case Stage::kForward: report.add(fuse_batch_norm_depthwise(graph, *this)); break;
      case Stage::kBeforeLayout:
        report.add(decode_f8(graph));
        report.add(fuse_gates(graph, *this));
        report.add(use_stored_weights(graph, *this, options().int4_products, options().int8_products));
        report.add(widen_unsupported(graph, *this));
        if (options().winograd && options().memory_format != LayoutMode::kContiguous) report.add(use_winograd(graph, *this));
        break;
      case Stage::kAfterLayout:
        report.add(fuse_pointwise(graph, *this));
        report.add(fuse_gradient_sums(graph, *this));
        if (options().chains) report.add(fuse_chains(graph, *this));
        break;
    }
  }
};

}  // namespace

std::unique_ptr<Backend> open_cpu(const BackendOptions& options) { return std::make_unique<CpuBackend>(options); }

std::string cpu_requirements() {
#ifdef GALLEY_WITH_ONEDNN
  return onednn_version();
#else
  return "built without oneDNN";
#endif
}

}  // namespace galley
