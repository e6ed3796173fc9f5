#include "libcore/tasks/detection_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace galley {
namespace {

constexpr size_t kOverlaps = 10, kRecalls = 101, kAreas = 4, kMost = 100, kMostKeypoints = 20;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
/// Ranges of areas: all, small, medium, large. Both ends belong to a range.
constexpr std::array<std::array<double, 2>, kAreas> kAreaRanges{{{0, 1e10}, {0, 1024}, {1024, 9216}, {9216, 1e10}}};

/// numpy.linspace(first, last, count): its rounding decides at equality.
template <size_t kCount>
std::array<double, kCount> linspace(double first, double last) {
  std::array<double, kCount> values{};
  const double step = (last - first) / static_cast<double>(kCount - 1);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<double>(i) * step + first;
  values.back() = last;
  return values;
}

double box_overlap(const std::array<double, 4>& a, const ObjectBox& object) {
  const auto& b = object.box;
  const double width = std::min(a[0] + a[2], b[0] + b[2]) - std::max(a[0], b[0]);
  const double height = std::min(a[1] + a[3], b[1] + b[3]) - std::max(a[1], b[1]);
  if (width <= 0 || height <= 0) return 0;
  const double both = width * height;
  return both / (object.crowd ? a[2] * a[3] : a[2] * a[3] + b[2] * b[3] - both);
}

double mask_overlap(const RunLengths& detected, const ObjectBox& object) {
  const int64_t both = common_area(detected, object.mask);
  if (both == 0) return 0;
  const int64_t all = object.crowd ? detected.area() : detected.area() + object.mask.area() - both;
  return static_cast<double>(both) / static_cast<double>(all);
}

/// The similarity of key points. Without a visible point, points inside the box and as far around it as it is large are right.
double keypoint_similarity(const std::vector<double>& detected, const ObjectBox& object, const std::vector<double>& given_sigmas) {
  const size_t points = detected.size() / 2;
  const std::vector<double> sigmas = given_sigmas.empty() ? keypoint_sigmas(points) : given_sigmas;
  GALLEY_ASSERT(sigmas.size() == points);
  const std::vector<float>& given = object.keypoints;
  const auto visible = [&](size_t k) { return 3 * k + 2 < given.size() && given[3 * k + 2] > 0; };
  size_t count = 0;
  for (size_t k = 0; k < points; ++k) count += visible(k);
  const auto& [x, y, width, height] = object.box;
  double total = 0;
  for (size_t k = 0; k < points; ++k) {
    if (count > 0 && !visible(k)) continue;
    double dx = 0, dy = 0;
    if (count > 0) {
      dx = detected[2 * k] - static_cast<double>(given[3 * k]);
      dy = detected[2 * k + 1] - static_cast<double>(given[3 * k + 1]);
    } else {
      dx = std::max(0.0, x - width - detected[2 * k]) + std::max(0.0, detected[2 * k] - (x + 2 * width));
      dy = std::max(0.0, y - height - detected[2 * k + 1]) + std::max(0.0, detected[2 * k + 1] - (y + 2 * height));
    }
    const double variance = 4 * sigmas[k] * sigmas[k];
    total += std::exp(-((dx * dx + dy * dy) / variance / (object.area + std::numeric_limits<double>::epsilon()) / 2));
  }
  return total / static_cast<double>(count > 0 ? count : points);
}

double overlap(CocoSubject subject, const DetectedBox& detected, const ObjectBox& object, const std::vector<double>& sigmas) {
  switch (subject) {
    case CocoSubject::kBoxes: return box_overlap(detected.box, object);
    case CocoSubject::kMasks: return mask_overlap(detected.mask, object);
    case CocoSubject::kKeypoints: return keypoint_similarity(detected.keypoints, object, sigmas);
  }
  GALLEY_ASSERT(false);
}

/// The area of a detection: of its box, of its mask, or of the box around its key points.
double area_of(CocoSubject subject, const DetectedBox& detected) {
  if (subject == CocoSubject::kBoxes) return detected.box[2] * detected.box[3];
  if (subject == CocoSubject::kMasks) return static_cast<double>(detected.mask.area());
  std::array<double, 2> low{kInfinity, kInfinity}, high{-kInfinity, -kInfinity};
  for (size_t i = 0; i < detected.keypoints.size(); ++i) {
    low[i % 2] = std::min(low[i % 2], detected.keypoints[i]);
    high[i % 2] = std::max(high[i % 2], detected.keypoints[i]);
  }
  return (high[0] - low[0]) * (high[1] - low[1]);
}

/// What matching needs to know of detections.
struct Compared {
  std::vector<std::vector<double>> overlaps;  // of each detection with each object
  std::vector<double> areas;
};

/// Whether evaluation leaves the object out, whatever its area.
bool does_not_count(CocoSubject subject, const ObjectBox& object) {
  if (object.crowd) return true;
  if (subject != CocoSubject::kKeypoints) return false;
  for (size_t i = 2; i < object.keypoints.size(); i += 3)
    if (object.keypoints[i] > 0) return false;
  return true;
}

bool outside(double area, const std::array<double, 2>& range) { return area < range[0] || area > range[1]; }

/// The detections of a class in an image, best first, with a bit for each overlap.
struct Judged {
  std::vector<double> scores;
  std::vector<uint16_t> matched, ignored;
  int64_t objects = 0;  // that count
};

/// Matches the detections of one class with its objects in an image: each, best first, takes the object that it overlaps most.
Judged judge(CocoSubject subject, const std::vector<const ObjectBox*>& given, const std::vector<const DetectedBox*>& detections,
             const Compared& compared, const std::array<double, 2>& areas) {
  static const std::array<double, kOverlaps> kThresholds = linspace<kOverlaps>(0.5, 0.95);
  std::vector<size_t> objects(given.size());  // those that count come first
  std::iota(objects.begin(), objects.end(), size_t{0});
  const auto is_ignored = [&](size_t g) { return does_not_count(subject, *given[g]) || outside(given[g]->area, areas); };
  std::stable_partition(objects.begin(), objects.end(), [&](size_t g) { return !is_ignored(g); });
  std::vector<bool> ignored;
  for (const size_t g : objects) ignored.push_back(is_ignored(g));
  Judged judged;
  judged.objects = std::count(ignored.begin(), ignored.end(), false);
  std::vector<uint16_t> taken(objects.size(), 0);
  for (size_t d = 0; d < detections.size(); ++d) {
    const DetectedBox* detection = detections[d];
    uint16_t found = 0, left_out = 0;
    for (size_t t = 0; t < kOverlaps; ++t) {
      const auto bit = static_cast<uint16_t>(1u << t);
      double least = std::min(kThresholds[t], 1 - 1e-10);
      size_t best = objects.size();
      for (size_t g = 0; g < objects.size(); ++g) {
        if ((taken[g] & bit) != 0 && !given[objects[g]]->crowd) continue;
        if (best < objects.size() && !ignored[best] && ignored[g]) break;
        const double value = compared.overlaps[d][objects[g]];
        if (value < least) continue;
        least = value;
        best = g;
      }
      if (best < objects.size()) {
        found |= bit;
        taken[best] |= bit;
        if (ignored[best]) left_out |= bit;
      } else if (outside(compared.areas[d], areas)) {
        left_out |= bit;
      }
    }
    judged.scores.push_back(detection->score);
    judged.matched.push_back(found);
    judged.ignored.push_back(left_out);
  }
  return judged;
}

/// Precision at 101 recalls, and the last recall, for each overlap. False if no object counts.
struct Curve {
  std::array<std::array<double, kRecalls>, kOverlaps> precision{};
  std::array<double, kOverlaps> recall{};
};

bool accumulate(const std::vector<Judged>& images, size_t most, Curve& curve) {
  static const std::array<double, kRecalls> kAt = linspace<kRecalls>(0, 1);
  std::vector<double> scores;
  std::vector<uint16_t> matched, ignored;
  int64_t objects = 0;
  for (const Judged& image : images) {
    objects += image.objects;
    const auto count = static_cast<std::ptrdiff_t>(std::min(most, image.scores.size()));
    scores.insert(scores.end(), image.scores.begin(), image.scores.begin() + count);
    matched.insert(matched.end(), image.matched.begin(), image.matched.begin() + count);
    ignored.insert(ignored.end(), image.ignored.begin(), image.ignored.begin() + count);
  }
  if (objects == 0) return false;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<double> recall(order.size()), precision(order.size());
  for (size_t t = 0; t < kOverlaps; ++t) {
    double right = 0, wrong = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const bool counts = (ignored[order[i]] >> t & 1) == 0, match = (matched[order[i]] >> t & 1) != 0;
      right += counts && match;
      wrong += counts && !match;
      recall[i] = right / static_cast<double>(objects);
      precision[i] = right / (wrong + right + std::numeric_limits<double>::epsilon());
    }
    curve.recall[t] = recall.empty() ? 0 : recall.back();
    for (size_t i = precision.size(); i > 1; --i) precision[i - 2] = std::max(precision[i - 2], precision[i - 1]);
    for (size_t r = 0; r < kRecalls; ++r) {
      const auto at = std::lower_bound(recall.begin(), recall.end(), kAt[r]);
      curve.precision[t][r] = at == recall.end() ? 0 : precision[static_cast<size_t>(at - recall.begin())];
    }
  }
  return true;
}

/// A mean over classes, and over overlaps or recalls.
struct Mean {
  double total = 0;
  int64_t count = 0;
  void add(double value) { total += value, ++count; }
  double value() const { return count == 0 ? kNone : total / static_cast<double>(count); }
};

double mean_precision(const Curve& curve, size_t first, size_t last) {
  Mean mean;
  for (size_t t = first; t < last; ++t)
    for (const double value : curve.precision[t]) mean.add(value);
  return mean.value();
}

double mean_recall(const Curve& curve) {
  return std::accumulate(curve.recall.begin(), curve.recall.end(), 0.0) / static_cast<double>(kOverlaps);
}

}  // namespace

std::vector<double> keypoint_sigmas(size_t count) {
  static const std::vector<double> kPerson{0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072,
                                           0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089, 0.089};
  return count == kPerson.size() ? kPerson : std::vector<double>(count, 1 / static_cast<double>(std::max<size_t>(1, count)));
}

void CocoEvaluation::add(int64_t image_id, std::vector<ObjectBox> objects, std::vector<DetectedBox> detections) {
  std::stable_sort(detections.begin(), detections.end(), [](const DetectedBox& a, const DetectedBox& b) { return a.score > b.score; });
  for (ObjectBox& object : objects) {  // keeps what is compared
    if (subject_ != CocoSubject::kMasks) object.mask = {};
    if (subject_ != CocoSubject::kKeypoints) object.keypoints = {};
  }
  for (DetectedBox& detection : detections) {
    if (subject_ != CocoSubject::kMasks) detection.mask = {};
    if (subject_ != CocoSubject::kKeypoints) detection.keypoints = {};
  }
  GALLEY_ASSERT(images_.emplace(image_id, Image{std::move(objects), std::move(detections)}).second, "image ", image_id, " twice");
}

namespace {

/// Detections of a class in an image that count.
size_t most_of(CocoSubject subject) { return subject == CocoSubject::kKeypoints ? kMostKeypoints : kMost; }

/// Objects and detections by label, of each image in order.
template <class Images, class Visit>
void visit_classes(CocoSubject subject, const std::vector<double>& sigmas, const Images& images, const Visit& visit) {
  const size_t most = most_of(subject);
  struct Parts {
    std::vector<const ObjectBox*> objects;
    std::vector<const DetectedBox*> detections;
  };
  std::map<int64_t, std::vector<Parts>> classes;  // by label: a part for each image with objects or detections
  for (const auto& [id, image] : images) {
    std::map<int64_t, Parts> parts;
    for (const ObjectBox& object : image.objects) parts[object.label].objects.push_back(&object);
    for (const DetectedBox& detection : image.detections) {
      auto& list = parts[detection.label].detections;
      if (list.size() < most) list.push_back(&detection);
    }
    for (auto& [label, part] : parts) classes[label].push_back(std::move(part));
  }
  for (const auto& [label, parts] : classes) {
    int64_t objects = 0;
    for (const Parts& part : parts) objects += std::ssize(part.objects);
    if (objects == 0) continue;
    std::array<std::vector<Judged>, kAreas> judged;
    for (const Parts& part : parts) {
      Compared compared;
      for (const DetectedBox* detection : part.detections) {
        compared.areas.push_back(area_of(subject, *detection));
        std::vector<double>& row = compared.overlaps.emplace_back();
        for (const ObjectBox* object : part.objects) row.push_back(overlap(subject, *detection, *object, sigmas));
      }
      for (size_t a = 0; a < kAreas; ++a) judged[a].push_back(judge(subject, part.objects, part.detections, compared, kAreaRanges[a]));
    }
    visit(label, judged);
  }
}

}  // namespace

CocoFigures CocoEvaluation::figures() const {
  Mean map, map50, map75, ar1, ar10, ar50, ar75;
  std::array<Mean, kAreas> map_of, ar_of;
  visit_classes(subject_, sigmas_, images_, [&](int64_t, const std::array<std::vector<Judged>, kAreas>& judged) {
    Curve curve;
    for (size_t a = 0; a < kAreas; ++a) {
      if (!accumulate(judged[a], kMost, curve)) continue;
      map_of[a].add(mean_precision(curve, 0, kOverlaps));
      ar_of[a].add(mean_recall(curve));
      if (a > 0) continue;
      map50.add(mean_precision(curve, 0, 1));
      map75.add(mean_precision(curve, 5, 6));
      ar50.add(curve.recall[0]);
      ar75.add(curve.recall[5]);
    }
    if (accumulate(judged[0], 1, curve)) ar1.add(mean_recall(curve));
    if (accumulate(judged[0], 10, curve)) ar10.add(mean_recall(curve));
  });
  return {.map = map_of[0].value(),
          .map50 = map50.value(),
          .map75 = map75.value(),
          .map_small = map_of[1].value(),
          .map_medium = map_of[2].value(),
          .map_large = map_of[3].value(),
          .ar1 = ar1.value(),
          .ar10 = ar10.value(),
          .ar100 = ar_of[0].value(),
          .ar_small = ar_of[1].value(),
          .ar_medium = ar_of[2].value(),
          .ar_large = ar_of[3].value(),
          .ar50 = ar50.value(),
          .ar75 = ar75.value()};
}

std::vector<CocoEvaluation::OfClass> CocoEvaluation::classes() const {
  std::vector<OfClass> list;
  visit_classes(subject_, sigmas_, images_, [&](int64_t label, const std::array<std::vector<Judged>, kAreas>& judged) {
    Curve curve;
    if (!accumulate(judged[0], kMost, curve)) return;
    int64_t objects = 0;
    for (const Judged& image : judged[0]) objects += image.objects;
    list.push_back({.label = label, .objects = objects, .map = mean_precision(curve, 0, kOverlaps), .map50 = mean_precision(curve, 0, 1)});
  });
  return list;
}

void VocEvaluation::add(const std::vector<ObjectBox>& objects, const std::vector<DetectedBox>& detections) {
  std::vector<bool> taken(objects.size(), false);
  for (const ObjectBox& object : objects) classes_[object.label].objects += !object.difficult;
  std::vector<const DetectedBox*> sorted;
  for (const DetectedBox& detection : detections) sorted.push_back(&detection);
  std::stable_sort(sorted.begin(), sorted.end(), [](const DetectedBox* a, const DetectedBox* b) { return a->score > b->score; });
  for (const DetectedBox* detection : sorted) {
    const auto& a = detection->box;
    double most = 0;
    size_t best = objects.size();
    for (size_t g = 0; g < objects.size(); ++g) {
      if (objects[g].label != detection->label) continue;
      const auto& b = objects[g].box;
      const double width = std::min(a[0] + a[2], b[0] + b[2]) - std::max(a[0], b[0]) + 1;
      const double height = std::min(a[1] + a[3], b[1] + b[3]) - std::max(a[1], b[1]) + 1;
      if (width <= 0 || height <= 0) continue;
      const double both = width * height;
      const double value = both / ((a[2] + 1) * (a[3] + 1) + (b[2] + 1) * (b[3] + 1) - both);
      if (value > most) {
        most = value;
        best = g;
      }
    }
    const bool hit = most > 0.5;
    if (hit && objects[best].difficult) continue;
    classes_[detection->label].found.push_back({detection->score, hit && !taken[best]});
    if (hit) taken[best] = true;
  }
}

double VocEvaluation::map(bool eleven_points) const {
  Mean mean;
  for (const auto& [label, kind] : classes_) {
    if (kind.objects == 0) continue;
    std::vector<Found> found = kind.found;
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.score > b.score; });
    std::vector<double> recall, precision;
    double right = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      right += found[i].right;
      recall.push_back(right / static_cast<double>(kind.objects));
      precision.push_back(right / static_cast<double>(i + 1));
    }
    for (size_t i = precision.size(); i > 1; --i) precision[i - 2] = std::max(precision[i - 2], precision[i - 1]);
    double area = 0;
    for (int point = 0; point <= 10 && eleven_points; ++point) {
      const auto at = std::lower_bound(recall.begin(), recall.end(), point * 0.1);
      area += at == recall.end() ? 0 : precision[static_cast<size_t>(at - recall.begin())] / 11;
    }
    for (size_t i = 0; i < recall.size() && !eleven_points; ++i) area += (recall[i] - (i == 0 ? 0 : recall[i - 1])) * precision[i];
    mean.add(area);
  }
  return mean.value();
}

}  // namespace galley
