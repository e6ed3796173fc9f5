#pragma once
// Elements at indices, for several files of the importer.

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// Elements of x at known places of an axis, in that order; the places are in range.
Value at_places(Call& c, Value x, int axis, const std::vector<int64_t>& places);
/// x from the last element of an axis to the first.
Value reversed(Call& c, Value x, int axis);
/// Parts of x at indices of an axis, which stand where the axis was: x.shape[:axis] + index.shape + x.shape[axis+1:]. Indices count from 0.
Value taken(Value x, int axis, Value index);

}  // namespace galley::onnx_import
