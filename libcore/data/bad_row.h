#pragma once
// BadRow: the first sample of a batch with a value that is not finite, for messages.

#include <functional>
#include <optional>
#include <string>

#include "libcore/tensor/batch.h"

namespace galley {

struct BadRow {
  int64_t row = 0;
  std::string field;
  double value = 0;
};

/// Looks at the valid rows of the f32 and f64 fields whose names `wanted` accepts. Values of jagged fields have no rows and are left out.
std::optional<BadRow> first_bad_row(const Batch& batch, const std::function<bool(const std::string& field)>& wanted);

}  // namespace galley
