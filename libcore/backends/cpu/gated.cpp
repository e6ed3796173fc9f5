#include "libcore/backends/cpu/gated.h"

namespace galley {
namespace {

class GatedKernel : public PreparedKernel {
 public:
  GatedKernel(const KernelQuery& query, std::unique_ptr<PreparedKernel> kernel)
      : kernel_(std::move(kernel)), gate_(static_cast<size_t>(query.node.op->gate)) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    if (*args.in<uint8_t>(gate_) != 0) kernel_->run(stream, args);  // else the states, which are updated in place, stay
  }
  int64_t scratch_bytes() const override { return kernel_->scratch_bytes(); }
  std::string implementation() const override { return kernel_->implementation(); }

 private:
  std::unique_ptr<PreparedKernel> kernel_;
  size_t gate_;
};

}  // namespace

std::unique_ptr<PreparedKernel> gated(const KernelQuery& query, std::unique_ptr<PreparedKernel> kernel) {
  if (query.node.op->gate < 0 || !query.has(query.node.op->gate)) return kernel;
  return std::make_unique<GatedKernel>(query, std::move(kernel));
}

}  // namespace galley
