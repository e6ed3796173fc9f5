#include "libcore/ops/pool.h"

#include <array>
#include <limits>

#include "libcore/kernels/ref/table.h"

namespace galley {
namespace {

std::array<int64_t, 2> stride_of(const std::vector<int64_t>& stride, const std::vector<int64_t>& kernel) { return pair(stride.empty() ? kernel : stride); }

/// Calls visit(index of the output, image [N*C], row, column) for each pixel of `y`.
template <class Visit>
void for_each_pixel(const Shape& y, Visit visit) {
  int64_t i = 0;
  for (int64_t image = 0; image < y[0] * y[1]; ++image) {
    for (int64_t h = 0; h < y[2]; ++h) {
      for (int64_t w = 0; w < y[3]; ++w) visit(i++, image, h, w);
    }
  }
}

void max_pool2d_ref(RefCall& call) {
  const auto& a = call.attrs<MaxPool2dAttrs>();
  const auto kernel = pair(a.kernel_size), stride = stride_of(a.stride, a.kernel_size), padding = pair(a.padding), dilation = pair(a.dilation);
  const RefArray& x = call.in(0);
  for_each_pixel(call.out(0).shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    double best = -std::numeric_limits<double>::infinity();
    int64_t tap = -1;
    for (int64_t kh = 0; kh < kernel[0]; ++kh) {
      for (int64_t kw = 0; kw < kernel[1]; ++kw) {
        const int64_t row = h * stride[0] - padding[0] + kh * dilation[0], column = w * stride[1] - padding[1] + kw * dilation[1];
        if (row < 0 || row >= x.shape[2] || column < 0 || column >= x.shape[3]) continue;
        const double value = x[(image * x.shape[2] + row) * x.shape[3] + column];
        if (tap < 0 || value > best) {
          best = value;
          tap = kh * kernel[1] + kw;
        }
      }
    }
    call.out(0)[i] = best;
    call.out(1)[i] = static_cast<double>(tap);
  });
}

void max_pool2d_backward_ref(RefCall& call) {
  const auto& a = call.attrs<MaxPool2dBackwardAttrs>();
  const auto kernel = pair(a.kernel_size), stride = stride_of(a.stride, a.kernel_size), padding = pair(a.padding), dilation = pair(a.dilation);
  RefArray& dx = call.out();
  for_each_pixel(call.in(0).shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    const auto tap = static_cast<int64_t>(call.in(1)[i]);
    const int64_t row = h * stride[0] - padding[0] + tap / kernel[1] * dilation[0], column = w * stride[1] - padding[1] + tap % kernel[1] * dilation[1];
    dx[(image * dx.shape[2] + row) * dx.shape[3] + column] += call.in(0)[i];
  });
}

/// Calls visit(input index, divisor) for each cell of window (h, w).
template <class Attrs, class Visit>
void for_each_cell(const Attrs& a, const Shape& x, int64_t image, int64_t h, int64_t w, Visit visit) {
  const auto kernel = pair(a.kernel_size), stride = stride_of(a.stride, a.kernel_size), padding = pair(a.padding);
  const PoolRange rows = pool_range(h, x[2], kernel[0], stride[0], padding[0]), columns = pool_range(w, x[3], kernel[1], stride[1], padding[1]);
  const double divisor = static_cast<double>(a.count_include_pad ? rows.size * columns.size : (rows.end - rows.begin) * (columns.end - columns.begin));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = columns.begin; column < columns.end; ++column) visit((image * x[2] + row) * x[3] + column, divisor);
  }
}

void avg_pool2d_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  for_each_pixel(call.out().shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    for_each_cell(call.attrs<AvgPool2dAttrs>(), x.shape, image, h, w, [&](int64_t in, double divisor) { call.out()[i] += x[in] / divisor; });
  });
}

void avg_pool2d_backward_ref(RefCall& call) {
  RefArray& dx = call.out();
  for_each_pixel(call.in(0).shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    for_each_cell(call.attrs<AvgPool2dBackwardAttrs>(), dx.shape, image, h, w, [&](int64_t in, double divisor) { dx[in] += call.in(0)[i] / divisor; });
  });
}

/// Calls visit(input index, cells) for each input pixel of adaptive cell (h, w) of an output y.
template <class Visit>
void for_each_adaptive(const Shape& x, const Shape& y, int64_t image, int64_t h, int64_t w, Visit visit) {
  const PoolRange rows = adaptive_range(h, x[2], y[2]), columns = adaptive_range(w, x[3], y[3]);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      visit((image * x[2] + row) * x[3] + column, static_cast<double>(rows.size * columns.size));
    }
  }
}

void adaptive_avg_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  for_each_pixel(call.out().shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    for_each_adaptive(x.shape, call.out().shape, image, h, w, [&](int64_t in, double cells) { call.out()[i] += x[in] / cells; });
  });
}

void adaptive_avg_backward_ref(RefCall& call) {
  RefArray& dx = call.out();
  for_each_pixel(call.in(0).shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    for_each_adaptive(dx.shape, call.in(0).shape, image, h, w, [&](int64_t in, double cells) { dx[in] += call.in(0)[i] / cells; });
  });
}

void adaptive_max_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  const int64_t pixels = x.shape[2] * x.shape[3];
  for_each_pixel(call.out(0).shape, [&](int64_t i, int64_t image, int64_t h, int64_t w) {
    int64_t best = -1;
    for_each_adaptive(x.shape, call.out(0).shape, image, h, w, [&](int64_t in, double) {
      if (best < 0 || x[in] > x[best]) best = in;
    });
    call.out(0)[i] = x[best];
    call.out(1)[i] = static_cast<double>(best % pixels);
  });
}

void adaptive_max_backward_ref(RefCall& call) {
  RefArray& dx = call.out();
  const int64_t pixels = dx.shape[2] * dx.shape[3];
  for_each_pixel(call.in(0).shape, [&](int64_t i, int64_t image, int64_t, int64_t) {
    dx[image * pixels + static_cast<int64_t>(call.in(1)[i])] += call.in(0)[i];
  });
}

constexpr std::array kEntries{RefEntry{"max_pool2d", max_pool2d_ref},
                              RefEntry{"max_pool2d_backward", max_pool2d_backward_ref},
                              RefEntry{"avg_pool2d", avg_pool2d_ref},
                              RefEntry{"avg_pool2d_backward", avg_pool2d_backward_ref},
                              RefEntry{"adaptive_avg_pool2d", adaptive_avg_ref},
                              RefEntry{"adaptive_avg_pool2d_backward", adaptive_avg_backward_ref},
                              RefEntry{"adaptive_max_pool2d", adaptive_max_ref},
                              RefEntry{"adaptive_max_pool2d_backward", adaptive_max_backward_ref}};

}  // namespace

std::span<const RefEntry> ref_pool() { return kEntries; }

}  // namespace galley
