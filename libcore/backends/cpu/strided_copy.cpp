#include "libcore/backends/cpu/strided_copy.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int64_t kTaskBytes = 65536;

/// Where an outer index stands on both sides, counted up without divisions.
class Odometer {
 public:
  Odometer(const std::vector<CopyDim>& dims, int64_t index) : dims_(dims) {
    for (size_t d = dims.size(); d-- > 0;) {
      at_[d] = index % dims[d].size;
      index /= dims[d].size;
      from += at_[d] * dims[d].from;
      to += at_[d] * dims[d].to;
    }
  }
  void next() {
    for (size_t d = dims_.size(); d-- > 0;) {
      from += dims_[d].from;
      to += dims_[d].to;
      if (++at_[d] < dims_[d].size) return;
      from -= at_[d] * dims_[d].from;
      to -= at_[d] * dims_[d].to;
      at_[d] = 0;
    }
  }
  int64_t from = 0, to = 0;

 private:
  const std::vector<CopyDim>& dims_;
  std::array<int64_t, kMostCopyDims> at_;
};

int64_t product(const std::vector<CopyDim>& dims) {
  int64_t count = 1;
  for (const CopyDim& dim : dims) count *= dim.size;
  return count;
}

template <class T>
void copy_elements(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step, int64_t count) {
  const auto* in = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  from_step /= kSize;
  to_step /= kSize;
  if (from_step == 0 && to_step == 1) {
    std::fill(out, out + count, *in);
  } else if (to_step == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i * from_step];
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * to_step] = in[i * from_step];
  }
}

/// Runs one after the other; `element`: each is one element of that many bytes, else 0.
void copy_row(const std::byte* from, std::byte* to, const CopyDim& dim, int64_t count, int64_t bytes, int64_t element) {
  switch (element) {
    case 1: copy_elements<uint8_t>(from, dim.from, to, dim.to, count); return;
    case 2: copy_elements<uint16_t>(from, dim.from, to, dim.to, count); return;
    case 4: copy_elements<uint32_t>(from, dim.from, to, dim.to, count); return;
    case 8: copy_elements<uint64_t>(from, dim.from, to, dim.to, count); return;
    default:
      for (int64_t i = 0; i < count; ++i) copy_run(to + i * dim.to, from + i * dim.from, bytes);
  }
}

using Four [[gnu::vector_size(16)]] = uint32_t;

/// to[i][j] = from[j][i] of 4 x 4 elements of 4 bytes.
inline void transpose_four(const uint32_t* from, int64_t from_step, uint32_t* to, int64_t to_step) {
  Four r[4];
  for (int64_t j = 0; j < 4; ++j) std::memcpy(&r[j], from + j * from_step, 16);
  const Four low_a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), low_b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Four high_a = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7), high_b = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const Four out[4] = {__builtin_shufflevector(low_a, low_b, 0, 1, 4, 5), __builtin_shufflevector(low_a, low_b, 2, 3, 6, 7),
                       __builtin_shufflevector(high_a, high_b, 0, 1, 4, 5), __builtin_shufflevector(high_a, high_b, 2, 3, 6, 7)};
  for (int64_t i = 0; i < 4; ++i) std::memcpy(to + i * to_step, &out[i], 16);
}

/// to[i * to_step + j] = from[j * from_step + i], steps in elements.
template <class T>
void transpose(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows, int64_t columns) {
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    for (; i + 4 <= rows; i += 4) {
      int64_t j = 0;
      for (; j + 4 <= columns; j += 4) transpose_four(from + j * from_step + i, from_step, to + i * to_step + j, to_step);
      for (; j < columns; ++j) {
        for (int64_t k = i; k < i + 4; ++k) to[k * to_step + j] = from[j * from_step + k];
      }
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[i * to_step + j] = from[j * from_step + i];
  }
}

/// transpose for a small constant number of columns, such as the channels of images.
template <int kColumns, class T>
void interleave(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int j = 0; j < kColumns; ++j) to[i * to_step + j] = from[j * from_step + i];
  }
}

template <class T>
void transpose_tile(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step, int64_t rows, int64_t columns) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto* in = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  from_step /= kSize;
  to_step /= kSize;
  switch (columns) {
    case 1: interleave<1>(in, from_step, out, to_step, rows); return;
    case 2: interleave<2>(in, from_step, out, to_step, rows); return;
    case 3: interleave<3>(in, from_step, out, to_step, rows); return;
    default: transpose(in, from_step, out, to_step, rows, columns);
  }
}

}  // namespace

StridedCopy::StridedCopy(int64_t element, std::vector<CopyDim> dims) : bytes_(element), element_(element) {
  GALLEY_ASSERT(dims.size() <= kMostCopyDims);
  for (const CopyDim& dim : dims) empty_ |= dim.size == 0;
  if (empty_) return;
  std::erase_if(dims, [](const CopyDim& dim) { return dim.size == 1; });
  std::stable_sort(dims.begin(), dims.end(), [](const CopyDim& a, const CopyDim& b) { return a.to > b.to; });
  for (CopyDim dim : dims) {
    dim.from *= element;
    dim.to *= element;
    if (!outer_.empty() && outer_.back().from == dim.from * dim.size && outer_.back().to == dim.to * dim.size) {
      outer_.back() = {outer_.back().size * dim.size, dim.from, dim.to};
    } else {
      outer_.push_back(dim);
    }
  }
  if (!outer_.empty() && outer_.back().from == element && outer_.back().to == element) {
    bytes_ = outer_.back().size * element;
    element_ = 0;
    outer_.pop_back();
  }
  if (outer_.empty()) return;
  inner_ = outer_.back();
  outer_.pop_back();
  if (element_ == 0 || inner_.to != element || inner_.from == 0) return;
  const auto across = std::find_if(outer_.begin(), outer_.end(), [&](const CopyDim& dim) { return dim.from == element; });
  if (across == outer_.end()) return;
  across_ = *across;
  outer_.erase(across);
  tiled_ = true;
}

void StridedCopy::run(const std::byte* from, std::byte* to) const {
  if (empty_) return;
  tiled_ ? run_tiles(from, to) : run_rows(from, to);
}

void StridedCopy::run_rows(const std::byte* from, std::byte* to) const {
  if (bytes_ >= 16 * kTaskBytes || (outer_.empty() && inner_.size == 1)) {  // few long runs: each is cut
    const int64_t rows = product(outer_) * inner_.size;
    Odometer outer(outer_, 0);
    for (int64_t row = 0; row < rows; ++row) {
      if (row > 0 && row % inner_.size == 0) outer.next();
      const int64_t i = row % inner_.size, from_at = outer.from + i * inner_.from, to_at = outer.to + i * inner_.to;
      parallel_for(bytes_, kTaskBytes, [&](int64_t begin, int64_t end) {
        std::memcpy(to + to_at + begin, from + from_at + begin, static_cast<size_t>(end - begin));
      });
    }
    return;
  }
  parallel_for(product(outer_) * inner_.size, std::max<int64_t>(1, kTaskBytes / bytes_), [&](int64_t begin, int64_t end) {
    Odometer outer(outer_, begin / inner_.size);
    int64_t first = begin % inner_.size;
    while (begin < end) {
      const int64_t count = std::min(inner_.size - first, end - begin);
      copy_row(from + outer.from + first * inner_.from, to + outer.to + first * inner_.to, inner_, count, bytes_, element_);
      begin += count;
      first = 0;
      outer.next();
    }
  });
}

void StridedCopy::run_tiles(const std::byte* from, std::byte* to) const {
  constexpr int64_t kRows = 32, kColumns = 128;  // source and target of a tile stay in the first-level cache
  const int64_t down = (across_.size + kRows - 1) / kRows, along = (inner_.size + kColumns - 1) / kColumns;
  const int64_t tile_bytes = std::min(kRows, across_.size) * std::min(kColumns, inner_.size) * bytes_;
  parallel_for(product(outer_) * down * along, std::max<int64_t>(1, kTaskBytes / tile_bytes), [&](int64_t begin, int64_t end) {
    Odometer outer(outer_, begin / (down * along));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / along % down * kRows, column = tile % along * kColumns;
      const int64_t rows = std::min(kRows, across_.size - row), columns = std::min(kColumns, inner_.size - column);
      const std::byte* in = from + outer.from + row * across_.from + column * inner_.from;
      std::byte* out = to + outer.to + row * across_.to + column * inner_.to;
      switch (bytes_) {
        case 1: transpose_tile<uint8_t>(in, inner_.from, out, across_.to, rows, columns); break;
        case 2: transpose_tile<uint16_t>(in, inner_.from, out, across_.to, rows, columns); break;
        case 4: transpose_tile<uint32_t>(in, inner_.from, out, across_.to, rows, columns); break;
        default: transpose_tile<uint64_t>(in, inner_.from, out, across_.to, rows, columns);
      }
      if ((tile + 1) % (down * along) == 0) outer.next();
    }
  });
}

std::vector<CopyDim> copy_dims(const TensorType& from, const TensorType& to) {
  const Shape from_steps = from.format.strides(from.shape), to_steps = to.format.strides(to.shape);
  std::vector<CopyDim> dims;
  for (const int d : to.format.order(to.shape.rank())) dims.push_back({to.shape[d], from_steps[d], to_steps[d]});
  return dims;
}

}  // namespace galley
