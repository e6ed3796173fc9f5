// Operators on boxes, by the kernels of kernels/boxes.h.

#include <algorithm>

#include "libcore/backends/cuda/kernels/vision_calls.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/detection.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/roi_pool.h"

namespace galley {
namespace {

/// Boxes, scores and values are f32, and all arrays contiguous.
Support supports(const KernelQuery& query) {
  for (const auto* types : {&query.context.inputs, &query.context.outputs}) {
    for (const TensorType* type : *types)
      if (type != nullptr && is_floating(type->dtype) && type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
  }
  return only_contiguous(query);
}

class Suppression : public PreparedKernel {
 public:
  explicit Suppression(const KernelQuery& query) {
    const auto& attrs = query.attrs<NmsAttrs>();
    const Shape& scores = query.in(1).shape;
    call_.samples = scores[0];
    call_.rows = scores[1];
    call_.classes = scores[2];
    call_.boxes_per_row = query.in(0).shape.rank() == 4 ? call_.classes : 1;
    call_.most = attrs.max_output;
    call_.per_class = attrs.per_class;
    call_.iou_threshold = static_cast<float>(attrs.iou_threshold);
    call_.score_threshold = static_cast<float>(attrs.score_threshold);
    call_.padded = 1;
    while (call_.padded < call_.rows * call_.classes) call_.padded *= 2;
  }
  int64_t scratch_bytes() const override { return call_.samples * (8 * call_.padded + 4 * call_.classes); }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::NmsCall call = call_;
    call.boxes = args.in<float>(0);
    call.scores = args.in<float>(1);
    call.count = args.in<int64_t>(2);
    call.index = args.out<int64_t>(0);
    call.chosen = args.out<int64_t>(1);
    call.keys = static_cast<uint64_t*>(args.scratch);
    call.visited = reinterpret_cast<int*>(call.keys + call.samples * call.padded);
    cuda_launch(stream, "nms_samples", call.samples, call);
  }

 private:
  device::NmsCall call_{};
};
Support supports_nms(const KernelQuery& query) {
  const Shape& scores = query.in(1).shape;
  if (scores[1] * scores[2] >= int64_t{1} << 31) return Support::no("2^31 candidates or more");
  return supports(query);
}

class GridBoxes : public PreparedKernel {
 public:
  explicit GridBoxes(const KernelQuery& query) {
    const auto& attrs = query.attrs<GridBoxesAttrs>();
    call_.boxes = query.out(0).shape[0];
    call_.levels = static_cast<int>(attrs.per_cell.size());
    for (size_t i = 0; i < attrs.per_cell.size(); ++i) {
      call_.rows[i] = attrs.grid[2 * i];
      call_.columns[i] = attrs.grid[2 * i + 1];
      call_.per_cell[i] = attrs.per_cell[i];
      call_.row_strides[i] = attrs.strides[2 * i];
      call_.column_strides[i] = attrs.strides[2 * i + 1];
    }
    std::copy(attrs.corners.begin(), attrs.corners.end(), call_.corners);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GridBoxesCall call = call_;
    call.to = args.out<float>(0);
    launch_elements(stream, "grid_boxes_cells", call.boxes, call);
  }

 private:
  device::GridBoxesCall call_{};
};
Support supports_grid_boxes(const KernelQuery& query) {
  const auto& attrs = query.attrs<GridBoxesAttrs>();
  if (attrs.per_cell.size() > device::kMostLevels) return Support::no(cat("more than ", device::kMostLevels, " levels"));
  if (attrs.corners.size() > 4 * device::kMostCellBoxes) return Support::no(cat("more than ", device::kMostCellBoxes, " boxes of cells"));
  return supports(query);
}

/// match_boxes and match_centers.
template <bool kCenters>
class Match : public PreparedKernel {
 public:
  explicit Match(const KernelQuery& query) {
    call_.shared = query.in(0).shape.rank() == 2;
    call_.samples = query.out(1).shape[0];
    call_.count = query.out(1).shape[1];
    call_.objects = query.in(1).shape[0];
    if constexpr (kCenters) {
      const auto& attrs = query.attrs<MatchCentersAttrs>();
      call_.radius = static_cast<float>(attrs.radius);
      call_.first = attrs.first;
      call_.last = attrs.last;
    } else {
      const auto& attrs = query.attrs<MatchBoxesAttrs>();
      constexpr device::BestMatch kBest[] = {device::kNoBest, device::kLowQuality, device::kEveryBox};
      call_.best = kBest[static_cast<int>(attrs.best)];
      call_.high = static_cast<float>(attrs.high);
      call_.low = static_cast<float>(attrs.low);
    }
  }
  int64_t scratch_bytes() const override { return call_.best == device::kNoBest ? 0 : 12 * call_.objects; }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::MatchCall call = call_;
    call.anchors = args.in<float>(0);
    call.boxes = args.in<float>(1);
    call.labels = args.in<int64_t>(2);
    call.offsets = args.in<int64_t>(3);
    call.to = args.out<float>(0);
    call.labels_to = args.out<int64_t>(1);
    if (args.scratch != nullptr) {
      call.best_anchor = static_cast<int64_t*>(args.scratch);
      call.best_share = reinterpret_cast<float*>(call.best_anchor + call.objects);
    }
    if (call.best != device::kNoBest) cuda_launch(stream, "best_anchors", std::min<int64_t>(call.objects, 65535), call);
    launch_elements(stream, kCenters ? "match_anchor_centers" : "match_anchors", call.samples * call.count, call);
  }

 private:
  device::MatchCall call_{};
};

class TopMask : public PreparedKernel {
 public:
  explicit TopMask(const KernelQuery& query) {
    call_.samples = query.in(0).shape[0];
    call_.rows = query.in(0).shape[1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::TopMaskCall call = call_;
    call.values = args.in<float>(0);
    call.count = args.in<float>(1);
    call.to = args.out<uint8_t>(0);
    launch_elements(stream, "top_mask_rows", call.samples * call.rows, call);
  }

 private:
  device::TopMaskCall call_{};
};

class TakeBoxes : public PreparedKernel {
 public:
  explicit TakeBoxes(const KernelQuery& query) {
    const Shape& scores = query.in(1).shape;
    call_.samples = scores[0];
    call_.rows = scores[1];
    call_.classes = scores[2];
    call_.chosen = query.in(2).shape[1];
    call_.boxes_per_row = query.in(0).shape.rank() == 4 ? call_.classes : 1;
    if (query.in(0).shape.rank() == 4 && call_.classes == 1) call_.boxes_per_row = 1;  // the same place
    call_.first_label = query.attrs<TakeBoxesAttrs>().first_label;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::TakeBoxesCall call = call_;
    call.boxes = args.in<float>(0);
    call.scores = args.in<float>(1);
    call.index = args.in<int64_t>(2);
    call.count = args.in<int64_t>(3);
    call.boxes_to = args.out<float>(0);
    call.scores_to = args.out<float>(1);
    call.labels_to = args.out<int64_t>(2);
    launch_elements(stream, "take_box_rows", call.samples * call.chosen, call);
  }

 private:
  device::TakeBoxesCall call_{};
};

class AppendObjects : public PreparedKernel {
 public:
  explicit AppendObjects(const KernelQuery& query) {
    call_.samples = query.in(0).shape[0];
    call_.rows = query.in(0).shape[1];
    call_.objects = query.out(0).shape[1] - call_.rows;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::AppendObjectsCall call = call_;
    call.boxes = args.in<float>(0);
    call.count = args.in<int64_t>(1);
    call.object_boxes = args.in<float>(2);
    call.offsets = args.in<int64_t>(3);
    call.to = args.out<float>(0);
    call.count_to = args.out<int64_t>(1);
    launch_elements(stream, "append_object_rows", call.samples * (call.rows + call.objects), call);
  }

 private:
  device::AppendObjectsCall call_{};
};

class SampleLabels : public PreparedKernel {
 public:
  explicit SampleLabels(const KernelQuery& query) {
    const auto& attrs = query.attrs<SampleLabelsAttrs>();
    call_.samples = query.in(0).shape[0];
    call_.rows = query.in(0).shape[1];
    call_.random = attrs.random;
    call_.size = attrs.size;
    call_.positive = static_cast<int64_t>(static_cast<double>(attrs.size) * attrs.positive_fraction);
    call_.stream = attrs.stream;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::SampleLabelsCall call = call_;
    call.labels = args.in<int64_t>(0);
    call.count = args.in<int64_t>(1);
    call.rng = args.in<int64_t>(2);
    call.to = args.out<uint8_t>(0);
    stream.fill(call.to, 0, call.samples * call.rows);
    cuda_launch(stream, "sample_label_rows", call.samples, call);
  }

 private:
  device::SampleLabelsCall call_{};
};

class TrueRows : public PreparedKernel {
 public:
  explicit TrueRows(const KernelQuery& query) {
    call_.samples = query.in(0).shape[0];
    call_.rows = query.in(0).shape[1];
    call_.size = query.out(0).shape[1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::TrueRowsCall call = call_;
    call.mask = args.in<uint8_t>(0);
    call.index = args.out<int64_t>(0);
    call.found = args.out<int64_t>(1);
    cuda_launch(stream, "true_row_places", call.samples, call);
  }

 private:
  device::TrueRowsCall call_{};
};

class RoiPooling : public PreparedKernel {
 public:
  explicit RoiPooling(const KernelQuery& query) {
    const TensorType& x = query.in(0);
    const Shape &y = query.out(0).shape, steps = x.format.strides(x.shape);
    call_.samples = y[0];
    call_.rows = y[1];
    call_.channels = y[2];
    for (int axis = 0; axis < 2; ++axis) {
      call_.bins[axis] = y[3 + axis];
      call_.size[axis] = x.shape[2 + axis];
    }
    for (int d = 0; d < 4; ++d) call_.steps[d] = steps[d];
    call_.scale = static_cast<float>(query.attrs<RoiPoolAttrs>().spatial_scale);
    elements_ = y.elements();
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::RoiPoolCall call = call_;
    call.x = args.in<float>(0);
    call.boxes = args.in<float>(1);
    call.y = args.out<float>(0);
    call.index = args.out<int64_t>(1);
    launch_elements(stream, "roi_pool_bins", elements_, call);
  }

 private:
  device::RoiPoolCall call_{};
  int64_t elements_ = 0;
};

/// What mask_targets and keypoint_cells read of regions [N,R,4].
device::InstanceCall regions_call(const Shape& boxes, int64_t objects, int64_t size) {
  device::InstanceCall call{};
  call.regions = boxes[0] * boxes[1];
  call.rows = boxes[1];
  call.objects = objects;
  call.size = size;
  return call;
}

class MaskTargets : public PreparedKernel {
 public:
  explicit MaskTargets(const KernelQuery& query)
      : call_(regions_call(query.in(1).shape, query.in(0).shape[0], query.attrs<MaskTargetsAttrs>().size)) {
    call_.height = query.in(0).shape[1];
    call_.width = query.in(0).shape[2];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::InstanceCall call = call_;
    call.masks = args.in<uint8_t>(0);
    call.boxes = args.in<float>(1);
    call.object = args.in<int64_t>(2);
    call.to = args.out<float>(0);
    launch_elements(stream, "mask_target_cells", call.regions * call.size * call.size, call);
  }

 private:
  device::InstanceCall call_;
};

class KeypointCells : public PreparedKernel {
 public:
  explicit KeypointCells(const KernelQuery& query)
      : call_(regions_call(query.in(1).shape, query.in(0).shape[0], query.attrs<KeypointCellsAttrs>().size)) {
    call_.points = query.in(0).shape[1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::InstanceCall call = call_;
    call.keypoints = args.in<float>(0);
    call.boxes = args.in<float>(1);
    call.object = args.in<int64_t>(2);
    call.cells = args.out<int64_t>(0);
    launch_elements(stream, "keypoint_cell_points", call.regions * call.points, call);
  }

 private:
  device::InstanceCall call_;
};

class LocateKeypoints : public PreparedKernel {
 public:
  explicit LocateKeypoints(const KernelQuery& query) : call_(regions_call(query.in(1).shape, 0, 0)) {
    const Shape& heat = query.in(0).shape;
    call_.points = heat[2];
    call_.height = heat[3];
    call_.width = heat[4];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::InstanceCall call = call_;
    call.heat = args.in<float>(0);
    call.boxes = args.in<float>(1);
    call.count = args.in<int64_t>(2);
    call.to = args.out<float>(0);
    const int64_t maps = call.regions * call.points;
    if (maps > 0) cuda_launch(stream, "locate_keypoint_maps", std::min<int64_t>(maps, 65535), call);
  }

 private:
  device::InstanceCall call_;
};

constexpr Kernel kKernels[] = {
    {"nms", "sorted", supports_nms, prepare_cuda<Suppression>},
    {"grid_boxes", "cells", supports_grid_boxes, prepare_cuda<GridBoxes>},
    {"match_boxes", "anchors", supports, prepare_cuda<Match<false>>},
    {"match_centers", "anchors", supports, prepare_cuda<Match<true>>},
    {"top_mask", "ranks", supports, prepare_cuda<TopMask>},
    {"take_boxes", "rows", supports, prepare_cuda<TakeBoxes>},
    {"append_objects", "rows", supports, prepare_cuda<AppendObjects>},
    {"sample_labels", "smallest", supports, prepare_cuda<SampleLabels>},
    {"true_rows", "rows", supports, prepare_cuda<TrueRows>},
    {"roi_pool", "bins", supports, prepare_cuda<RoiPooling>},
    {"mask_targets", "cells", supports, prepare_cuda<MaskTargets>},
    {"keypoint_cells", "points", supports, prepare_cuda<KeypointCells>},
    {"locate_keypoints", "maps", supports, prepare_cuda<LocateKeypoints>},
};

}  // namespace

std::span<const Kernel> cuda_boxes() { return kKernels; }

}  // namespace galley
