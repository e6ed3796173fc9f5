#pragma once
// The weight gradient of dense convolutions in bf16 by the tile products of Intel AMX.

#include <memory>

#include "libcore/backends/kernel.h"

namespace galley {

/// The kernel of algorithm::kConvWeightsAmx for any window without dilation and groups, x and grad of bf16, channels_last and not empty,
/// and a gradient of bf16 or f32, with tiles that are emulated in plain C++: for tests.
std::unique_ptr<PreparedKernel> emulated_conv_weights_amx(const KernelQuery& query);
/// Of all that tiles multiply for this window, the fraction that the gradient needs; the rest is zeros and channels that fill tiles.
double useful_fraction_of_tiles(const KernelQuery& query);

}  // namespace galley
