#pragma once
// The file of a Calibration (suffix .calib): a safetensors file, so that it is durable and every part has a digest. A value V has the
// tensors V.batches f32 [batches, 2] (smallest, largest), V.histogram i64 [bins] and V.info i64 [5] (exponent of the bins' width, first
// bin, zeros, elements, stride); what the statistics belong to stands in the metadata (galley.calibration, JSON; galley.recipe).

#include <string>

#include "libcore/quant/calibration.h"

namespace galley {

/// Durable when it returns. Throws Error (exit code 7) where the disk fails.
void write_calibration(const std::string& path, const Calibration& calibration);
/// Reads and checks all of it, digests included. Throws Error (exit code 4) naming what is damaged, and for files that are no calibration.
Calibration read_calibration(const std::string& path);

}  // namespace galley
