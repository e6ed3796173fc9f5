#pragma once
// The reference back end: every operator computed plainly in double precision, for any type and format.

#include "libcore/backends/backend.h"

namespace galley {

std::unique_ptr<Backend> open_ref(const BackendOptions& options);

}  // namespace galley
