// What detectors compute besides layers: boxes on grids, matches with objects, samples of rows, chosen boxes.

#include "libcore/ops/detection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

void grid_boxes_ref(RefCall& call) {
  const auto& a = call.attrs<GridBoxesAttrs>();
  size_t first = 0;  // box of the level's cells
  int64_t out = 0;
  for (size_t level = 0; level < a.per_cell.size(); ++level) {
    const int64_t rows = a.grid[2 * level], columns = a.grid[2 * level + 1];
    for (int64_t cell = 0; cell < rows * columns; ++cell) {
      const double y = static_cast<double>(cell / columns) * a.strides[2 * level];
      const double x = static_cast<double>(cell % columns) * a.strides[2 * level + 1];
      for (size_t i = 4 * first; i < 4 * (first + static_cast<size_t>(a.per_cell[level])); ++i)
        call.out()[out++] = a.corners[i] + (i % 2 == 0 ? x : y);
    }
    first += static_cast<size_t>(a.per_cell[level]);
  }
}

/// Intersection over union, in the order of torchvision's operations; 0 for two boxes without area.
double overlap(const double* a, const double* b) {
  const double width = std::max(std::min(a[2], b[2]) - std::max(a[0], b[0]), 0.0);
  const double height = std::max(std::min(a[3], b[3]) - std::max(a[1], b[1]), 0.0);
  const double both = width * height, all = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both;
  return all > 0 ? both / all : 0;
}

void match_boxes_ref(RefCall& call) {
  const auto& attrs = call.attrs<MatchBoxesAttrs>();
  const RefArray &anchors = call.in(0), &boxes = call.in(1), &labels = call.in(2), &offsets = call.in(3);
  const int64_t samples = call.out(1).shape[0], count = call.out(1).shape[1];
  const bool shared = anchors.shape.rank() == 2;
  for (int64_t n = 0; n < samples; ++n) {
    const auto first = static_cast<int64_t>(offsets[n]), last = static_cast<int64_t>(offsets[n + 1]);
    const double* anchor = anchors.v.data() + (shared ? 0 : n * count * 4);
    std::vector<int64_t> match(static_cast<size_t>(count), -1);  // the object, -1 background, -2 neither
    std::vector<std::vector<double>> iou;                        // of each object with each anchor
    for (int64_t g = first; g < last; ++g) {
      std::vector<double>& row = iou.emplace_back();
      for (int64_t a = 0; a < count; ++a) row.push_back(overlap(boxes.v.data() + g * 4, anchor + a * 4));
    }
    const auto own = [&](size_t a) {  // the object that the anchor overlaps most
      size_t best = 0;
      for (size_t g = 1; g < iou.size(); ++g) best = iou[g][a] > iou[best][a] ? g : best;
      return best;
    };
    for (size_t a = 0; a < match.size() && !iou.empty(); ++a) {
      const size_t best = own(a);
      const double value = iou[best][a];
      match[a] = value >= attrs.high ? static_cast<int64_t>(best) : value < attrs.low ? -1 : -2;
    }
    for (size_t g = 0; g < iou.size(); ++g) {
      const auto best = std::max_element(iou[g].begin(), iou[g].end());
      if (best == iou[g].end()) break;
      if (attrs.best == MatchBest::kEveryBox) match[static_cast<size_t>(best - iou[g].begin())] = static_cast<int64_t>(g);
      for (size_t a = 0; a < match.size() && attrs.best == MatchBest::kLowQuality; ++a)
        if (iou[g][a] == *best) match[a] = static_cast<int64_t>(own(a));
    }
    for (int64_t a = 0; a < count; ++a) {
      const int64_t found = match[static_cast<size_t>(a)];
      for (int64_t i = 0; i < 4; ++i)
        call.out(0)[(n * count + a) * 4 + i] = found >= 0 ? boxes[(first + found) * 4 + i] : anchor[a * 4 + i];
      call.out(1)[n * count + a] = found >= 0 ? labels[first + found] : found == -1 ? 0 : -1;
    }
  }
}

void match_centers_ref(RefCall& call) {
  const auto& attrs = call.attrs<MatchCentersAttrs>();
  const RefArray &anchors = call.in(0), &boxes = call.in(1), &labels = call.in(2), &offsets = call.in(3);
  const int64_t samples = call.out(1).shape[0], count = call.out(1).shape[1];
  const bool shared = anchors.shape.rank() == 2;
  for (int64_t n = 0; n < samples; ++n) {
    for (int64_t a = 0; a < count; ++a) {
      const double* anchor = anchors.v.data() + ((shared ? 0 : n * count) + a) * 4;
      const double x = (anchor[0] + anchor[2]) / 2, y = (anchor[1] + anchor[3]) / 2, size = anchor[2] - anchor[0];
      float best = 1e-5f;
      int64_t found = -1;
      for (auto g = static_cast<int64_t>(offsets[n]); g < static_cast<int64_t>(offsets[n + 1]); ++g) {
        const double* box = boxes.v.data() + g * 4;
        const double off = std::max(std::abs(x - (box[0] + box[2]) / 2), std::abs(y - (box[1] + box[3]) / 2));
        const auto [nearest, farthest] = std::minmax({x - box[0], y - box[1], box[2] - x, box[3] - y});
        const bool far_enough = farthest > (a < attrs.first ? 0 : 4 * size);
        const bool near_enough = a >= count - attrs.last || farthest < 8 * size;
        if (off >= attrs.radius * size || nearest <= 0 || !far_enough || !near_enough) continue;
        const float value = 1e8f - static_cast<float>((box[2] - box[0]) * (box[3] - box[1]));
        if (value <= best) continue;
        best = value;
        found = g;
      }
      for (int64_t i = 0; i < 4; ++i) call.out(0)[(n * count + a) * 4 + i] = found >= 0 ? boxes[found * 4 + i] : anchor[i];
      call.out(1)[n * count + a] = found >= 0 ? labels[found] : 0;
    }
  }
}

void top_mask_ref(RefCall& call) {
  const RefArray &values = call.in(0), &count = call.in(1);
  const int64_t rows = values.shape[1];
  for (int64_t n = 0; n < values.shape[0]; ++n) {
    std::vector<int64_t> order(static_cast<size_t>(rows));
    std::iota(order.begin(), order.end(), n * rows);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    for (size_t rank = 0; rank < order.size() && static_cast<double>(rank) < count[n]; ++rank) call.out()[order[rank]] = 1;
  }
}

void take_boxes_ref(RefCall& call) {
  const RefArray &boxes = call.in(0), &scores = call.in(1), &index = call.in(2), &count = call.in(3);
  const int64_t candidates = scores.shape[1] * scores.shape[2], classes = scores.shape[2], chosen = index.shape[1];
  for (int64_t n = 0; n < scores.shape[0]; ++n) {
    for (int64_t d = 0; d < chosen && static_cast<double>(d) < count[n]; ++d) {
      const int64_t to = n * chosen + d, from = n * candidates + static_cast<int64_t>(index[to]);
      const int64_t box = boxes.shape.rank() == 4 ? from : from / classes;
      for (int64_t i = 0; i < 4; ++i) call.out(0)[to * 4 + i] = boxes[box * 4 + i];
      call.out(1)[to] = scores[from];
      call.out(2)[to] = static_cast<double>(call.attrs<TakeBoxesAttrs>().first_label + from % classes);
    }
  }
}

void append_objects_ref(RefCall& call) {
  const RefArray &boxes = call.in(0), &count = call.in(1), &objects = call.in(2), &offsets = call.in(3);
  const int64_t rows = boxes.shape[1], all = call.out(0).shape[1];
  for (int64_t n = 0; n < boxes.shape[0]; ++n) {
    int64_t next = n * all;
    const auto put = [&](const RefArray& from, int64_t row) {
      for (int64_t i = 0; i < 4; ++i) call.out(0)[next * 4 + i] = from[row * 4 + i];
      ++next;
    };
    for (int64_t r = 0; static_cast<double>(r) < count[n]; ++r) put(boxes, n * rows + r);
    for (auto g = static_cast<int64_t>(offsets[n]); static_cast<double>(g) < offsets[n + 1]; ++g) put(objects, g);
    call.out(1)[n] = static_cast<double>(next - n * all);
  }
}

void sample_labels_ref(RefCall& call) {
  const auto& attrs = call.attrs<SampleLabelsAttrs>();
  const RefArray& labels = call.in(0);
  const int64_t rows = labels.shape[1];
  const auto number = [&](int64_t i) { return call.has(2) ? static_cast<int64_t>(call.in(2)[i]) : 0; };
  for (int64_t n = 0; n < labels.shape[0]; ++n) {
    std::vector<std::pair<uint32_t, int64_t>> objects, background;  // random words and rows
    for (int64_t r = 0; r < rows && (!call.has(1) || static_cast<double>(r) < call.in(1)[n]); ++r) {
      const double label = labels[n * rows + r];
      const int64_t sample = call.has(2) ? number(2) + n : 0;
      const uint32_t key = attrs.random ? mask_bits(number(0), attrs.stream, number(1), sample, r) : 0;
      if (label > 0) objects.emplace_back(key, r);
      if (label == 0) background.emplace_back(key, r);
    }
    std::sort(objects.begin(), objects.end());
    std::sort(background.begin(), background.end());
    objects.resize(std::min(objects.size(), static_cast<size_t>(static_cast<double>(attrs.size) * attrs.positive_fraction)));
    background.resize(std::min(background.size(), static_cast<size_t>(attrs.size) - objects.size()));
    for (const auto& [key, row] : objects) call.out()[n * rows + row] = 1;
    for (const auto& [key, row] : background) call.out()[n * rows + row] = 1;
  }
}

void true_rows_ref(RefCall& call) {
  const RefArray& mask = call.in(0);
  const int64_t rows = mask.shape[1], size = call.out(0).shape[1];
  for (int64_t n = 0; n < mask.shape[0]; ++n) {
    int64_t found = 0;
    for (int64_t r = 0; r < rows && found < size; ++r)
      if (mask[n * rows + r] != 0) call.out(0)[n * size + found++] = static_cast<double>(r);
    call.out(1)[n] = static_cast<double>(found);
  }
}

constexpr RefEntry kEntries[] = {{"grid_boxes", grid_boxes_ref},       {"match_boxes", match_boxes_ref},
                                 {"match_centers", match_centers_ref}, {"top_mask", top_mask_ref},
                                 {"take_boxes", take_boxes_ref},       {"append_objects", append_objects_ref},
                                 {"sample_labels", sample_labels_ref}, {"true_rows", true_rows_ref}};

}  // namespace

std::span<const RefEntry> ref_detection() { return kEntries; }

}  // namespace galley
