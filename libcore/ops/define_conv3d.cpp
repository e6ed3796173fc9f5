// Definitions of three-dimensional convolutions: for each tap along the depth a convolution of images, the frames that the tap reads. Back
// ends without a kernel of their own run these.

#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/shape.h"

namespace galley::definition {
namespace {

/// What the taps along the depth read.
struct Taps {
  Taps(const Conv2dWindow& window, int64_t depth, int64_t kernel)
      : stride(per_axis(window.stride, 3)[0]),
        padding(per_axis(window.padding, 3)[0]),
        dilation(per_axis(window.dilation, 3)[0]),
        padded(depth + 2 * padding),
        count((padded - dilation * (kernel - 1) - 1) / stride + 1) {}
  /// The padded frames that tap k reads.
  SliceAttrs frames(int64_t k) const {
    SliceAttrs attrs;
    attrs.axis = 1;
    attrs.start = k * dilation;
    attrs.end = attrs.start + (count - 1) * stride + 1;
    attrs.step = stride;
    return attrs;
  }
  int64_t stride, padding, dilation;
  int64_t padded;  // frames with padding
  int64_t count;   // frames of the result
};

/// The window along rows and columns.
template <class Attrs>
Attrs plane_window(const Conv2dWindow& window) {
  const auto plane = [](const std::vector<int64_t>& v) {
    const std::vector<int64_t> all = per_axis(v, 3);
    return std::vector<int64_t>{all[1], all[2]};
  };
  Attrs attrs;
  attrs.stride = plane(window.stride);
  attrs.padding = plane(window.padding);
  attrs.dilation = plane(window.dilation);
  attrs.groups = window.groups;
  return attrs;
}

/// [N,C,D,H,W] -> [N,D,C,H,W]; its own inverse.
Value swap_depth(Value x) { return permute(x, {0, 2, 1, 3, 4}); }

/// [N,D,C,H,W] -> [N D,C,H,W].
Value as_images(Value frames) {
  const Shape& s = frames.shape();
  return reshape(frames, Shape{s[0] * s[1], s[2], s[3], s[4]});
}

/// x [N,C,D,H,W] with padding along the depth as [N,D',C,H,W].
Value padded_frames(Value x, const Taps& taps) {
  const Value frames = swap_depth(x);
  return taps.padding == 0 ? frames : pad(frames, {0, 0, taps.padding, taps.padding, 0, 0, 0, 0, 0, 0});
}

/// The kernel [O,C,kh,kw] of tap k.
Value kernel_of(Value weight, int64_t k) { return squeeze(slice(weight, 2, k, k + 1), 2); }

Value accumulated(Value sum, Value term) { return sum ? add(sum, term) : term; }

}  // namespace

void conv3d(Expansion& e) {
  const auto& attrs = e.attrs<Conv2dAttrs>();
  const Value x = e.in(0), weight = e.in(1);
  const int64_t kernel = weight.shape()[2];
  const Taps taps(attrs, x.shape()[2], kernel);
  const Value frames = padded_frames(x, taps);
  Value y;
  for (int64_t k = 0; k < kernel; ++k)
    y = accumulated(y,
                    galley::conv2d(as_images(slice(frames, taps.frames(k))), kernel_of(weight, k), {}, plane_window<Conv2dAttrs>(attrs)));
  const Shape& result = e.output_type().shape;
  y = swap_depth(reshape(y, Shape{result[0], result[2], result[1], result[3], result[4]}));
  if (e.has(2)) y = add(y, per_channel(e.in(2), 5));
  if (e.has(3)) y = add(y, e.in(3));
  e.set(0, activated(attrs.activation, y));
}

void conv3d_backward_data(Expansion& e) {
  const auto& attrs = e.attrs<Conv2dBackwardDataAttrs>();
  const Shape& size = e.output_type().shape;
  const Value weight = e.in(1);
  const int64_t kernel = weight.shape()[2];
  const Taps taps(attrs, size[2], kernel);
  auto plane = plane_window<Conv2dBackwardDataAttrs>(attrs);
  plane.input_size = {size[3], size[4]};
  const Value grad = as_images(swap_depth(e.in(0)));
  Value sum;
  for (int64_t k = 0; k < kernel; ++k) {
    const Value images = galley::conv2d_backward_data(grad, kernel_of(weight, k), plane);
    const SliceAttrs read = taps.frames(k);
    SliceBackwardAttrs spread;
    spread.axis = read.axis;
    spread.start = read.start;
    spread.end = read.end;
    spread.step = read.step;
    spread.size = taps.padded;
    sum = accumulated(sum, slice_backward(reshape(images, Shape{size[0], taps.count, size[1], size[3], size[4]}), spread));
  }
  if (taps.padding > 0) sum = slice(sum, 1, taps.padding, taps.padding + size[2]);
  Value dx = swap_depth(sum);
  if (e.has(2)) dx = add(dx, e.in(2));
  e.set(0, dx);
}

void conv3d_backward_weights(Expansion& e) {
  const auto& attrs = e.attrs<Conv2dBackwardWeightsAttrs>();
  const Shape& size = e.output_type().shape;
  const Value x = e.in(0);
  const Taps taps(attrs, x.shape()[2], size[2]);
  auto plane = plane_window<Conv2dBackwardWeightsAttrs>(attrs);
  plane.kernel_size = {size[3], size[4]};
  const Value frames = padded_frames(x, taps), grad = as_images(swap_depth(e.in(1)));
  std::vector<Value> kernels;
  for (int64_t k = 0; k < size[2]; ++k)
    kernels.push_back(unsqueeze(galley::conv2d_backward_weights(as_images(slice(frames, taps.frames(k))), grad, plane), 2));
  ConcatAttrs along;
  along.axis = 2;
  e.set(0, concat(kernels, along));
}

}  // namespace galley::definition
