#include "libcore/backends/cpu/quantized_implicit_gemm.h"

#include <algorithm>
#include <cstring>

#include "libcore/backends/cpu/quantized_thresholds.h"
#include "libcore/base/parallel.h"

namespace galley::quantized {
namespace {

constexpr int64_t kFew = quantized_threshold::kUnwidenedPixels.value;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t aligned(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

}  // namespace

ImplicitGemm::ImplicitGemm(const ConvSizes& sizes, Path path, int threads) : sizes_(sizes), path_(path), threads_(std::max(1, threads)) {
  const ConvSizes& s = sizes_;
  // A few microseconds of work end before a second thread has started.
  if (s.images * s.out_height * s.out_width * s.outputs * (s.channels / s.groups) * s.kernel_h * s.kernel_w <
      quantized_threshold::kOneThreadProducts.value)
    threads_ = 1;
  pointwise_ = s.kernel_h == 1 && s.kernel_w == 1 && s.padding_h == 0 && s.padding_w == 0;
  group_inputs_ = s.channels / s.groups;
  group_outputs_ = s.outputs / s.groups;
  quads_ = quads_of(group_inputs_);
  value_bytes_ = path == Path::kExact ? 2 : 1;
  const int64_t pixel = quads_ * kQuad;
  columns_ = pointwise_ ? 1 : (s.out_width - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
  const auto laid_rows = [&](int64_t rows) { return (rows - 1) * s.stride_h + (s.kernel_h - 1) * s.dilation_h + 1; };

  // Units: output rows of an image, or pixels of all images.
  const int64_t images = pointwise_ ? 1 : s.images, units = pointwise_ ? s.images * s.out_height * s.out_width : s.out_height;
  const int64_t unit_pixels = pointwise_ ? 1 : s.out_width;
  const int64_t unit_bytes = unit_pixels * s.outputs * s.out_bytes + (pointwise_ ? 1 : s.stride_h * columns_) * pixel * value_bytes_;
  int64_t bands = ceil_div(units * unit_bytes,
                           (path == Path::kExact ? quantized_threshold::kExactBandBytes : quantized_threshold::kByteBandBytes).value);
  // Work for all threads: first by dividing the outputs, whose parts copy the inputs again, then by smaller bands, which read the
  // weights again.
  const int64_t wanted = threads_ == 1 ? 1 : 2 * threads_;
  int64_t splits = 1;
  if (images * bands < wanted) {
    const int64_t pieces = s.groups > 1 ? s.groups : std::max<int64_t>(1, s.outputs / quantized_threshold::kSplitOutputs.value);
    splits = std::clamp<int64_t>(wanted / (images * bands), 1, pieces);
    if (images * bands * splits < wanted) bands = ceil_div(wanted, images * splits);
  } else if (images == 1 && bands < 4 * threads_) {
    bands = ceil_div(bands, threads_) * threads_;  // equal shares
  }
  bands = std::clamp<int64_t>(bands, 1, std::max<int64_t>(1, units * unit_pixels / quantized_threshold::kBandPixels.value));
  bands = std::min(bands, units);

  const int64_t steps = s.groups > 1 ? s.groups : ceil_div(s.outputs, kMostStep), step = s.groups > 1 ? group_outputs_ : kMostStep;
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t band = 0; band < bands; ++band) {
      for (int64_t split = 0; split < splits; ++split) {
        const Task task{image, units * band / bands, units * (band + 1) / bands, steps * split / splits * step,
                        std::min(s.outputs, steps * (split + 1) / splits * step)};
        if (task.begin < task.end && task.first_output < task.last_output) tasks_.push_back(task);
      }
    }
  }
  int64_t most = 0;
  for (const Task& task : tasks_) most = std::max(most, task.end - task.begin);

  for (int64_t u = 0; u < most; ++u) {
    for (int64_t c = 0; c < unit_pixels; ++c)
      pixel_at_.push_back(static_cast<int32_t>((u * s.stride_h * columns_ + c * s.stride_w) * pixel));
  }
  if (pointwise_) {
    for (int64_t u = 0; u < most; ++u) pixel_at_[static_cast<size_t>(u)] = static_cast<int32_t>(u * pixel);
  }
  const bool joined = s.dilation_w == 1;  // a row of the window is one run
  for (int64_t i = 0; i < s.kernel_h; ++i) {
    for (int64_t j = 0; j < (joined ? 1 : s.kernel_w); ++j)
      run_at_.push_back(static_cast<int32_t>((i * s.dilation_h * columns_ + j * s.dilation_w) * pixel));
  }
  runs_ = static_cast<int64_t>(run_at_.size());
  run_quads_ = quads_ * (joined ? s.kernel_w : 1);

  const int64_t laid_pixels = pointwise_ ? most : laid_rows(most) * columns_;
  wide_at_ = aligned(std::max(laid_pixels, kFew) * pixel * value_bytes_ + 64);
  int64_t outputs = 0;  // of a task's group
  for (const Task& task : tasks_) outputs = std::max(outputs, std::min(task.last_output - task.first_output, group_outputs_));
  const int64_t all = wide_values(runs_ * run_quads_, outputs) * 2;
  resident_ = all <= quantized_threshold::kResidentWeightBytes.value;
  few_ = path == Path::kExact && laid_pixels <= kFew;
  starts_at_ = wide_at_ + (path == Path::kExact && !few_ ? aligned(resident_ ? all : wide_values(runs_ * run_quads_, 1) * 2) : 0);
  tiles_at_ = starts_at_ + (path == Path::kExact ? 0 : aligned(padded_outputs(outputs + kBlock) * 4));
  workspace_bytes_ = tiles_at_ + (path == Path::kAmx ? aligned(tile_workspace(runs_, run_quads_, most * unit_pixels, outputs)) : 0);
}

void ImplicitGemm::run(const uint8_t* x, uint8_t flip, int32_t zero_point, const int8_t* weight, const Epilogue& epilogue,
                       std::byte* scratch) const {
  parallel_tasks(static_cast<int64_t>(tasks_.size()), threads_, [&](int64_t task, int64_t slot) {
    run_task(tasks_[static_cast<size_t>(task)], x, flip, zero_point, weight, epilogue, scratch + slot * workspace_bytes_);
  });
}

void ImplicitGemm::run_task(const Task& task, const uint8_t* x, uint8_t flip, int32_t zero_point, const int8_t* weight,
                            const Epilogue& epilogue, std::byte* workspace) const {
  const int64_t first_pixel = pointwise_ ? task.begin : (task.image * sizes_.out_height + task.begin) * sizes_.out_width;
  Product p;
  p.path = path_;
  p.pixel_at = pixel_at_.data();
  p.pixels = (task.end - task.begin) * (pointwise_ ? 1 : sizes_.out_width);
  p.run_at = run_at_.data();
  p.runs = runs_;
  p.run_quads = run_quads_;
  p.weights = weight;
  p.zero_point = zero_point;
  p.resident = resident_;
  p.far = sizes_.images *
              (sizes_.height * sizes_.width * sizes_.channels + sizes_.out_height * sizes_.out_width * sizes_.outputs * sizes_.out_bytes) >
          quantized_threshold::kPrefetchBytes.value;
  p.few = few_;
  p.wide = reinterpret_cast<int16_t*>(workspace + wide_at_);
  p.starts = reinterpret_cast<int32_t*>(workspace + starts_at_);
  p.tiles = workspace + tiles_at_;
  p.epilogue = epilogue;
  p.epilogue.out = static_cast<std::byte*>(epilogue.out) + first_pixel * sizes_.outputs * sizes_.out_bytes;
  if (epilogue.residual) p.epilogue.residual = epilogue.residual + first_pixel * sizes_.outputs;
  // Bytes that already have the layout need no copy.
  const bool in_place = pointwise_ && path_ != Path::kExact && flip == 0 && sizes_.groups == 1 && sizes_.stride_h == 1 &&
                        sizes_.stride_w == 1 && sizes_.channels % kQuad == 0;
  for (int64_t output = task.first_output; output < task.last_output;) {
    const int64_t group = output / group_outputs_;
    p.begin = output;
    p.end = output = std::min(task.last_output, (group + 1) * group_outputs_);
    if (in_place) {
      p.a = x + task.begin * sizes_.channels;
      p.a_bytes = (sizes_.images * sizes_.height * sizes_.width - task.begin) * sizes_.channels;
    } else {
      lay_out(task, group, x, flip, zero_point, workspace);
      p.a = workspace;
      p.a_bytes = wide_at_;
      if (few_) {
        auto* values = reinterpret_cast<int16_t*>(workspace);
        for (int64_t quad = 0; quad < kFew * quads_; ++quad) std::swap(values[quad * kQuad + 1], values[quad * kQuad + 2]);
      }
    }
    multiply(p);
  }
}

void ImplicitGemm::lay_out(const Task& task, int64_t group, const uint8_t* x, uint8_t flip, int32_t zero_point, std::byte* band) const {
  const ConvSizes& s = sizes_;
  const int64_t pixel = quads_ * kQuad * value_bytes_;
  x += group * group_inputs_;
  if (pointwise_) {
    if (s.stride_h == 1 && s.stride_w == 1) return place(x + task.begin * s.channels, task.end - task.begin, flip, zero_point, band);
    for (int64_t u = task.begin; u < task.end; ++u) {
      const int64_t image = u / (s.out_height * s.out_width), row = u / s.out_width % s.out_height * s.stride_h,
                    column = u % s.out_width * s.stride_w;
      place(x + ((image * s.height + row) * s.width + column) * s.channels, 1, flip, zero_point, band + (u - task.begin) * pixel);
    }
    return;
  }
  const int64_t top = task.begin * s.stride_h - s.padding_h,
                bottom = (task.end - 1) * s.stride_h - s.padding_h + (s.kernel_h - 1) * s.dilation_h;
  // Columns of a copied row that are inside the image.
  const int64_t left = std::min(s.padding_w, columns_), right = std::clamp(s.width + s.padding_w, left, columns_);
  for (int64_t row = top; row <= bottom; ++row, band += columns_ * pixel) {
    if (row < 0 || row >= s.height) {
      place_padding(columns_, zero_point, band);
      continue;
    }
    place_padding(left, zero_point, band);
    place(x + ((task.image * s.height + row) * s.width + left - s.padding_w) * s.channels, right - left, flip, zero_point,
          band + left * pixel);
    place_padding(columns_ - right, zero_point, band + right * pixel);
  }
}

void ImplicitGemm::place(const uint8_t* x, int64_t pixels, uint8_t flip, int32_t zero_point, std::byte* to) const {
  const int64_t pixel = quads_ * kQuad;
  const bool whole = pixel == sizes_.channels, wide = path_ == Path::kExact;
  if (whole) {
    if (wide) return widen(x, flip, zero_point, reinterpret_cast<int16_t*>(to), pixels * pixel);
    return copy_bytes(x, flip, reinterpret_cast<uint8_t*>(to), pixels * pixel);
  }
  if (sizes_.channels == 3) {
    if (wide) return widen_rgb(x, flip, zero_point, reinterpret_cast<int16_t*>(to), pixels);
    return copy_rgb(x, flip, reinterpret_cast<uint8_t*>(to), pixels);
  }
  for (int64_t i = 0; i < pixels; ++i, x += sizes_.channels, to += pixel * value_bytes_) {
    if (wide) {
      auto* out = reinterpret_cast<int16_t*>(to);
      if (group_inputs_ >= 16) {
        widen(x, flip, zero_point, out, group_inputs_);
      } else {
        for (int64_t c = 0; c < group_inputs_; ++c) out[c] = static_cast<int16_t>((x[c] ^ flip) - zero_point);
      }
      for (int64_t c = group_inputs_; c < pixel; ++c) out[c] = 0;
    } else {
      auto* out = reinterpret_cast<uint8_t*>(to);
      for (int64_t c = 0; c < group_inputs_; ++c) out[c] = x[c] ^ flip;
      for (int64_t c = group_inputs_; c < pixel; ++c) out[c] = 0;  // meets weights of 0
    }
  }
}

void ImplicitGemm::place_padding(int64_t pixels, int32_t zero_point, std::byte* to) const {
  // The zero point is already subtracted from widened values.
  if (pixels > 0) std::memset(to, path_ == Path::kExact ? 0 : zero_point, static_cast<size_t>(pixels * quads_ * kQuad * value_bytes_));
}

}  // namespace galley::quantized
