// Pooling over three axes, composed of pooling over two: windows are products of ranges, and so are the sizes that divide means.

#include "libcore/ops/pool.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// Pools the planes of x [N,C,D,H,W], then lines along the depth.
template <class Planes, class Depth>
Value pool_parts(Value x, Planes planes, Depth depth) {
  GALLEY_CHECK(x.shape().rank() == 5, "the input must be [N,C,D,H,W], not ", x.shape());
  const int64_t batch = x.shape()[0], channels = x.shape()[1], frames = x.shape()[2];
  x = permute(x, {0, 2, 1, 3, 4});
  x = planes(reshape(x, Shape{batch * frames, channels, x.shape()[3], x.shape()[4]}));
  const Shape plane{x.shape()[1], x.shape()[2], x.shape()[3]};
  x = depth(reshape(x, Shape{batch, 1, frames, plane.elements()}));
  return permute(reshape(x, Shape{batch, x.shape()[2], plane[0], plane[1], plane[2]}), {0, 2, 1, 3, 4});
}

std::vector<int64_t> plane_of(const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return {};
  const std::vector<int64_t> all = per_axis(sizes, 3);
  return {all[1], all[2]};
}
/// The size along the depth, and `other` along the line.
std::vector<int64_t> depth_of(const std::vector<int64_t>& sizes, int64_t other) {
  if (sizes.empty()) return {};
  return {per_axis(sizes, 3)[0], other};
}

template <class Window>
Window plane_window(Window window) {
  window.kernel_size = plane_of(window.kernel_size);
  window.stride = plane_of(window.stride);
  window.padding = plane_of(window.padding);
  return window;
}
template <class Window>
Window depth_window(Window window) {
  window.kernel_size = depth_of(window.kernel_size, 1);
  window.stride = depth_of(window.stride, 1);
  window.padding = depth_of(window.padding, 0);
  return window;
}

}  // namespace

Value max_pool3d(Value x, const MaxPool2dAttrs& attrs) {
  MaxPool2dAttrs planes = plane_window(attrs), depth = depth_window(attrs);
  planes.dilation = plane_of(attrs.dilation);
  depth.dilation = depth_of(attrs.dilation, 1);
  return pool_parts(x, [&](Value part) { return max_pool2d(part, planes).y; }, [&](Value part) { return max_pool2d(part, depth).y; });
}

Value avg_pool3d(Value x, const AvgPool2dAttrs& attrs) {
  const AvgPool2dAttrs planes = plane_window(attrs), depth = depth_window(attrs);
  return pool_parts(x, [&](Value part) { return avg_pool2d(part, planes); }, [&](Value part) { return avg_pool2d(part, depth); });
}

Value adaptive_avg_pool3d(Value x, const AdaptiveAvgPool2dAttrs& attrs) {
  return pool_parts(
      x,
      [&](Value part) {
        AdaptiveAvgPool2dAttrs planes;
        planes.output_size = plane_of(attrs.output_size);
        return adaptive_avg_pool2d(part, planes);
      },
      [&](Value part) {
        AdaptiveAvgPool2dAttrs depth;
        depth.output_size = depth_of(attrs.output_size, part.shape()[3]);
        return adaptive_avg_pool2d(part, depth);
      });
}

}  // namespace galley
