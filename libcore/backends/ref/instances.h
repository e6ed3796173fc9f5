#pragma once
// The references of ops/instances.h.

#include <span>

#include "libcore/backends/ref/ref.h"

namespace galley {

std::span<const RefEntry> ref_instances();

}  // namespace galley
