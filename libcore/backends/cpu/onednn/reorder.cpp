// Copies between memory formats, blocked weights included, by oneDNN.

#include <array>

#include "libcore/backends/cpu/onednn/table.h"
#include "libcore/ops/shape.h"
#include "libcore/vendor/onednn/onednn.h"

namespace galley {
namespace {

class Reorder : public PreparedKernel {
 public:
  explicit Reorder(const KernelQuery& q)
      : call_(onednn::make_reorder(onednn::desc(q.in(0).dtype, q.in(0).shape, q.in(0).format),
                                   onednn::desc(q.out(0).dtype, q.out(0).shape, q.out(0).format), q.threads)) {}
  void run(Stream&, const KernelArgs& args) const override { call_.run({args.inputs[0], args.outputs[0]}); }

 private:
  onednn::Call call_;
};

Support supports(const KernelQuery& q) {
  if (std::string reason = onednn::declines(q.in(0).dtype, q.out(0).dtype); !reason.empty()) return Support::no(std::move(reason));
  if (q.in(0).elements() == 0) return Support::no("empty array");
  for (const TensorType* type : {&q.in(0), &q.out(0)}) {
    if (!onednn::knows(type->shape, type->format)) return Support::no(cat("format ", type->format));
  }
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{{{"reorder", "onednn", supports, [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> {
                                         return std::make_unique<Reorder>(q);
                                       }}}};

}  // namespace

std::span<const Kernel> onednn_reorder() { return kKernels; }

std::string onednn_version() { return onednn::version_and_file(); }

}  // namespace galley
