#include "libcore/runtime/carried.h"

#include "libcore/runtime/program.h"

namespace galley {

void Carried::declare(const Program& program) {
  GALLEY_ASSERT(&device() == &program.device(), "the program is on device ", program.device().name(), ", the carried values on ",
                device().name());
  const Graph& graph = program.graph();
  std::vector<const ValueInfo*> values;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role != ValueRole::kCarried) continue;
    GALLEY_ASSERT(info.type.format.is_contiguous(), "'", info.name, "' is carried as ", info.type);
    values.push_back(&info);
    if (!has(info.name)) continue;
    const Tensor& held = arrays_.tensor(info.name);
    if (held.dtype() == info.type.dtype && held.shape() == info.type.shape) continue;
    throw Error(ErrorCode::kRecipe,
                cat("the program carries '", info.name, "' as ", info.type, ", but the request holds it as ", held.str()))
        .suggest("programs that serve one request carry a value with one dtype and one shape; another shape needs a request of its own");
  }
  for (const ValueInfo* info : values) arrays_.declare(info->name, info->type, info->role);
}

void Carried::reset() {
  for (const std::string& name : names()) {
    Tensor& array = arrays_.tensor(name);
    device().stream().fill(array.address(), 0, array.bytes());
    arrays_.touch(name);
  }
}

}  // namespace galley
