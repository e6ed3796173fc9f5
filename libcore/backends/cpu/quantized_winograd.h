#pragma once
// Pieces of quantized_winograd.cpp, compiled for each instruction set: tiles of images to 16 bits, products of tiles and kernels, sums to
// results.

#include <cstdint>

#include "libcore/backends/cpu/quantized_gemm.h"
#include "libcore/backends/cpu/winograd.h"

namespace galley::quantized {

/// Tiles of one row of tiles of an image: the offset of their results, in pixels of all results.
struct TileRun {
  int64_t first_tile, pixel, rows, columns;  // rows and columns of results that exist
};

/// One step of outputs of some tiles.
struct WinogradStep {
  const int16_t* images = nullptr;  // [36][tiles][image_row], image_position apart
  int64_t image_row = 0, image_position = 0, tiles = 0;
  const int16_t* weights = nullptr;  // of output block 0
  int64_t channels = 0, outputs = 0;
  int64_t first = 0;        // output of the step
  int32_t off = 0;          // added to every value of the image
  int32_t* sums = nullptr;  // workspace: [36][sum_position]
  int64_t sum_position = 0;
  int32_t* results = nullptr;  // workspace: [4][tiles][4][step]
  std::span<const TileRun> runs;
  int64_t width = 0;  // of the images of results
  Epilogue epilogue;
};

/// Outputs of a step.
int64_t winograd_step();
/// Transforms the values x ^ turn, taken as i8, 16 channels at a time. Reads up to 15 bytes after the last channel of each pixel.
void transform_bytes(const uint8_t* x, winograd::Steps step, uint8_t turn, int64_t channels, int16_t* to, int64_t position);
/// Products, sums and results of a step.
void compute_step(const WinogradStep& step);

}  // namespace galley::quantized
