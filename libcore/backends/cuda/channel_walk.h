#pragma once
// How the blocks of a launch share an array by channels (kernels/channels.h).

#include <algorithm>
#include <optional>

#include "libcore/backends/cuda/prepare.h"

namespace galley {

/// An array [outer, channels, inner] in memory, or [outer, channels] where channels are beside each other (inner is 1).
struct ChannelView {
  int64_t outer = 1, channels = 1, inner = 1;
  int64_t elements() const { return outer * channels * inner; }
};
inline constexpr int64_t kMergeLanes = 8;  // channels of a block that merges parts (kernels/channels.h)

/// The view of an image or of rows; nothing if its format has none.
inline std::optional<ChannelView> channel_view(const TensorType& x) {
  if (x.format.is_blocked() || x.shape.rank() < 2) return std::nullopt;
  ChannelView view{.outer = x.shape[0], .channels = x.shape[1]};
  for (int d = 2; d < x.shape.rank(); ++d) view.inner *= x.shape[d];
  if (!x.format.is_contiguous()) view = {view.outer * view.inner, view.channels, 1};
  return view;
}

inline constexpr int64_t kMostUnits = int64_t{1} << 30;
/// Of a kernel that walks: `blocks` fill a GPU; the threads of a part have units in multiples of `at_once`, except in the last part.
struct WalkLimits {
  int64_t blocks = 1024, at_once = 1;
};
/// Of kernels that only add up. 528: a processor of an H100, which has 132, holds four of their blocks, so that all run from start to
/// end; more would wait for the first to end, and make more partial results. They read four units at once (each_unit).
inline constexpr WalkLimits kSumLimits{.blocks = 528, .at_once = 4};

/// Parts and tiles of an array with fewer than kMostUnits elements of a channel, in packs or elements. They depend on the shape alone, so
/// that sums over parts do not depend on the GPU.
inline device::ChannelWalk channel_walk(const ChannelView& view, bool packs, int64_t batches = 1, const WalkLimits& limits = {}) {
  // Units of a thread for which a part is worth its result, and of those that share a small plane.
  constexpr int64_t kMinUnits = 4, kFewUnits = 4;
  const int64_t width = packs ? device::kPack : 1;
  const bool planes = view.inner > 1;
  const int64_t units = planes ? view.outer * (view.inner / width) : view.outer;
  int64_t rows = device::kThreads;
  if (planes) {
    while (rows > 1 && rows / 2 * kFewUnits >= units) rows /= 2;
  } else {
    while (rows > width && device::kThreads / rows * width < view.channels) rows /= 2;
  }
  const int64_t lanes = device::kThreads / rows, of_tile = planes ? lanes : lanes * width;
  const int64_t tiles = (view.channels + of_tile - 1) / of_tile;
  const int64_t most = std::max<int64_t>(1, limits.blocks / std::max<int64_t>(1, tiles * batches));
  const int64_t wanted = std::clamp<int64_t>((units + rows * kMinUnits - 1) / (rows * kMinUnits), 1, most);
  const int64_t of_thread = std::max<int64_t>(1, (units + wanted * rows - 1) / (wanted * rows));
  const int64_t part_units = (of_thread + limits.at_once - 1) / limits.at_once * limits.at_once * rows;
  return {.packs = packs,
          .lanes = static_cast<int>(lanes),
          .planes = planes,
          .channels = static_cast<int>(view.channels),
          .units = static_cast<int>(units),
          .parts = static_cast<int>(std::max<int64_t>(1, (units + part_units - 1) / part_units)),
          .part_units = static_cast<int>(part_units),
          .outer_step = view.channels * view.inner,
          .unit = planes ? width : 0,
          .channel_step = view.inner,
          .inner = divisor(planes ? std::max<int64_t>(1, view.inner / width) : 1)};
}
inline bool channels_fit_packs(const ChannelView& view) { return (view.inner > 1 ? view.inner : view.channels) % device::kPack == 0; }
inline int64_t blocks_of(const device::ChannelWalk& walk) {
  const int64_t of_tile = walk.planes == 0 && walk.packs != 0 ? walk.lanes * device::kPack : walk.lanes;
  return (walk.channels + of_tile - 1) / of_tile * walk.parts;
}
/// Blocks that merge the results of parts of so many channels.
inline int64_t merging_blocks(int64_t channels) { return (channels + kMergeLanes - 1) / kMergeLanes; }

// Sums over the rows of an array [rows, channels], by kernels that walk it.
inline int64_t row_sums_scratch(const device::ChannelWalk& walk) {
  return walk.parts == 1 ? 0 : static_cast<int64_t>(sizeof(float)) * walk.parts * walk.channels;
}
/// `partial`: row_sums_scratch bytes. `from`: null for parts that another kernel has made.
inline device::ReduceChannelsCall row_sums(const device::ChannelWalk& walk, device::Type type, const void* from, float* partial, void* to) {
  return {.from = from,
          .to = to,
          .partial = partial,
          .type = type,
          .kind = device::kSum,
          .walk = walk,
          .batches = 1,
          .blocks = static_cast<int>(blocks_of(walk)),
          .batch_step = 0,
          .to_batch = 0,
          .to_channel = 1};
}

}  // namespace galley
