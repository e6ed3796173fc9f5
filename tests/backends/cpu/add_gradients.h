#pragma once

#include <vector>

#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/differentiate.h"

namespace galley::test {

/// Adds the gradients of a sum of squares as outputs.
inline void add_gradients(Graph& g, Value result, const std::vector<ValueId>& of) {
  for (const auto& [value, gradient] : differentiate(g, sum(mul(result, result), std::vector<int64_t>{}).id(), of))
    g.add_output("d" + g.value(value).name, g.at(gradient));
}

}  // namespace galley::test
