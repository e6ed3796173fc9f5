#include "libcore/tensor/format.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Dims = std::array<int, Shape::kMaxRank>;

/// Dimensions from outermost to innermost, without allocation, because kernels compute offsets while they run. `blocked`: the order of a
/// blocked format.
Dims dims_of(const MemoryFormat& format, std::span<const int> blocked, int rank) {
  Dims dims{};
  std::iota(dims.begin(), dims.begin() + rank, 0);
  if (format.is_channels_last()) {
    GALLEY_CHECK(rank == (format.kind() == MemoryFormat::Kind::kChannelsLast ? 4 : 5), format.str(), " is not a format of rank ", rank);
    std::rotate(dims.begin() + 1, dims.begin() + 2, dims.begin() + rank);
  }
  if (format.is_blocked()) {
    GALLEY_CHECK(rank == static_cast<int>(blocked.size()), format.str(), " is not a format of rank ", rank);
    std::copy(blocked.begin(), blocked.end(), dims.begin());
  }
  return dims;
}

}  // namespace

MemoryFormat MemoryFormat::channels_last_for_rank(int rank) {
  return rank == 4 ? channels_last() : rank == 5 ? channels_last_3d() : contiguous();
}

MemoryFormat MemoryFormat::blocked(std::string_view tag) {
  MemoryFormat format(Kind::kBlocked);
  size_t i = 0;
  std::vector<bool> split(26), seen(26);
  while (i < tag.size() && !(tag[i] >= '0' && tag[i] <= '9')) {
    const char c = tag[i++];
    const bool upper = c >= 'A' && c <= 'Z';
    const int dim = upper ? c - 'A' : c - 'a';
    GALLEY_CHECK(dim >= 0 && dim < Shape::kMaxRank && !seen[static_cast<size_t>(dim)], "malformed blocked format '", tag, "'");
    seen[static_cast<size_t>(dim)] = true;
    split[static_cast<size_t>(dim)] = upper;
    format.order_.push_back(dim);
  }
  while (i < tag.size()) {
    int64_t size = 0;
    while (i < tag.size() && tag[i] >= '0' && tag[i] <= '9' && size < 100000) size = size * 10 + (tag[i++] - '0');
    GALLEY_CHECK(i < tag.size() && tag[i] >= 'a' && tag[i] <= 'z' && size > 0 && split[static_cast<size_t>(tag[i] - 'a')],
                 "malformed blocked format '", tag, "'");
    format.blocks_.emplace_back(tag[i++] - 'a', size);
  }
  for (size_t dim = 0; dim < format.order_.size(); ++dim) GALLEY_CHECK(seen[dim], "malformed blocked format '", tag, "'");
  return format;
}

MemoryFormat MemoryFormat::parse(std::string_view text) {
  if (text == "contiguous") return contiguous();
  if (text == "channels_last") return channels_last();
  if (text == "channels_last_3d") return channels_last_3d();
  GALLEY_CHECK(text.starts_with("blocked(") && text.ends_with(")"), "unknown memory format '", text,
               "' (known: contiguous, channels_last, channels_last_3d, blocked(TAG))");
  return blocked(text.substr(8, text.size() - 9));
}

std::string MemoryFormat::str() const {
  switch (kind_) {
    case Kind::kContiguous: return "contiguous";
    case Kind::kChannelsLast: return "channels_last";
    case Kind::kChannelsLast3d: return "channels_last_3d";
    case Kind::kBlocked: break;
  }
  std::string tag;
  for (int dim : order_) {
    bool split = false;
    for (const auto& [block_dim, size] : blocks_) split |= block_dim == dim;
    tag += static_cast<char>((split ? 'A' : 'a') + dim);
  }
  for (const auto& [dim, size] : blocks_) tag += cat(size, static_cast<char>('a' + dim));
  return "blocked(" + tag + ")";
}

std::vector<int> MemoryFormat::order(int rank) const {
  const Dims dims = dims_of(*this, order_, rank);
  return {dims.begin(), dims.begin() + rank};
}

int64_t MemoryFormat::padded_elements(const Shape& shape) const {
  Shape padded = shape;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    int64_t block = 1;
    for (const auto& [block_dim, size] : blocks_) block *= block_dim == dim ? size : 1;
    padded[dim] = (shape[dim] + block - 1) / block * block;
  }
  return padded.elements();
}

Shape MemoryFormat::strides(const Shape& shape) const {
  GALLEY_ASSERT(!is_blocked());
  Shape strides = shape;
  int64_t step = 1;
  const Dims dims = dims_of(*this, order_, shape.rank());
  for (int i = shape.rank(); i-- > 0;) {
    const int dim = dims[static_cast<size_t>(i)];
    strides[dim] = step;
    step *= shape[dim] > 0 ? shape[dim] : 1;
  }
  return strides;
}

int64_t MemoryFormat::offset(const Shape& shape, const Shape& index) const {
  Shape outer = index;
  Shape outer_size = shape;
  int64_t inner = 0;
  int64_t step = 1;
  // Process inner blocks from the innermost outwards: each takes the remainder of its dimension's index.
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    const auto [dim, size] = *block;
    inner += outer[dim] % size * step;
    outer[dim] /= size;
    outer_size[dim] = (outer_size[dim] + size - 1) / size;
    step *= size;
  }
  int64_t offset = 0;
  const Dims dims = dims_of(*this, order_, shape.rank());
  for (const int dim : std::span(dims).first(static_cast<size_t>(shape.rank()))) offset = offset * outer_size[dim] + outer[dim];
  return offset * step + inner;
}

}  // namespace galley
