#pragma once
// File format of a Calibration (suffix .calib): a safetensors file, in which every tensor has a digest. A value V has the tensors V.batches
// f32 [batches, 2] (minimum, maximum), V.histogram i64 [bins] and V.info i64 [5] (exponent of the bin width, first bin, zeros, elements,
// stride). The metadata (galley.calibration, JSON; galley.recipe) identifies the model, weights and data of the statistics.

#include <string>

#include "libcore/quant/calibration.h"

namespace galley {

/// Writes the file durably. Throws Error (exit code 7) if writing fails.
void write_calibration(const std::string& path, const Calibration& calibration);
/// Reads the file and checks all of it, digests included. Throws Error (exit code 4) if it is damaged or not a calibration.
Calibration read_calibration(const std::string& path);

}  // namespace galley
