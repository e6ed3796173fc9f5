#pragma once
// Indexing functions shared by several files of the importer.

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// Elements of x at constant positions along an axis, in that order; the positions must be in range.
Value select_along(Call& c, Value x, int axis, const std::vector<int64_t>& places);
/// x reversed along an axis.
Value reversed(Call& c, Value x, int axis);
/// Elements of x at indices along an axis. The result has the shape x.shape[:axis] + index.shape + x.shape[axis+1:]. Indices count from 0.
Value gather_along(Value x, int axis, Value index);

}  // namespace galley::onnx_import
