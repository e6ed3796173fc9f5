#include "libcore/backends/cpu/gated.h"

#include <cstring>
#include <vector>

namespace galley {
namespace {

class GatedKernel : public PreparedKernel {
 public:
  GatedKernel(const KernelQuery& query, std::unique_ptr<PreparedKernel> kernel)
      : kernel_(std::move(kernel)), gate_(static_cast<size_t>(query.node.op->gate)) {
    for (const InPlace& update : query.node.op->updates) {
      if (query.has(update.input))
        states_.push_back(
            {static_cast<size_t>(update.input), static_cast<size_t>(update.output), static_cast<size_t>(query.in(update.input).bytes())});
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    if (*args.in<uint8_t>(gate_) != 0) {
      kernel_->run(stream, args);
      return;
    }
    for (const State& state : states_) {
      if (args.outputs[state.output] != args.inputs[state.input])
        std::memcpy(args.outputs[state.output], args.inputs[state.input], state.bytes);
    }
  }
  int64_t scratch_bytes() const override { return kernel_->scratch_bytes(); }
  std::string implementation() const override { return kernel_->implementation(); }

 private:
  struct State {
    size_t input, output, bytes;
  };
  std::unique_ptr<PreparedKernel> kernel_;
  size_t gate_;
  std::vector<State> states_;
};

}  // namespace

std::unique_ptr<PreparedKernel> gated(const KernelQuery& query, std::unique_ptr<PreparedKernel> kernel) {
  if (query.node.op->gate < 0 || !query.has(query.node.op->gate)) return kernel;
  return std::make_unique<GatedKernel>(query, std::move(kernel));
}

}  // namespace galley
