#include "libcore/runtime/carried.h"

#include <algorithm>
#include <cstddef>

#include "libcore/runtime/program.h"

namespace galley {

void Carried::declare(const Program& program) {
  GALLEY_ASSERT(&device() == &program.device(), "the program is on device ", program.device().name(), ", but the carried values are on ",
                device().name());
  const Graph& graph = program.graph();
  std::vector<const ValueInfo*> values;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role != ValueRole::kCarried) continue;
    GALLEY_ASSERT(info.type.format.is_contiguous(), "'", info.name, "' is carried, so it must be contiguous, not ", info.type);
    values.push_back(&info);
    if (!has(info.name)) continue;
    const Tensor& held = arrays_.tensor(info.name);
    if (held.dtype() == info.type.dtype && held.shape() == info.type.shape) continue;
    throw Error(ErrorCode::kRecipe,
                cat("the program carries '", info.name, "' as ", info.type, ", but the request holds it as ", held.str()))
        .suggest("all programs of a request must carry a value with the same dtype and shape; use a new request for another shape");
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

void Carried::copy_row(int64_t from, int64_t to) {
  for (const std::string& name : names()) {
    Tensor& array = arrays_.tensor(name);
    const int64_t rows = array.shape().rank() == 0 ? 0 : array.shape()[0];
    GALLEY_ASSERT(from >= 0 && to >= 0 && from < rows && to < rows, "'", name, "' is ", array.str(), " and has no row ",
                  std::max(from, to));
    const int64_t bytes = array.bytes() / rows;
    auto* data = static_cast<std::byte*>(array.address());
    device().stream().copy(data + to * bytes, data + from * bytes, bytes);
    arrays_.touch(name);
  }
}

}  // namespace galley
