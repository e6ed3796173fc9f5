// Products of quantized activations and packed weights by the tile unit (Intel AMX), compiled for AVX-512 only. quantized_gemm.cpp includes
// it after its vector code.
//
// A tile of the left operand is 64 bytes of each of 16 pixels; a tile of the right operand is 16 quads of a block of weights, in place; a
// tile of sums is 16 pixels x 16 outputs. Where a run of the window ends within a tile, the weights after it are zeros, so the bytes that
// the pixels hold there do not matter. Pixels at equal distances are read in place; others are copied into tiles once for all outputs. The
// tile unit bounds it.

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {

constexpr int64_t kTileRows = amx::kRows, kTileBytes = amx::kBytes, kTileSize = amx::kSize, kTileQuads = kTileBytes / kQuad;
constexpr int64_t kMostTiles = quantized_threshold::kAmxTiles.value;        // of pixels, copied at a time
constexpr int64_t kPanelBytes = quantized_threshold::kAmxPanelBytes.value;  // and their bytes
constexpr int64_t kTailPixels = quantized_threshold::kAmxTailPixels.value;  // so few after the last whole tile are left to vpdpbusd

/// The division of a product.
struct TilePlan {
  int64_t run_tiles, depth_tiles, blocks, group;  // of a run, of the whole window; of outputs; pixels copied at a time
  bool padded;                                    // a run ends within a tile
  int64_t pads_at, panel_at, bytes;               // in the scratch memory, after the tables of offsets

  TilePlan(int64_t runs, int64_t run_quads, int64_t pixels, int64_t outputs) {
    run_tiles = (run_quads + kTileQuads - 1) / kTileQuads;
    depth_tiles = runs * run_tiles;
    blocks = (outputs + kBlock - 1) / kBlock;
    padded = run_quads % kTileQuads != 0;
    const int64_t tiles = (pixels + kTileRows - 1) / kTileRows;
    group = std::min({tiles, kMostTiles, std::max<int64_t>(2, kPanelBytes / (depth_tiles * kTileSize))}) * kTileRows;
    pads_at = (3 * depth_tiles * 4 + 63) / 64 * 64;
    panel_at = pads_at + (padded ? blocks * runs * kTileSize : 0);
    bytes = panel_at + group * depth_tiles * kTileBytes;
  }
};

/// The tiles of 16 pixels: tile k is at base + at[k], its rows are `stride` bytes apart.
struct PixelTile {
  const uint8_t* base;
  const int32_t* at;
  int64_t stride;
};

/// The tiles of a block of weights: in the weights where at[k] >= 0, else among the padded tiles.
struct WeightTile {
  const int8_t* weights;
  const int8_t* pads;
  const int32_t* at;
  HWY_INLINE const int8_t* operator[](int64_t k) const { return at[k] >= 0 ? weights + at[k] : pads + ~at[k]; }
};

/// sums[32][kStep]: of kPixels tiles of pixels times kBlocks blocks of outputs, added to `starts`.
template <int kPixels, int kBlocks>
HWY_NOINLINE void tile_products(const PixelTile* pixels, const WeightTile* weights, int64_t depth, const int32_t* starts, int32_t* sums) {
  // Tiles 0 to 3 are sums, 4 and 5 pixels, 6 and 7 weights.
  const amx::Hardware unit;
  unit.load<0>(starts, 0);  // the same row for every pixel
  if constexpr (kBlocks > 1) unit.load<1>(starts + kBlock, 0);
  if constexpr (kPixels > 1) unit.load<2>(starts, 0);
  if constexpr (kPixels > 1 && kBlocks > 1) unit.load<3>(starts + kBlock, 0);
  for (int64_t k = 0; k < depth; ++k) {
    unit.load<6>(weights[0][k], kTileBytes);
    unit.load<4>(pixels[0].base + pixels[0].at[k], pixels[0].stride);
    unit.multiply_bytes<0, 4, 6>();
    if constexpr (kBlocks > 1) {
      unit.load<7>(weights[1][k], kTileBytes);
      unit.multiply_bytes<1, 4, 7>();
    }
    if constexpr (kPixels > 1) {
      unit.load<5>(pixels[1].base + pixels[1].at[k], pixels[1].stride);
      unit.multiply_bytes<2, 5, 6>();
      if constexpr (kBlocks > 1) unit.multiply_bytes<3, 5, 7>();
    }
  }
  unit.store<0>(sums, kStep * 4);
  if constexpr (kBlocks > 1) unit.store<1>(sums + kBlock, kStep * 4);
  if constexpr (kPixels > 1) unit.store<2>(sums + kTileRows * kStep, kStep * 4);
  if constexpr (kPixels > 1 && kBlocks > 1) unit.store<3>(sums + kTileRows * kStep + kBlock, kStep * 4);
}

/// Copies 16 pixels into tiles; where there are fewer, the last one is repeated.
void lay_tile(const Product& p, const TilePlan& plan, int64_t pixel, uint8_t* HWY_RESTRICT to) {
  const int64_t run_bytes = p.run_quads * kQuad;
  for (int64_t row = 0; row < kTileRows; ++row) {
    const uint8_t* from = static_cast<const uint8_t*>(p.a) + p.pixel_at[std::min(pixel + row, p.pixels - 1)];
    for (int64_t run = 0; run < p.runs; ++run) {
      uint8_t* out = to + run * plan.run_tiles * kTileSize + row * kTileBytes;
      int64_t i = 0;
      for (; i + kTileBytes <= run_bytes; i += kTileBytes, out += kTileSize) std::memcpy(out, from + p.run_at[run] + i, kTileBytes);
      if (i < run_bytes) std::memcpy(out, from + p.run_at[run] + i, static_cast<size_t>(run_bytes - i));
    }
  }
}

void multiply_in_tiles(const Product& p) {
  const int64_t begin = p.begin / kBlock * kBlock, quads = p.runs * p.run_quads, block_bytes = quads * kBlock * kQuad;
  const TilePlan plan(p.runs, p.run_quads, p.pixels, p.end - begin);
  auto* place = reinterpret_cast<int32_t*>(p.tiles);  // offsets in `a`, in a copied tile, in a block of weights
  auto* laid_place = place + plan.depth_tiles;
  auto* weight_place = laid_place + plan.depth_tiles;
  auto* pads = reinterpret_cast<int8_t*>(p.tiles + plan.pads_at);
  auto* panel = reinterpret_cast<uint8_t*>(p.tiles + plan.panel_at);
  for (int64_t run = 0; run < p.runs; ++run) {
    for (int64_t t = 0; t < plan.run_tiles; ++t) {
      const int64_t k = run * plan.run_tiles + t;
      place[k] = static_cast<int32_t>(p.run_at[run] + t * kTileBytes);
      laid_place[k] = static_cast<int32_t>(k * kTileSize);
      weight_place[k] = static_cast<int32_t>((t + 1) * kTileQuads <= p.run_quads ? (run * p.run_quads + t * kTileQuads) * kTileBytes
                                                                                 : ~(run * kTileSize));
    }
  }
  for (int64_t block = 0; block < plan.blocks; ++block) {
    const int8_t* weights = p.weights + (begin / kBlock + block) * block_bytes;
    if (plan.padded) {
      const int64_t whole = p.run_quads / kTileQuads * kTileQuads * kTileBytes, rest = p.run_quads * kTileBytes - whole;
      for (int64_t run = 0; run < p.runs; ++run) {
        int8_t* pad = pads + (block * p.runs + run) * kTileSize;
        std::memcpy(pad, weights + run * p.run_quads * kTileBytes + whole, static_cast<size_t>(rest));
        std::memset(pad + rest, 0, static_cast<size_t>(kTileSize - rest));
      }
    }
    compensation(weights, block_bytes, quads, 1, p.zero_point, p.starts + block * kBlock);
  }

  const amx::Hardware unit;
  unit.begin();
  HWY_ALIGN int32_t sums[2 * kTileRows * kStep];
  std::array<PixelTile, kMostTiles> tiles;
  for (int64_t first = 0; first < p.pixels; first += plan.group) {
    const int64_t last = std::min(p.pixels, first + plan.group), tail = (last - first) % kTileRows;
    const int64_t tiled = last - (tail <= kTailPixels ? tail : 0);
    for (int64_t pixel = first; pixel < tiled; pixel += kTileRows) {
      PixelTile& tile = tiles[static_cast<size_t>((pixel - first) / kTileRows)];
      const int32_t* at = p.pixel_at + pixel;
      const int64_t rows = std::min(kTileRows, tiled - pixel), stride = rows > 1 ? at[1] - at[0] : 0;
      bool even = at[0] + (kTileRows - 1) * stride + place[plan.depth_tiles - 1] + kTileBytes <= p.a_bytes;
      for (int64_t r = 2; r < rows; ++r) even &= at[r] - at[r - 1] == stride;
      if (even) {
        tile = {static_cast<const uint8_t*>(p.a) + at[0], place, stride};
      } else {
        uint8_t* laid = panel + (pixel - first) * plan.depth_tiles * kTileBytes;
        lay_tile(p, plan, pixel, laid);
        tile = {laid, laid_place, kTileBytes};
      }
    }
    for (int64_t block = 0; block < plan.blocks; block += 2) {
      const bool two = block + 1 < plan.blocks;
      const int8_t* weights = p.weights + (begin / kBlock + block) * block_bytes;
      const int8_t* padded = pads + block * p.runs * kTileSize;
      const WeightTile columns[2] = {{weights, padded, weight_place}, {weights + block_bytes, padded + p.runs * kTileSize, weight_place}};
      const int32_t* starts = p.starts + block * kBlock;
      const int64_t output = begin + block * kBlock, from = std::max(p.begin, output), to = std::min(p.end, output + kStep);
      for (int64_t pixel = first; pixel < tiled; pixel += 2 * kTileRows) {
        const PixelTile* rows = &tiles[static_cast<size_t>((pixel - first) / kTileRows)];
        if (pixel + kTileRows < tiled) {
          (two ? tile_products<2, 2> : tile_products<2, 1>)(rows, columns, plan.depth_tiles, starts, sums);
        } else {
          (two ? tile_products<1, 2> : tile_products<1, 1>)(rows, columns, plan.depth_tiles, starts, sums);
        }
        finish<kStep>(p.epilogue, sums, std::min(2 * kTileRows, tiled - pixel), pixel, output, from, to);
      }
      if (tiled < last) {
        kBytesTiles<false>[false][two][static_cast<size_t>(last - tiled - 1)](p, p.pixel_at + tiled, weights, block_bytes, nullptr, starts,
                                                                              sums);
        finish<kStep>(p.epilogue, sums, last - tiled, tiled, output, from, to);
      }
    }
  }
  unit.end();
}

int64_t workspace_of_tiles(int64_t runs, int64_t run_quads, int64_t pixels, int64_t outputs) {
  return TilePlan(runs, run_quads, pixels, outputs + kBlock).bytes;
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();
