// What detectors compute besides layers, in f32: boxes on grids, matches with objects, samples of rows, chosen boxes.
//
// match_boxes visits each pair of an anchor and an object once and keeps, for the anchor and for the object, the best partner so far; no
// matrix of overlaps is stored. One thread per sample. Overlaps are rounded as torchvision's.

#include "libcore/ops/detection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/random_mask.h"

namespace galley {
namespace {

struct Box {
  float x1, y1, x2, y2;
  float area() const { return (x2 - x1) * (y2 - y1); }
};

/// Intersection over union; 0 for two boxes without area.
float overlap(const Box& a, const Box& b) {
  const float width = std::max(std::min(a.x2, b.x2) - std::max(a.x1, b.x1), 0.0f);
  const float height = std::max(std::min(a.y2, b.y2) - std::max(a.y1, b.y1), 0.0f);
  const float both = width * height, all = a.area() + b.area() - both;
  return all > 0 ? both / all : 0;
}

class GridBoxes : public PreparedKernel {
 public:
  explicit GridBoxes(const KernelQuery& q) : attrs_(q.attrs<GridBoxesAttrs>()) {}
  void run(Stream&, const KernelArgs& args) const override {
    auto* out = args.out<float>(0);
    const double* corners = attrs_.corners.data();
    for (size_t level = 0; level < attrs_.per_cell.size(); ++level) {
      const int64_t numbers = 4 * attrs_.per_cell[level];
      for (int64_t row = 0; row < attrs_.grid[2 * level]; ++row) {
        for (int64_t column = 0; column < attrs_.grid[2 * level + 1]; ++column) {
          const double y = static_cast<double>(row) * attrs_.strides[2 * level];
          const double x = static_cast<double>(column) * attrs_.strides[2 * level + 1];
          for (int64_t i = 0; i < numbers; ++i) *out++ = static_cast<float>(corners[i] + (i % 2 == 0 ? x : y));
        }
      }
      corners += numbers;
    }
  }

 private:
  GridBoxesAttrs attrs_;
};

class MatchBoxes : public PreparedKernel {
 public:
  explicit MatchBoxes(const KernelQuery& q)
      : attrs_(q.attrs<MatchBoxesAttrs>()),
        samples_(q.out(1).shape[0]),
        anchors_(q.out(1).shape[1]),
        objects_(q.in(1).shape[0]),
        shared_(q.in(0).shape.rank() == 2) {}

  /// Of each anchor of a sample its object; of each object its best overlap and the anchor.
  int64_t scratch_bytes() const override { return 4 * (samples_ * anchors_ + 2 * objects_); }

  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(samples_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) match(args, n);
    });
  }

 private:
  static constexpr int32_t kBackground = -1, kNeither = -2;

  void match(const KernelArgs& args, int64_t n) const {
    const int64_t* offsets = args.in<int64_t>(3);
    const int64_t first = std::clamp<int64_t>(offsets[n], 0, objects_), last = std::clamp<int64_t>(offsets[n + 1], first, objects_);
    const auto* anchors = reinterpret_cast<const Box*>(args.in<float>(0)) + (shared_ ? 0 : n * anchors_);
    const auto* boxes = reinterpret_cast<const Box*>(args.in<float>(1)) + first;
    const int64_t count = last - first;
    auto* object = static_cast<int32_t*>(args.scratch) + n * anchors_;
    auto* best = reinterpret_cast<float*>(static_cast<int32_t*>(args.scratch) + samples_ * anchors_) + first;
    auto* at = static_cast<int32_t*>(args.scratch) + samples_ * anchors_ + objects_ + first;
    std::fill_n(best, count, -1.0f);
    for (int64_t a = 0; a < anchors_; ++a) {
      float most = -1;
      int32_t own = 0;
      for (int64_t g = 0; g < count; ++g) {
        const float value = overlap(boxes[g], anchors[a]);
        if (value > most) {
          most = value;
          own = static_cast<int32_t>(g);
        }
        if (value > best[g]) {
          best[g] = value;
          at[g] = static_cast<int32_t>(a);
        }
      }
      object[a] = count == 0 || static_cast<double>(most) < attrs_.low ? kBackground
                  : static_cast<double>(most) >= attrs_.high           ? own
                                                                       : kNeither;
    }
    if (anchors_ > 0) take_best(anchors, boxes, count, best, at, object);
    auto* to = reinterpret_cast<Box*>(args.out<float>(0)) + n * anchors_;
    int64_t* classes = args.out<int64_t>(1) + n * anchors_;
    const int64_t* labels = args.in<int64_t>(2) + first;
    for (int64_t a = 0; a < anchors_; ++a) {
      to[a] = object[a] >= 0 ? boxes[object[a]] : anchors[a];
      classes[a] = object[a] >= 0 ? labels[object[a]] : object[a] == kBackground ? 0 : -1;
    }
  }

  /// Gives objects the anchors that overlap them most.
  void take_best(const Box* anchors, const Box* boxes, int64_t count, const float* best, const int32_t* at, int32_t* object) const {
    for (int64_t g = 0; g < count && attrs_.best == MatchBest::kEveryBox; ++g) object[at[g]] = static_cast<int32_t>(g);
    for (int64_t a = 0; a < anchors_ && attrs_.best == MatchBest::kLowQuality; ++a) {
      float most = -1;
      int32_t own = 0;
      bool takes = false;
      for (int64_t g = 0; g < count; ++g) {
        const float value = overlap(boxes[g], anchors[a]);
        takes = takes || value == best[g];
        if (value > most) {
          most = value;
          own = static_cast<int32_t>(g);
        }
      }
      if (takes) object[a] = own;
    }
  }

  MatchBoxesAttrs attrs_;
  int64_t samples_, anchors_, objects_;
  bool shared_;
};

class MatchCenters : public PreparedKernel {
 public:
  explicit MatchCenters(const KernelQuery& q)
      : attrs_(q.attrs<MatchCentersAttrs>()),
        samples_(q.out(1).shape[0]),
        anchors_(q.out(1).shape[1]),
        objects_(q.in(1).shape[0]),
        shared_(q.in(0).shape.rank() == 2) {}

  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kGrain = 1024;  // anchors that are worth a second thread
    const auto* anchors = reinterpret_cast<const Box*>(args.in<float>(0));
    const auto* boxes = reinterpret_cast<const Box*>(args.in<float>(1));
    const int64_t* offsets = args.in<int64_t>(3);
    auto* to = reinterpret_cast<Box*>(args.out<float>(0));
    parallel_for(samples_ * anchors_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / anchors_, a = i % anchors_;
        const int64_t first = std::clamp<int64_t>(offsets[n], 0, objects_), last = std::clamp<int64_t>(offsets[n + 1], first, objects_);
        const Box& anchor = anchors[shared_ ? a : i];
        const int64_t found = find(anchor, a, boxes, first, last);
        to[i] = found >= 0 ? boxes[found] : anchor;
        args.out<int64_t>(1)[i] = found >= 0 ? args.in<int64_t>(2)[found] : 0;
      }
    });
  }

 private:
  int64_t find(const Box& anchor, int64_t a, const Box* boxes, int64_t first, int64_t last) const {
    const float x = (anchor.x1 + anchor.x2) / 2, y = (anchor.y1 + anchor.y2) / 2, size = anchor.x2 - anchor.x1;
    const float radius = static_cast<float>(attrs_.radius) * size;
    const float low = a < attrs_.first ? 0 : 4 * size;
    const float high = a >= anchors_ - attrs_.last ? std::numeric_limits<float>::infinity() : 8 * size;
    float best = 1e-5f;
    int64_t found = -1;
    for (int64_t g = first; g < last; ++g) {
      const Box& box = boxes[g];
      if (std::abs(x - (box.x1 + box.x2) / 2) >= radius || std::abs(y - (box.y1 + box.y2) / 2) >= radius) continue;
      const float left = x - box.x1, top = y - box.y1, right = box.x2 - x, bottom = box.y2 - y;
      const float farthest = std::max(std::max(left, right), std::max(top, bottom));
      if (std::min(std::min(left, right), std::min(top, bottom)) <= 0 || farthest <= low || farthest >= high) continue;
      const float value = 1e8f - box.area();
      if (value <= best) continue;
      best = value;
      found = g;
    }
    return found;
  }

  MatchCentersAttrs attrs_;
  int64_t samples_, anchors_, objects_;
  bool shared_;
};

class TopMask : public PreparedKernel {
 public:
  explicit TopMask(const KernelQuery& q) : samples_(q.in(0).shape[0]), rows_(q.in(0).shape[1]) {}
  int64_t scratch_bytes() const override { return samples_ * rows_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(samples_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const float* values = args.in<float>(0) + n * rows_;
        bool* mask = args.out<bool>(0) + n * rows_;
        auto* order = static_cast<int32_t*>(args.scratch) + n * rows_;
        const auto wanted = static_cast<double>(std::ceil(args.in<float>(1)[n]));
        const auto count = wanted > 0 ? static_cast<int64_t>(std::min(wanted, static_cast<double>(rows_))) : 0;
        std::fill_n(mask, rows_, count == rows_);
        if (count == 0 || count == rows_) continue;
        std::iota(order, order + rows_, 0);
        std::nth_element(order, order + count - 1, order + rows_,
                         [&](int32_t a, int32_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
        for (int64_t i = 0; i < count; ++i) mask[order[i]] = true;
      }
    });
  }

 private:
  int64_t samples_, rows_;
};

class TakeBoxes : public PreparedKernel {
 public:
  explicit TakeBoxes(const KernelQuery& q)
      : first_label_(q.attrs<TakeBoxesAttrs>().first_label),
        samples_(q.in(1).shape[0]),
        classes_(q.in(1).shape[2]),
        candidates_(q.in(1).shape[1] * classes_),
        chosen_(q.in(2).shape[1]),
        own_boxes_(q.in(0).shape.rank() == 4) {}
  void run(Stream&, const KernelArgs& args) const override {
    for (int64_t n = 0; n < samples_; ++n) {
      const int64_t count = std::clamp<int64_t>(args.in<int64_t>(3)[n], 0, chosen_);
      auto* boxes = reinterpret_cast<Box*>(args.out<float>(0)) + n * chosen_;
      float* scores = args.out<float>(1) + n * chosen_;
      int64_t* labels = args.out<int64_t>(2) + n * chosen_;
      for (int64_t d = 0; d < count; ++d) {
        const int64_t candidate = n * candidates_ + args.in<int64_t>(2)[n * chosen_ + d];
        boxes[d] = reinterpret_cast<const Box*>(args.in<float>(0))[own_boxes_ ? candidate : candidate / classes_];
        scores[d] = args.in<float>(1)[candidate];
        labels[d] = first_label_ + candidate % classes_;
      }
      std::fill(boxes + count, boxes + chosen_, Box{});
      std::fill(scores + count, scores + chosen_, 0.0f);
      std::fill(labels + count, labels + chosen_, int64_t{0});
    }
  }

 private:
  int64_t first_label_, samples_, classes_, candidates_, chosen_;
  bool own_boxes_;
};

class AppendObjects : public PreparedKernel {
 public:
  explicit AppendObjects(const KernelQuery& q)
      : samples_(q.in(0).shape[0]), rows_(q.in(0).shape[1]), objects_(q.in(2).shape[0]), all_(q.out(0).shape[1]) {}
  void run(Stream&, const KernelArgs& args) const override {
    const auto* objects = reinterpret_cast<const Box*>(args.in<float>(2));
    const int64_t* offsets = args.in<int64_t>(3);
    for (int64_t n = 0; n < samples_; ++n) {
      auto* to = reinterpret_cast<Box*>(args.out<float>(0)) + n * all_;
      const auto* boxes = reinterpret_cast<const Box*>(args.in<float>(0)) + n * rows_;
      const int64_t count = std::clamp<int64_t>(args.in<int64_t>(1)[n], 0, rows_);
      const int64_t first = std::clamp<int64_t>(offsets[n], 0, objects_), last = std::clamp<int64_t>(offsets[n + 1], first, objects_);
      std::copy_n(boxes, count, to);
      std::copy(objects + first, objects + last, to + count);
      const int64_t valid = count + last - first;
      std::fill(to + valid, to + all_, Box{});
      args.out<int64_t>(1)[n] = valid;
    }
  }

 private:
  int64_t samples_, rows_, objects_, all_;
};

/// Rows with their random words in the upper half, so that the smallest numbers are the sample.
class SampleLabels : public PreparedKernel {
 public:
  explicit SampleLabels(const KernelQuery& q) : attrs_(q.attrs<SampleLabelsAttrs>()), samples_(q.in(0).shape[0]), rows_(q.in(0).shape[1]) {}
  int64_t scratch_bytes() const override { return samples_ * rows_ * 8; }
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(samples_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) sample(args, n);
    });
  }

 private:
  void sample(const KernelArgs& args, int64_t n) const {
    const int64_t* labels = args.in<int64_t>(0) + n * rows_;
    const int64_t* rng = args.in<int64_t>(2);
    bool* mask = args.out<bool>(0) + n * rows_;
    const int64_t count = args.in<int64_t>(1) == nullptr ? rows_ : std::clamp<int64_t>(args.in<int64_t>(1)[n], 0, rows_);
    const uint64_t key = mask_key(rng == nullptr ? 0 : rng[0], attrs_.stream, rng == nullptr ? 0 : rng[1]);
    const uint64_t index = rng == nullptr ? 0 : static_cast<uint64_t>(rng[2] + n);
    // Objects from the front, background from the back.
    auto* words = static_cast<uint64_t*>(args.scratch) + n * rows_;
    int64_t objects = 0, background = rows_;
    PhiloxBlock block{};
    for (int64_t row = 0; row < count; ++row) {
      const auto element = static_cast<uint64_t>(row);
      if (attrs_.random && row % 4 == 0) block = mask_block(key, index, element / 4);
      const uint64_t word = (attrs_.random ? static_cast<uint64_t>(block[element % 4]) << 32 : 0) | element;
      if (labels[row] > 0) words[objects++] = word;
      if (labels[row] == 0) words[--background] = word;
    }
    std::fill_n(mask, rows_, false);
    const auto most = static_cast<int64_t>(static_cast<double>(attrs_.size) * attrs_.positive_fraction);
    const int64_t taken = take(words, objects, most, mask);
    take(words + background, rows_ - background, attrs_.size - taken, mask);
  }

  /// Marks the rows of the `most` smallest words; returns how many there are.
  static int64_t take(uint64_t* words, int64_t count, int64_t most, bool* mask) {
    if (count > most) {
      std::nth_element(words, words + most, words + count);
      count = most;
    }
    for (int64_t i = 0; i < count; ++i) mask[words[i] & 0xffffffffu] = true;
    return count;
  }

  SampleLabelsAttrs attrs_;
  int64_t samples_, rows_;
};

class TrueRowsKernel : public PreparedKernel {
 public:
  explicit TrueRowsKernel(const KernelQuery& q) : samples_(q.in(0).shape[0]), rows_(q.in(0).shape[1]), size_(q.out(0).shape[1]) {}
  void run(Stream&, const KernelArgs& args) const override {
    for (int64_t n = 0; n < samples_; ++n) {
      const bool* mask = args.in<bool>(0) + n * rows_;
      int64_t* index = args.out<int64_t>(0) + n * size_;
      int64_t found = 0;
      for (int64_t row = 0; row < rows_ && found < size_; ++row)
        if (mask[row]) index[found++] = row;
      std::fill(index + found, index + size_, int64_t{0});
      args.out<int64_t>(1)[n] = found;
    }
  }

 private:
  int64_t samples_, rows_, size_;
};

Support supports(const KernelQuery& q) {
  const DType dtype = q.node.inputs.empty() ? q.out(0).dtype : q.in(0).dtype;
  if (dtype != DType::kF32) return Support::no(cat("dtype ", dtype));
  for (size_t i = 0; i < q.node.inputs.size(); ++i) {
    const TensorType& type = q.in(static_cast<int>(i));
    if (!type.format.is_contiguous()) return Support::no(cat("format ", type.format));
    if (type.elements() >= int64_t{1} << 31) return Support::no("2^31 elements or more");
  }
  return Support::yes();
}

Support supports_rows(const KernelQuery& q) {
  if (q.in(0).elements() >= int64_t{1} << 31) return Support::no("2^31 elements or more");
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 8> kKernels{{{"grid_boxes", "cells", supports, prepare<GridBoxes>},
                                      {"match_boxes", "pairs", supports, prepare<MatchBoxes>},
                                      {"match_centers", "pairs", supports, prepare<MatchCenters>},
                                      {"top_mask", "selection", supports, prepare<TopMask>},
                                      {"take_boxes", "copy", supports, prepare<TakeBoxes>},
                                      {"append_objects", "copy", supports, prepare<AppendObjects>},
                                      {"sample_labels", "selection", supports_rows, prepare<SampleLabels>},
                                      {"true_rows", "scan", supports_rows, prepare<TrueRowsKernel>}}};

}  // namespace

std::span<const Kernel> cpu_detection() { return kKernels; }

}  // namespace galley
