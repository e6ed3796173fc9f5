#pragma once
// Parts of detectors on feature pyramids: shared layers, the pyramid, anchors, boxes' overlap as a loss.

#include <vector>

#include "libcore/nn/detection.h"
#include "libcore/nn/zoo.h"
#include "libcore/nn/zoo_backbones.h"
#include "libcore/ops/conv.h"

namespace galley {

/// Options of a detector's backbone.
struct BackboneParams {
  bool frozen_norm = false;
  double frozen_eps = 1e-5;
  std::optional<int64_t> trainable_backbone_layers = {};
  void options(OptionVisitor& v);
  BackboneOptions backbone() const;
};

/// A convolution that is applied several times: one module with its parameters.
class SharedConv {
 public:
  SharedConv(Builder& b, std::string_view name, int64_t in_channels, const Conv2dOptions& options, const Init& weight, const Init& bias);
  Value operator()(Value x) const;
  /// Of the first count[n] images of each sample (conv2d_rows).
  Value first_images(Value x, Value count, Activation activation) const;

 private:
  Conv2dAttrs attrs() const;
  Value weight_, bias_;
  Conv2dOptions options_;
};

/// Levels of a pyramid beyond the backbone's.
enum class ExtraLevels {
  kPool,    ///< One, every second pixel of the last.
  kFromP5,  ///< Two, by convolutions with stride 2 from the last level of the pyramid ...
  kFromC5,  ///< ... or from the backbone's last features.
};

/// A feature pyramid (Lin et al. 2017, FPN), "fpn" in the builder's scope: from features of falling resolution to as many of 256 channels,
/// and the extra ones. `norm`: its convolutions have batch norms instead of biases.
std::vector<Value> feature_pyramid(Builder& b, const std::vector<Value>& features, ExtraLevels extra, bool norm = false);
/// The pyramid over stages of ResNet-50 (0 is layer1), "backbone" in the builder's scope.
std::vector<Value> resnet50_pyramid(Builder& b, const BackboneParams& params, const std::vector<size_t>& stages, ExtraLevels extra, Value x,
                                    bool norm = false);
/// The pyramid over the last two stages of MobileNetV3-Large.
std::vector<Value> mobilenet_v3_large_pyramid(Builder& b, const BackboneParams& params, Value x);

/// Anchors of a pyramid: in each cell boxes of several sizes and ratios height / width, centered at the cell's first pixel. Cells are as
/// far apart as the image's size divided by the grid's, rounded down. As torchvision's AnchorGenerator.
struct AnchorRule {
  std::vector<std::vector<double>> sizes;  // of each level
  std::vector<double> ratios;
  int64_t per_cell() const { return std::ssize(sizes[0]) * std::ssize(ratios); }
  /// The anchors of a level, [A,4], of an image [N,C,H,W].
  Value boxes(Graph& graph, const Shape& image, Value feature, size_t level) const;
};

/// The anchors of a pyramid. Images that are smaller than their array have anchors of their own size.
struct Anchors {
  /// `strides`: pixels of the image for one of each level; powers of two.
  Anchors(Graph& graph, const AnchorRule& rule, const ImageSize& image, const std::vector<Value>& features,
          const std::vector<int64_t>& strides);
  std::vector<Value> boxes;   // of each level [A,4], or [N,A,4]
  std::vector<Value> inside;  // of each level bool [N,A]: anchors of the image's own cells; empty: all are
  std::vector<Value> grids;   // of each level i64 [N,2]: rows and columns of these cells
  /// All levels in one, for matching: other anchors are far away from all objects.
  Value joined() const;
  /// Labels [N,A] of all anchors: -1 for those of other cells.
  Value own(Value labels) const;
  /// Logits [N,C,H,W] of a level, where those of other cells are kNever.
  Value logits(size_t level, Value x) const;
  static constexpr double kNever = -10000;
};

/// 1 - generalized intersection over union (Rezatofighi et al. 2019) of boxes [..,4], as [..,1].
Value giou_loss(Value boxes, Value target);

/// How anchors or proposals are matched with objects: from an overlap of `object` on with one, below `background` with none. Throws Error
/// (kRecipe) that names the parameters PREFIXfg_iou_thresh and PREFIXbg_iou_thresh if `background` is higher.
MatchBoxesAttrs matching(std::string_view prefix, double object, double background);

/// A concatenation of values along an axis.
Value join(const std::vector<Value>& values, int64_t axis);
/// The scores [N,R] in the columns of their labels, i64 [N,R] in 0..classes-1: [N,R,classes], -1 in the other columns.
Value in_columns(Value scores, Value labels, int64_t classes);

/// RetinaNet and FCOS, for the table of models.
std::vector<ModelEntry> retinanet_models();
/// Faster R-CNN.
std::vector<ModelEntry> rcnn_models();

}  // namespace galley
