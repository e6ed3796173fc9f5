#include "libcore/backends/ref/backend.h"

#include "libcore/backends/table.h"

namespace galley {
namespace {

class RefBackend : public Backend {
 public:
  using Backend::Backend;
  std::string_view name() const override { return "ref"; }
  bool reference() const override { return true; }
  std::span<const Kernel* const> kernels(const OpDef& op) const override {
    static const KernelTable table{ref_kernels()};
    return table.of(op);
  }
};

}  // namespace

std::unique_ptr<Backend> open_ref(const BackendOptions& options) { return std::make_unique<RefBackend>(options); }

}  // namespace galley
