#pragma once
// BadRow: the first sample of a batch with a value that is not finite. Used in error messages.

#include <functional>
#include <optional>
#include <string>

#include "libcore/tensor/batch.h"

namespace galley {

/// A NaN or infinity in a batch.
struct BadRow {
  int64_t row = 0;    ///< Index of the sample in the batch.
  std::string field;  ///< Name of the tensor that holds the value.
  double value = 0;
};

/// Searches the valid rows of the f32 and f64 tensors for whose names `accepts` returns true. Returns the lowest row with a value that is
/// not finite; nullopt if all values are finite. Jagged fields are skipped: their values are not stored by rows.
std::optional<BadRow> first_bad_row(const Batch& batch, const std::function<bool(const std::string& field)>& accepts);

}  // namespace galley
