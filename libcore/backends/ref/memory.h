#pragma once
// Between memory of any dtype and format and the reference's arrays. For backends/ref and tests.

#include "libcore/backends/ref/ref.h"

namespace galley {

/// The array of the given type at `memory`.
RefArray read_array(const TensorType& type, const void* memory);
/// Writes the array as `type` says: rounded to the dtype, integers saturated, padding of blocked formats zero.
void write_array(const TensorType& type, const RefArray& array, void* memory);
/// Each value rounded to the dtype and back.
void round_array(DType dtype, RefArray& array);

}  // namespace galley
