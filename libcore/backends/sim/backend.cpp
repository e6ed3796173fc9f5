#include "libcore/backends/sim/backend.h"

#include "libcore/backends/table.h"
#include "libcore/base/parallel.h"
#include "libcore/device/sim_device.h"

namespace galley {
namespace {

/// A reference kernel as work of a stream.
class SimKernel : public PreparedKernel {
 public:
  SimKernel(std::unique_ptr<PreparedKernel> kernel, int threads) : kernel_(std::move(kernel)), threads_(threads) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    sim_enqueue(stream, [kernel = kernel_, threads = threads_, inputs = std::vector(args.inputs.begin(), args.inputs.end()),
                         outputs = std::vector(args.outputs.begin(), args.outputs.end()), scratch = args.scratch] {
      const ThreadShare share(threads);
      kernel->run(host_stream(), {inputs, outputs, scratch});
    });
  }
  int64_t scratch_bytes() const override { return kernel_->scratch_bytes(); }

 private:
  std::shared_ptr<const PreparedKernel> kernel_;  // shared with the work that waits
  int threads_;
};

const Kernel& reference_of(const OpDef& op) {
  static const KernelTable table{ref_kernels()};
  const std::span<const Kernel* const> kernels = table.of(op);
  GALLEY_ASSERT(!kernels.empty(), op.name, " has no reference");
  return *kernels.back();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& query) {
  return std::make_unique<SimKernel>(reference_of(*query.node.op).prepare(query), query.threads);
}

std::span<const Kernel> sim_kernels() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> made;
    for (const Kernel& reference : ref_kernels()) {
      made.push_back({.op = reference.op, .algorithm = "sim", .supports = reference.supports, .prepare = prepare, .reference = true});
    }
    return made;
  }();
  return kernels;
}

class SimBackend : public Backend {
 public:
  using Backend::Backend;
  std::string_view name() const override { return "sim"; }
  bool reference() const override { return true; }
  Device& device() const override { return sim_device(); }
  std::span<const Kernel* const> kernels(const OpDef& op) const override {
    static const KernelTable table{sim_kernels()};
    return table.of(op);
  }
};

}  // namespace

std::unique_ptr<Backend> open_sim(const BackendOptions& options) { return std::make_unique<SimBackend>(options); }

}  // namespace galley
