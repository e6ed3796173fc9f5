// Operators that sample images: grid_sample, and those of optical flow.

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/flow.h"
#include "libcore/ops/grid_sample.h"

namespace galley {
namespace {

/// visit(point, row tap, column tap, grid point down, grid point across) for each pixel that a point of the grid [N,h,w,2] reads.
template <class Visit>
void walk_grid(const RefArray& grid, int64_t rows, int64_t columns, const GridSampleAttrs& attrs, Visit visit) {
  const int64_t points = grid.shape[0] * grid.shape[1] * grid.shape[2];
  for (int64_t point = 0; point < points; ++point) {
    const GridPoint across = grid_point(grid[2 * point], columns, attrs.padding_mode, attrs.align_corners);
    const GridPoint down = grid_point(grid[2 * point + 1], rows, attrs.padding_mode, attrs.align_corners);
    for (const GridTap& row : grid_taps(down.position, rows, attrs.mode)) {
      for (const GridTap& column : grid_taps(across.position, columns, attrs.mode)) {
        if (row.inside && column.inside) visit(point, row, column, down, across);
      }
    }
  }
}

/// visit(element of [N,C,h,w], element of [N,C,H,W]) for the channels of a point and a pixel.
template <class Visit>
void each_channel(const Shape& y, const Shape& x, int64_t point, const GridTap& row, const GridTap& column, Visit visit) {
  const int64_t pixels = y[2] * y[3], n = point / pixels;
  for (int64_t c = 0; c < y[1]; ++c)
    visit((n * y[1] + c) * pixels + point % pixels, ((n * y[1] + c) * x[2] + row.pixel) * x[3] + column.pixel);
}

void grid_sample_ref(RefCall& call) {
  const RefArray &x = call.in(0), &grid = call.in(1);
  RefArray& y = call.out();
  walk_grid(grid, x.shape[2], x.shape[3], call.attrs<GridSampleAttrs>(),
            [&](int64_t point, const GridTap& row, const GridTap& column, const GridPoint&, const GridPoint&) {
              each_channel(y.shape, x.shape, point, row, column,
                           [&](int64_t out, int64_t in) { y[out] += row.weight * column.weight * x[in]; });
            });
}

void grid_sample_backward_ref(RefCall& call) {
  const RefArray &grad = call.in(0), &grid = call.in(1);
  RefArray& dx = call.out();
  walk_grid(grid, dx.shape[2], dx.shape[3], call.attrs<GridSampleBackwardAttrs>().forward(),
            [&](int64_t point, const GridTap& row, const GridTap& column, const GridPoint&, const GridPoint&) {
              each_channel(grad.shape, dx.shape, point, row, column,
                           [&](int64_t out, int64_t in) { dx[in] += row.weight * column.weight * grad[out]; });
            });
}

void grid_sample_backward_grid_ref(RefCall& call) {
  const RefArray &grad = call.in(0), &x = call.in(1), &grid = call.in(2);
  RefArray& dgrid = call.out();
  walk_grid(grid, x.shape[2], x.shape[3], call.attrs<GridSampleAttrs>(),
            [&](int64_t point, const GridTap& row, const GridTap& column, const GridPoint& down, const GridPoint& across) {
              each_channel(grad.shape, x.shape, point, row, column, [&](int64_t out, int64_t in) {
                dgrid[2 * point] += across.slope * row.weight * column.slope * x[in] * grad[out];
                dgrid[2 * point + 1] += down.slope * row.slope * column.weight * x[in] * grad[out];
              });
            });
}

void detach_ref(RefCall& call) { call.out().v = call.in(0).v; }

/// visit(value of the look-up, pixel of the level, weight) for one level; a value whose position is NaN: pixel -1 and weight NaN.
template <class Visit>
void walk_level(const RefArray& flow, const Shape& level, int64_t number, int64_t radius, Visit visit) {
  const int64_t side = 2 * radius + 1, rows = flow.shape[2], columns = flow.shape[3], pixels = rows * columns;
  const double scale = std::exp2(-static_cast<double>(number));
  for (int64_t n = 0; n < flow.shape[0]; ++n) {
    for (int64_t p = 0; p < pixels; ++p) {
      const double x = (static_cast<double>(p % columns) + flow[n * 2 * pixels + p]) * scale;
      const double y = (static_cast<double>(p / columns) + flow[(n * 2 + 1) * pixels + p]) * scale;
      const LookupAxis across = lookup_axis(x, radius, level[3]), down = lookup_axis(y, radius, level[2]);
      for (int64_t value = 0; value < side * side; ++value) {
        const int64_t i = value / side, j = value % side;
        if (std::isnan(x) || std::isnan(y)) visit(n, p, value, int64_t{-1}, std::nan(""));
        if (!across.inside || !down.inside) continue;
        for (int64_t corner = 0; corner < 4; ++corner) {
          const int64_t column = across.first + i + corner % 2, row = down.first + j + corner / 2;
          if (column < 0 || column >= level[3] || row < 0 || row >= level[2]) continue;
          const double weight =
              (corner % 2 == 1 ? across.fraction : 1 - across.fraction) * (corner / 2 == 1 ? down.fraction : 1 - down.fraction);
          visit(n, p, value, row * level[3] + column, weight);
        }
      }
    }
  }
}

double correlation_scale(int64_t channels) { return 1 / std::sqrt(static_cast<double>(channels)); }

void lookup_ref(RefCall& call) {
  const auto& attrs = call.attrs<CorrelationLookupAttrs>();
  const RefArray &flow = call.in(0), &first = call.in(1);
  const int64_t channels = first.shape[1], pixels = first.shape[2] * first.shape[3], values = call.out().shape[1];
  for (size_t l = 0; l + 2 < call.input_count(); ++l) {
    const RefArray& level = call.in(l + 2);
    const int64_t size = level.shape[2] * level.shape[3], offset = static_cast<int64_t>(l) * attrs.per_level();
    walk_level(flow, level.shape, static_cast<int64_t>(l), attrs.radius,
               [&](int64_t n, int64_t p, int64_t value, int64_t q, double weight) {
                 double product = q < 0 ? 1 : 0;
                 for (int64_t c = 0; c < channels && q >= 0; ++c)
                   product += first[(n * channels + c) * pixels + p] * level[(n * channels + c) * size + q];
                 call.out()[(n * values + offset + value) * pixels + p] += weight * product * correlation_scale(channels);
               });
  }
}

void lookup_backward_first_ref(RefCall& call) {
  const auto& attrs = call.attrs<CorrelationLookupAttrs>();
  const RefArray &grad = call.in(0), &flow = call.in(1);
  const int64_t channels = call.out().shape[1], pixels = flow.shape[2] * flow.shape[3], values = grad.shape[1];
  for (size_t l = 0; l + 2 < call.input_count(); ++l) {
    const RefArray& level = call.in(l + 2);
    const int64_t size = level.shape[2] * level.shape[3], offset = static_cast<int64_t>(l) * attrs.per_level();
    walk_level(flow, level.shape, static_cast<int64_t>(l), attrs.radius,
               [&](int64_t n, int64_t p, int64_t value, int64_t q, double weight) {
                 const double share = weight * correlation_scale(channels) * grad[(n * values + offset + value) * pixels + p];
                 for (int64_t c = 0; c < channels; ++c)
                   call.out()[(n * channels + c) * pixels + p] += q < 0 ? share : share * level[(n * channels + c) * size + q];
               });
  }
}

void lookup_backward_level_ref(RefCall& call) {
  const auto& attrs = call.attrs<CorrelationLookupBackwardAttrs>();
  const RefArray &grad = call.in(0), &flow = call.in(1), &first = call.in(2);
  const int64_t channels = first.shape[1], pixels = first.shape[2] * first.shape[3], values = grad.shape[1];
  const Shape& level = call.out().shape;
  const int64_t offset = attrs.level * (2 * attrs.radius + 1) * (2 * attrs.radius + 1);
  walk_level(flow, level, attrs.level, attrs.radius, [&](int64_t n, int64_t p, int64_t value, int64_t q, double weight) {
    if (q < 0) return;  // no pixel depends on it
    const double share = weight * correlation_scale(channels) * grad[(n * values + offset + value) * pixels + p];
    for (int64_t c = 0; c < channels; ++c)
      call.out()[(n * channels + c) * level[2] * level[3] + q] += share * first[(n * channels + c) * pixels + p];
  });
}

/// A coarse pixel of convex_upsample, its nine neighbors, and the weights of one of its fine pixels.
struct FinePixel {
  std::array<double, 9> weight{};
  std::array<int64_t, 9> neighbor{};  // -1: outside
  std::array<int64_t, 9> logit{};     // elements of the mask
  int64_t n = 0, fine = 0;            // sample, and pixel of the fine image
};

template <class Visit>
void walk_fine(const RefArray& mask, int64_t factor, Visit visit) {
  const int64_t rows = mask.shape[2], columns = mask.shape[3], pixels = rows * columns, parts = factor * factor;
  for (int64_t at = 0; at < mask.shape[0] * pixels * parts; ++at) {
    const int64_t n = at / (pixels * parts), p = at / parts % pixels, part = at % parts, row = p / columns, column = p % columns;
    FinePixel pixel{.n = n, .fine = (row * factor + part / factor) * columns * factor + column * factor + part % factor};
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t k = 0; k < 9; ++k) {
      const int64_t y = row + k / 3 - 1, x = column + k % 3 - 1;
      const auto i = static_cast<size_t>(k);
      pixel.neighbor[i] = y < 0 || y >= rows || x < 0 || x >= columns ? -1 : y * columns + x;
      pixel.logit[i] = (n * 9 * parts + k * parts + part) * pixels + p;
      largest = std::max(largest, mask[pixel.logit[i]]);
    }
    for (size_t k = 0; k < 9; ++k) total += pixel.weight[k] = std::exp(mask[pixel.logit[k]] - largest);
    for (double& weight : pixel.weight) weight /= total;
    visit(pixel);
  }
}

void upsample_ref(RefCall& call) {
  const int64_t factor = call.attrs<ConvexUpsampleAttrs>().factor;
  const RefArray& flow = call.in(0);
  const int64_t channels = flow.shape[1], coarse = flow.shape[2] * flow.shape[3], fine = coarse * factor * factor;
  walk_fine(call.in(1), factor, [&](const FinePixel& pixel) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (size_t k = 0; k < 9; ++k) {
        if (pixel.neighbor[k] >= 0) sum += pixel.weight[k] * flow[(pixel.n * channels + c) * coarse + pixel.neighbor[k]];
      }
      call.out()[(pixel.n * channels + c) * fine + pixel.fine] = sum * static_cast<double>(factor);
    }
  });
}

void upsample_backward_ref(RefCall& call) {
  const int64_t factor = call.attrs<ConvexUpsampleAttrs>().factor;
  const RefArray &grad = call.in(0), &flow = call.in(1);
  const int64_t channels = flow.shape[1], coarse = flow.shape[2] * flow.shape[3], fine = coarse * factor * factor;
  walk_fine(call.in(2), factor, [&](const FinePixel& pixel) {
    std::array<double, 9> slope{};  // of the loss in the weights
    for (int64_t c = 0; c < channels; ++c) {
      const double g = grad[(pixel.n * channels + c) * fine + pixel.fine] * static_cast<double>(factor);
      for (size_t k = 0; k < 9; ++k) {
        if (pixel.neighbor[k] < 0) continue;
        const int64_t at = (pixel.n * channels + c) * coarse + pixel.neighbor[k];
        slope[k] += g * flow[at];
        call.out(0)[at] += g * pixel.weight[k];
      }
    }
    double mean = 0;
    for (size_t k = 0; k < 9; ++k) mean += pixel.weight[k] * slope[k];
    for (size_t k = 0; k < 9; ++k) call.out(1)[pixel.logit[k]] = pixel.weight[k] * (slope[k] - mean);
  });
}

constexpr RefEntry kEntries[] = {
    {"grid_sample", grid_sample_ref},
    {"grid_sample_backward", grid_sample_backward_ref},
    {"grid_sample_backward_grid", grid_sample_backward_grid_ref},
    {"detach", detach_ref},
    {"correlation_lookup", lookup_ref},
    {"correlation_lookup_backward_first", lookup_backward_first_ref},
    {"correlation_lookup_backward_level", lookup_backward_level_ref},
    {"convex_upsample", upsample_ref},
    {"convex_upsample_backward", upsample_backward_ref},
};

}  // namespace

std::span<const RefEntry> ref_sampling() { return kEntries; }

}  // namespace galley
