#include "libcore/backends/cpu/rewrite/winograd.h"

#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/backends/cpu/rewrite/target_operators.h"
#include "libcore/backends/ref/quantized.h"
#include "libcore/backends/ref/ref.h"
#include "libcore/ops/elementwise.h"

namespace galley {
namespace {

using namespace winograd;

/// to [a][b] = left from right', for from [c][d], left [a][c], right [b][d].
template <class T, size_t a, size_t c, size_t b, size_t d>
void transform(const T (&left)[a][c], const double (&from)[c][d], const T (&right)[b][d], double (&to)[a][b]) {
  for (size_t i = 0; i < a; ++i) {
    for (size_t j = 0; j < b; ++j) {
      to[i][j] = 0;
      for (size_t k = 0; k < c; ++k) {
        for (size_t l = 0; l < d; ++l) to[i][j] += left[i][k] * from[k][l] * right[j][l];
      }
    }
  }
}

void winograd_weights_ref(RefCall& call) {
  const RefArray& w = call.in(0);
  RefArray& out = call.out();
  const bool backward = call.attrs<WinogradWeightsAttrs>().backward;
  const int64_t channels = w.shape[1], kernels = w.shape[0] * channels;
  for (int64_t kernel = 0; kernel < kernels; ++kernel) {
    double taps[kTaps][kTaps], made[kIn][kIn];
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) taps[tap / kTaps][tap % kTaps] = w[kernel * kTaps * kTaps + (backward ? kTaps * kTaps - 1 - tap : tap)];
    transform(kKernel, taps, kKernel, made);
    const int64_t o = kernel / channels, c = kernel % channels;
    for (int64_t p = 0; p < kPositions; ++p) out[p * kernels + (backward ? c * w.shape[0] + o : kernel)] = made[p / kIn][p % kIn];
  }
}

/// The convolution by one set of transforms: image(i) of x, weight(o, position, channel), results to result(i, o, y).
template <class T, class Image, class Weight, class Result>
void convolve(const T (&image_rows)[kIn][kIn], const T (&result_rows)[kOut][kIn], const Shape& x, const Shape& y, std::array<int64_t, 2> padding, Image image, Weight weight, Result result) {
  const int64_t channels = x[1], outputs = y[1], rows = y[2], columns = y[3];
  std::vector<double> images(static_cast<size_t>(channels * kPositions));
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t row = 0; row < rows; row += kOut) {
      for (int64_t column = 0; column < columns; column += kOut) {
        for (int64_t c = 0; c < channels; ++c) {
          double tile[kIn][kIn], made[kIn][kIn];
          for (int64_t p = 0; p < kPositions; ++p) {
            const int64_t h = row + p / kIn - padding[0], v = column + p % kIn - padding[1];
            const bool inside = h >= 0 && h < x[2] && v >= 0 && v < x[3];
            tile[p / kIn][p % kIn] = inside ? image(((n * channels + c) * x[2] + h) * x[3] + v) : 0;
          }
          transform(image_rows, tile, image_rows, made);
          for (int64_t p = 0; p < kPositions; ++p) images[static_cast<size_t>(c * kPositions + p)] = made[p / kIn][p % kIn];
        }
        for (int64_t o = 0; o < outputs; ++o) {
          double sums[kIn][kIn], made[kOut][kOut];
          for (int64_t p = 0; p < kPositions; ++p) {
            double sum = 0;
            for (int64_t c = 0; c < channels; ++c) sum += images[static_cast<size_t>(c * kPositions + p)] * weight(o, p, c);
            sums[p / kIn][p % kIn] = sum;
          }
          transform(result_rows, sums, result_rows, made);
          for (int64_t r = 0; r < kOut && row + r < rows; ++r) {
            for (int64_t v = 0; v < kOut && column + v < columns; ++v) result(((n * outputs + o) * rows + row + r) * columns + column + v, o, r, v, made[r][v]);
          }
        }
      }
    }
  }
}

void winograd_conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<WinogradConv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  convolve(
      kImage, kResult, x.shape, y.shape, pair(attrs.padding), [&](int64_t i) { return x[i]; },
      [&](int64_t o, int64_t p, int64_t c) { return w[(p * y.shape[1] + o) * x.shape[1] + c]; },
      [&](int64_t i, int64_t o, int64_t, int64_t, double made) {
        y[i] = activate(attrs.activation, made + (call.has(2) ? call.in(2)[o] : 0) + (call.has(3) ? call.in(3)[i] : 0));
      });
}

void quantized_winograd_weights_ref(RefCall& call) {
  const RefArray& w = call.in(0);
  const int64_t channels = w.shape[1];
  for (int64_t kernel = 0; kernel < w.shape[0] * channels; ++kernel) {
    double taps[kTaps][kTaps], made[kIn][kIn];
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) taps[tap / kTaps][tap % kTaps] = w[kernel * kTaps * kTaps + tap];
    transform(kWholeKernel, taps, kWholeKernel, made);
    for (int64_t p = 0; p < kPositions; ++p) call.out()[(kernel / channels * kPositions + p) * channels + kernel % channels] = made[p / kIn][p % kIn];
  }
}

/// Whole numbers in double, far below 2^53.
void quantized_winograd_conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<QuantizedConv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  const auto zero_point = static_cast<double>(attrs.input_zero_point);
  convolve(
      kWholeImage, kWholeResult, x.shape, y.shape, pair(attrs.padding), [&](int64_t i) { return x[i] - zero_point; },
      [&](int64_t o, int64_t p, int64_t c) { return w[(o * kPositions + p) * x.shape[1] + c]; },
      [&](int64_t i, int64_t o, int64_t row, int64_t column, double made) {
        y[i] = finished_product(call, attrs, made / (kWholeScale[row] * kWholeScale[column]), i, o);
      });
}

/// The sums of the plain operator: the transforms of its adjoint cancel.
void winograd_conv2d_backward_weights_ref(RefCall& call) { find_reference("conv2d_backward_weights")(call); }

constexpr RefEntry kEntries[] = {{"winograd_weights", winograd_weights_ref}, {"winograd_conv2d", winograd_conv2d_ref}, {"quantized_winograd_weights", quantized_winograd_weights_ref}, {"quantized_winograd_conv2d", quantized_winograd_conv2d_ref},
                                 {"winograd_conv2d_backward_weights", winograd_conv2d_backward_weights_ref}};

}  // namespace

std::span<const RefEntry> winograd_references() { return kEntries; }

}  // namespace galley
