#pragma once
// Average precision of detections: COCO's rule, equal to pycocotools, and Pascal VOC's.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libcore/data/objects.h"

namespace galley {

/// A detected object in pixels of the image as the file has it.
struct DetectedBox {
  std::array<double, 4> box{};  ///< left, top, width, height.
  double score = 0;
  int64_t label = 0;
  RunLengths mask = {};                ///< Of a detector of masks.
  std::vector<double> keypoints = {};  ///< Of a detector of key points: x and y of each.
};

/// What COCO's evaluation compares. Masks: their intersection over union, and the area of a detection is that of its mask. Key points: the
/// similarity of visible points, by their distances relative to the object's size and a sigma for each point (keypoint_sigmas); objects
/// without a visible point do not count, and 20 detections of a class in an image do.
enum class CocoSubject { kBoxes, kMasks, kKeypoints };

/// The usual sigmas of key points, standard deviations of labels relative to the object's size: COCO's for its 17 points of persons, else
/// 1 / count.
std::vector<double> keypoint_sigmas(size_t count);

/// COCO's figures in 0..1; NaN where no object counts (pycocotools: -1).
struct CocoFigures {
  double map = 0, map50 = 0, map75 = 0, map_small = 0, map_medium = 0, map_large = 0;
  double ar1 = 0, ar10 = 0, ar100 = 0, ar_small = 0, ar_medium = 0, ar_large = 0;  ///< Of key points, ar100 is of 20 detections.
  double ar50 = 0, ar75 = 0;                                                       ///< Recalls as map50 and map75.
};

/// COCO's evaluation (Lin et al. 2014): average precision over intersections over union of 0.5, 0.55 .. 0.95, at 101 recalls, of
/// the best 100 detections of each class in an image. Detections that match a crowd, or an object outside the range of areas, do not count.
class CocoEvaluation {
 public:
  /// `sigmas`: of each key point; empty: the usual ones.
  explicit CocoEvaluation(CocoSubject subject = CocoSubject::kBoxes, std::vector<double> sigmas = {})
      : subject_(subject), sigmas_(std::move(sigmas)) {}
  /// Adds an image; each id once.
  void add(int64_t image_id, std::vector<ObjectBox> objects, std::vector<DetectedBox> detections);
  CocoFigures figures() const;
  /// Of each label that has objects: average precision over all overlaps, and at 0.5.
  struct OfClass {
    int64_t label = 0, objects = 0;
    double map = 0, map50 = 0;
  };
  std::vector<OfClass> classes() const;

 private:
  struct Image {
    std::vector<ObjectBox> objects;
    std::vector<DetectedBox> detections;
  };
  CocoSubject subject_;
  std::vector<double> sigmas_;
  std::map<int64_t, Image> images_;  // in the order of ids
};

/// Average precision by Pascal VOC's development kit, in 0..1: a detection is right if it overlaps an object that no better one has found
/// by more than 0.5; boxes include both of their ends, so that sides are one pixel longer. Difficult objects do not count.
class VocEvaluation {
 public:
  void add(const std::vector<ObjectBox>& objects, const std::vector<DetectedBox>& detections);
  /// The mean over classes with objects: `eleven_points` is the rule of 2007 (mean of the precision at recalls 0, 0.1 .. 1), otherwise that
  /// from 2010 on (area under the curve). NaN without objects.
  double map(bool eleven_points) const;

 private:
  struct Found {
    double score;
    bool right;
  };
  struct Class {
    int64_t objects = 0;
    std::vector<Found> found;
  };
  std::map<int64_t, Class> classes_;
};

}  // namespace galley
