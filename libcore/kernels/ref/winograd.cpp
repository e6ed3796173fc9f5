#include "libcore/ops/winograd.h"

#include "libcore/kernels/ref/ref.h"
#include "libcore/ops/scalar.h"

namespace galley {
namespace {

using namespace winograd;

/// to [a][b] = left from right', for from [c][d], left [a][c], right [b][d].
template <size_t a, size_t c, size_t b, size_t d>
void transform(const double (&left)[a][c], const double (&from)[c][d], const double (&right)[b][d], double (&to)[a][b]) {
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

void winograd_conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<WinogradConv2dAttrs>();
  const auto padding = pair(attrs.padding);
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  const int64_t channels = x.shape[1], outputs = y.shape[1], rows = y.shape[2], columns = y.shape[3];
  std::vector<double> images(static_cast<size_t>(channels * kPositions));
  for (int64_t n = 0; n < y.shape[0]; ++n) {
    for (int64_t row = 0; row < rows; row += kOut) {
      for (int64_t column = 0; column < columns; column += kOut) {
        for (int64_t c = 0; c < channels; ++c) {
          double tile[kIn][kIn], made[kIn][kIn];
          for (int64_t p = 0; p < kPositions; ++p) {
            const int64_t h = row + p / kIn - padding[0], v = column + p % kIn - padding[1];
            const bool inside = h >= 0 && h < x.shape[2] && v >= 0 && v < x.shape[3];
            tile[p / kIn][p % kIn] = inside ? x[((n * channels + c) * x.shape[2] + h) * x.shape[3] + v] : 0;
          }
          transform(kImage, tile, kImage, made);
          for (int64_t p = 0; p < kPositions; ++p) images[static_cast<size_t>(c * kPositions + p)] = made[p / kIn][p % kIn];
        }
        for (int64_t o = 0; o < outputs; ++o) {
          double sums[kIn][kIn], made[kOut][kOut];
          for (int64_t p = 0; p < kPositions; ++p) {
            double sum = 0;
            for (int64_t c = 0; c < channels; ++c) sum += images[static_cast<size_t>(c * kPositions + p)] * w[(p * outputs + o) * channels + c];
            sums[p / kIn][p % kIn] = sum;
          }
          transform(kResult, sums, kResult, made);
          for (int64_t r = 0; r < kOut && row + r < rows; ++r) {
            for (int64_t v = 0; v < kOut && column + v < columns; ++v) {
              const int64_t i = ((n * outputs + o) * rows + row + r) * columns + column + v;
              y[i] = activate(attrs.activation, made[r][v] + (call.has(2) ? call.in(2)[o] : 0) + (call.has(3) ? call.in(3)[i] : 0));
            }
          }
        }
      }
    }
  }
}

constexpr RefEntry kEntries[] = {{"winograd_weights", winograd_weights_ref}, {"winograd_conv2d", winograd_conv2d_ref}};

}  // namespace

std::span<const RefEntry> ref_winograd() { return kEntries; }

}  // namespace galley
