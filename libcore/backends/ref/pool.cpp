#include "libcore/ops/pool.h"

#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Calls visit(plane, row, column, index in y) for each element of [N,C,H,W].
template <class Visit>
void for_each_pixel(const Shape& y, Visit visit) {
  int64_t i = 0;
  for (int64_t plane = 0; plane < y[0] * y[1]; ++plane) {
    for (int64_t row = 0; row < y[2]; ++row) {
      for (int64_t column = 0; column < y[3]; ++column) visit(plane, row, column, i++);
    }
  }
}

template <class Attrs>
std::array<int64_t, 2> stride_of(const Attrs& attrs) {
  return pair(attrs.stride.empty() ? attrs.kernel_size : attrs.stride);
}

/// NaN counts as the largest, as PyTorch.
bool exceeds(double value, double best) { return value > best || (std::isnan(value) && !std::isnan(best)); }

void max_pool2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<MaxPool2dAttrs>();
  const auto kernel = pair(attrs.kernel_size), stride = stride_of(attrs), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
  const RefArray& x = call.in(0);
  for_each_pixel(call.out(0).shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    bool any = false;
    for (int64_t kh = 0; kh < kernel[0]; ++kh) {
      for (int64_t kw = 0; kw < kernel[1]; ++kw) {
        const int64_t h = row * stride[0] - padding[0] + kh * dilation[0], w = column * stride[1] - padding[1] + kw * dilation[1];
        if (h < 0 || h >= x.shape[2] || w < 0 || w >= x.shape[3]) continue;
        const double value = x[(plane * x.shape[2] + h) * x.shape[3] + w];
        if (any && !exceeds(value, call.out(0)[o])) continue;
        any = true;
        call.out(0)[o] = value;
        call.out(1)[o] = static_cast<double>(kh * kernel[1] + kw);
      }
    }
  });
}

/// Visits the cells of one window: visit(index in x).
template <class Visit>
void for_each_cell(const Shape& x, int64_t plane, const PoolRange& rows, const PoolRange& columns, Visit visit) {
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) visit((plane * x[2] + h) * x[3] + w);
  }
}

template <class Attrs>
struct Windows {
  Windows(const Attrs& a, const Shape& x) : attrs(a), x_shape(x) {}
  const Attrs& attrs;
  const Shape& x_shape;
  PoolRange range(size_t axis, int64_t o) const {
    return pool_range(o, x_shape[2 + static_cast<int>(axis)], pair(attrs.kernel_size)[axis], stride_of(attrs)[axis],
                      pair(attrs.padding)[axis]);
  }
  double divisor(const PoolRange& rows, const PoolRange& columns) const {
    return static_cast<double>(attrs.count_include_pad ? rows.size * columns.size
                                                       : (rows.end - rows.begin) * (columns.end - columns.begin));
  }
};

void avg_pool2d_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  const Windows windows(call.attrs<AvgPool2dAttrs>(), x.shape);
  for_each_pixel(call.out().shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    const PoolRange rows = windows.range(0, row), columns = windows.range(1, column);
    double sum = 0;
    for_each_cell(x.shape, plane, rows, columns, [&](int64_t i) { sum += x[i]; });
    call.out()[o] = sum / windows.divisor(rows, columns);
  });
}

void avg_pool2d_backward_ref(RefCall& call) {
  RefArray& dx = call.out();
  const Windows windows(call.attrs<AvgPool2dBackwardAttrs>(), dx.shape);
  for_each_pixel(call.in(0).shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    const PoolRange rows = windows.range(0, row), columns = windows.range(1, column);
    for_each_cell(dx.shape, plane, rows, columns, [&](int64_t i) { dx[i] += call.in(0)[o] / windows.divisor(rows, columns); });
  });
}

void adaptive_avg_pool2d_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  RefArray& y = call.out();
  for_each_pixel(y.shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    const PoolRange rows = adaptive_range(row, x.shape[2], y.shape[2]), columns = adaptive_range(column, x.shape[3], y.shape[3]);
    double sum = 0;
    for_each_cell(x.shape, plane, rows, columns, [&](int64_t i) { sum += x[i]; });
    y[o] = sum / static_cast<double>(rows.size * columns.size);
  });
}

void adaptive_avg_pool2d_backward_ref(RefCall& call) {
  const RefArray& grad = call.in(0);
  RefArray& dx = call.out();
  for_each_pixel(grad.shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    const PoolRange rows = adaptive_range(row, dx.shape[2], grad.shape[2]), columns = adaptive_range(column, dx.shape[3], grad.shape[3]);
    for_each_cell(dx.shape, plane, rows, columns, [&](int64_t i) { dx[i] += grad[o] / static_cast<double>(rows.size * columns.size); });
  });
}

void adaptive_max_pool2d_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  RefArray& y = call.out(0);
  const int64_t pixels = x.shape[2] * x.shape[3];
  for_each_pixel(y.shape, [&](int64_t plane, int64_t row, int64_t column, int64_t o) {
    bool any = false;
    for_each_cell(x.shape, plane, adaptive_range(row, x.shape[2], y.shape[2]), adaptive_range(column, x.shape[3], y.shape[3]),
                  [&](int64_t i) {
                    if (any && !exceeds(x[i], y[o])) return;
                    any = true;
                    y[o] = x[i];
                    call.out(1)[o] = static_cast<double>(i % pixels);
                  });
  });
}

constexpr RefEntry kEntries[] = {
    {"max_pool2d", max_pool2d_ref},
    {"avg_pool2d", avg_pool2d_ref},
    {"avg_pool2d_backward", avg_pool2d_backward_ref},
    {"adaptive_avg_pool2d", adaptive_avg_pool2d_ref},
    {"adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward_ref},
    {"adaptive_max_pool2d", adaptive_max_pool2d_ref},
};

}  // namespace

std::span<const RefEntry> ref_pool() { return kEntries; }

}  // namespace galley
