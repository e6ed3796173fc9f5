#pragma once
// Operators on boxes (ops/nms.h, ops/detection.h, ops/proposals.h): suppression, matches with objects, samples of rows, chosen boxes.
// Results are in a fixed order: equal values are taken in the order of their rows.

#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/random.h"
#include "libcore/backends/cuda/kernels/vision_calls.h"

namespace galley::device {

// Products and sums that the compiler must not join to one operation: both kernels of matches, and the host, round alike.
#ifdef __CUDACC__
GALLEY_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
GALLEY_DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
#else
GALLEY_DEVICE float times(float a, float b) { return a * b; }
GALLEY_DEVICE float plus(float a, float b) { return a + b; }
#endif

struct Box {
  float left, top, right, bottom;
};
GALLEY_DEVICE Box box_at(const float* boxes, int64_t i) { return {boxes[4 * i], boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]}; }
GALLEY_DEVICE void put_box(const Box& box, float* boxes, int64_t i) {
  boxes[4 * i] = box.left;
  boxes[4 * i + 1] = box.top;
  boxes[4 * i + 2] = box.right;
  boxes[4 * i + 3] = box.bottom;
}
GALLEY_DEVICE float area_of(const Box& box) { return times(plus(box.right, -box.left), plus(box.bottom, -box.top)); }
/// The area of the intersection, and that of both together.
struct Overlap {
  float both, all;
};
GALLEY_DEVICE Overlap overlap_of(const Box& a, const Box& b) {
  const float width = plus(at_most(a.right, b.right), -at_least(a.left, b.left));
  const float height = plus(at_most(a.bottom, b.bottom), -at_least(a.top, b.top));
  const float both = times(at_least(width, 0.0f), at_least(height, 0.0f));
  return {both, plus(plus(area_of(a), area_of(b)), -both)};
}

/// A number with the order of the values from the largest on.
GALLEY_DEVICE unsigned descending(float value) {
  Bits bits;
  bits.number = value;
  const unsigned ascending = (bits.bits & 0x80000000u) != 0 ? ~bits.bits : bits.bits | 0x80000000u;
  return ~ascending;
}

/// The sum of the flags of the threads before this one; `all`: of all threads. `shared` has a place for each thread.
GALLEY_DEVICE int flags_before(bool flag, int* shared, int& all) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // the last sums have been read
  shared[thread] = flag ? 1 : 0;
  for (int step = 1; step < kThreads; step *= 2) {
    __syncthreads();
    const int other = thread >= step ? shared[thread - step] : 0;
    __syncthreads();
    shared[thread] += other;
  }
  __syncthreads();
  all = shared[kThreads - 1];
  return shared[thread] - (flag ? 1 : 0);
}

/// Sorts keys by the threads of a block; `count` is a power of two.
GALLEY_DEVICE void sort_keys(uint64_t* keys, int64_t count) {
  for (int64_t size = 2; size <= count; size *= 2) {
    for (int64_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int64_t i = threadIdx.x; i < count; i += kThreads) {
        const int64_t other = i ^ step;
        if (other <= i) continue;
        const bool rising = (i & size) == 0;
        const uint64_t a = keys[i], b = keys[other];
        if ((a > b) != rising) continue;
        keys[i] = b;
        keys[other] = a;
      }
    }
  }
  __syncthreads();
}

/// A block for each sample: candidates above the threshold are sorted, then visited one after the other; all threads compare a candidate
/// with the chosen ones.
GALLEY_KERNEL(nms_samples, (const NmsCall call)) {
  GALLEY_SHARED(int, shared, kThreads);
  GALLEY_SHARED(unsigned, overlaps, 1);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t n = blockIdx.x; n < call.samples; n += gridDim.x) {
    const float* scores = call.scores + n * call.rows * call.classes;
    uint64_t* keys = call.keys + n * call.padded;
    int* visited = call.visited + n * call.classes;
    int64_t rows = call.count != nullptr ? call.count[n] : call.rows;
    rows = rows < 0 ? 0 : rows < call.rows ? rows : call.rows;
    const int64_t candidates = rows * call.classes;
    int64_t found = 0;
    for (int64_t begin = 0; begin < candidates; begin += kThreads) {
      const int64_t i = begin + thread;
      const bool counts = i < candidates && scores[i] > call.score_threshold;
      int all = 0;
      const int before = flags_before(counts, shared, all);
      if (counts) keys[found + before] = static_cast<uint64_t>(descending(scores[i] + 0.0f)) << 32 | static_cast<uint64_t>(i);
      found += all;
    }
    int64_t padded = 1;
    while (padded < found) padded *= 2;
    for (int64_t i = found + thread; i < padded; i += kThreads) keys[i] = ~uint64_t{0};
    for (int64_t k = thread; k < call.classes; k += kThreads) visited[k] = 0;
    sort_keys(keys, padded);
    const auto box_of = [&](int64_t candidate) {
      const int64_t at = call.boxes_per_row == 1 ? n * call.rows + candidate / call.classes : n * call.rows * call.classes + candidate;
      return box_at(call.boxes, at);
    };
    int64_t* chosen = call.index + n * call.most;
    int64_t count = 0;
    for (int64_t i = 0; i < found && count < call.most; ++i) {
      const int64_t candidate = static_cast<int64_t>(keys[i] & 0xffffffffu), kind = candidate % call.classes;
      if (call.per_class > 0 && visited[kind] >= call.per_class) continue;  // the same for all threads
      const Box box = box_of(candidate);
      if (thread == 0) overlaps[0] = 0;
      __syncthreads();
      for (int64_t c = thread; c < count; c += kThreads) {
        if (chosen[c] % call.classes != kind) continue;
        const Overlap overlap = overlap_of(box, box_of(chosen[c]));
        if (overlap.both / overlap.all > call.iou_threshold) atomicAdd(overlaps, 1u);
      }
      __syncthreads();
      const bool free = overlaps[0] == 0;
      if (thread == 0) {
        ++visited[kind];
        if (free) chosen[count] = candidate;
      }
      count += free ? 1 : 0;
      __syncthreads();
    }
    for (int64_t c = count + thread; c < call.most; c += kThreads) chosen[c] = 0;
    if (thread == 0) call.chosen[n] = count;
    __syncthreads();
  }
}

GALLEY_KERNEL(grid_boxes_cells, (const GridBoxesCall call)) {
  for (int64_t i = first_element(); i < call.boxes; i += all_threads()) {
    int64_t box = i, first = 0;
    int level = 0;
    while (level + 1 < call.levels && box >= call.rows[level] * call.columns[level] * call.per_cell[level]) {
      box -= call.rows[level] * call.columns[level] * call.per_cell[level];
      first += call.per_cell[level++];
    }
    const int64_t cell = box / call.per_cell[level];
    const double y = static_cast<double>(cell / call.columns[level]) * call.row_strides[level];
    const double x = static_cast<double>(cell % call.columns[level]) * call.column_strides[level];
    const double* corners = call.corners + 4 * (first + box % call.per_cell[level]);
    put_box({static_cast<float>(corners[0] + x), static_cast<float>(corners[1] + y), static_cast<float>(corners[2] + x),
             static_cast<float>(corners[3] + y)},
            call.to, i);
  }
}

/// The objects of a sample are rows first .. last - 1 of boxes and labels.
struct Objects {
  int64_t first, last;
};
GALLEY_DEVICE Objects objects_of(const MatchCall& call, int64_t n) { return {call.offsets[n], call.offsets[n + 1]}; }
GALLEY_DEVICE Box anchor_of(const MatchCall& call, int64_t n, int64_t a) {
  return box_at(call.anchors, (call.shared != 0 ? 0 : n * call.count) + a);
}
GALLEY_DEVICE float share_of(const Box& object, const Box& anchor) {
  const Overlap overlap = overlap_of(object, anchor);
  return overlap.all > 0 ? overlap.both / overlap.all : 0;
}
GALLEY_DEVICE void put_match(const MatchCall& call, int64_t n, int64_t a, int64_t object, int64_t otherwise) {
  const int64_t at = n * call.count + a;
  put_box(object >= 0 ? box_at(call.boxes, object) : anchor_of(call, n, a), call.to, at);
  call.labels_to[at] = object >= 0 ? call.labels[object] : otherwise;
}

/// A block for each object: its largest overlap with an anchor, and the first such anchor.
GALLEY_KERNEL(best_anchors, (const MatchCall call)) {
  GALLEY_SHARED(float, shares, kThreads);
  GALLEY_SHARED(int, places, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t g = blockIdx.x; g < call.objects; g += gridDim.x) {
    int64_t n = 0;
    while (n < call.samples && g >= call.offsets[n + 1]) ++n;
    float best = -1;
    int place = 0;
    for (int64_t a = thread; n < call.samples && a < call.count; a += kThreads) {
      const float share = share_of(box_at(call.boxes, g), anchor_of(call, n, a));
      if (share > best) {
        best = share;
        place = static_cast<int>(a);
      }
    }
    shares[thread] = best;
    places[thread] = place;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread >= half) continue;
      const float other = shares[thread + half];
      if (other > shares[thread] || (other == shares[thread] && places[thread + half] < places[thread])) {
        shares[thread] = other;
        places[thread] = places[thread + half];
      }
    }
    if (thread == 0) {
      call.best_share[g] = shares[0];
      call.best_anchor[g] = places[0];
    }
    __syncthreads();
  }
}

GALLEY_KERNEL(match_anchors, (const MatchCall call)) {
  for (int64_t i = first_element(); i < call.samples * call.count; i += all_threads()) {
    const int64_t n = i / call.count, a = i % call.count;
    const Objects objects = objects_of(call, n);
    const Box anchor = anchor_of(call, n, a);
    int64_t own = -1, forced = -1;
    float best = -1;
    for (int64_t g = objects.first; g < objects.last; ++g) {
      const float share = share_of(box_at(call.boxes, g), anchor);
      if (share > best) {
        best = share;
        own = g;
      }
      if (call.best == kEveryBox && call.best_anchor[g] == a) forced = g;  // of several the last
    }
    if (call.best == kLowQuality) {
      for (int64_t g = objects.first; g < objects.last; ++g)
        if (share_of(box_at(call.boxes, g), anchor) == call.best_share[g]) forced = own;
    }
    const bool object = own >= 0 && best >= call.high, background = own < 0 || best < call.low;
    const int64_t found = forced >= 0 ? forced : object ? own : -1;
    put_match(call, n, a, found, background ? 0 : -1);
  }
}

GALLEY_KERNEL(match_anchor_centers, (const MatchCall call)) {
  for (int64_t i = first_element(); i < call.samples * call.count; i += all_threads()) {
    const int64_t n = i / call.count, a = i % call.count;
    const Objects objects = objects_of(call, n);
    const Box anchor = anchor_of(call, n, a);
    const float x = (anchor.left + anchor.right) / 2, y = (anchor.top + anchor.bottom) / 2, size = anchor.right - anchor.left;
    float best = 1e-5f;
    int64_t found = -1;
    for (int64_t g = objects.first; g < objects.last; ++g) {
      const Box box = box_at(call.boxes, g);
      const float off = at_least(abs(x - (box.left + box.right) / 2), abs(y - (box.top + box.bottom) / 2));
      const float left = x - box.left, top = y - box.top, right = box.right - x, bottom = box.bottom - y;
      const float nearest = at_most(at_most(left, top), at_most(right, bottom));
      const float farthest = at_least(at_least(left, top), at_least(right, bottom));
      const bool far_enough = farthest > (a < call.first ? 0 : 4 * size), near_enough = a >= call.count - call.last || farthest < 8 * size;
      if (off >= call.radius * size || nearest <= 0 || !far_enough || !near_enough) continue;
      const float value = plus(1e8f, -area_of(box));
      if (value <= best) continue;
      best = value;
      found = g;
    }
    put_match(call, n, a, found, 0);
  }
}

/// True where fewer than count values of the sample come before.
GALLEY_KERNEL(top_mask_rows, (const TopMaskCall call)) {
  for (int64_t i = first_element(); i < call.samples * call.rows; i += all_threads()) {
    const int64_t n = i / call.rows, row = i % call.rows;
    const float* values = call.values + n * call.rows;
    int64_t before = 0;
    for (int64_t r = 0; r < call.rows; ++r) before += values[r] > values[row] || (values[r] == values[row] && r < row) ? 1 : 0;
    call.to[i] = static_cast<float>(before) < call.count[n] ? 1 : 0;
  }
}

GALLEY_KERNEL(take_box_rows, (const TakeBoxesCall call)) {
  for (int64_t to = first_element(); to < call.samples * call.chosen; to += all_threads()) {
    const int64_t n = to / call.chosen, d = to % call.chosen;
    if (d >= call.count[n]) {
      put_box({0, 0, 0, 0}, call.boxes_to, to);
      call.scores_to[to] = 0;
      call.labels_to[to] = 0;
      continue;
    }
    const int64_t from = n * call.rows * call.classes + call.index[to], box = call.boxes_per_row == 1 ? from / call.classes : from;
    put_box(box_at(call.boxes, box), call.boxes_to, to);
    call.scores_to[to] = call.scores[from];
    call.labels_to[to] = call.first_label + from % call.classes;
  }
}

GALLEY_KERNEL(append_object_rows, (const AppendObjectsCall call)) {
  const int64_t all = call.rows + call.objects;
  for (int64_t i = first_element(); i < call.samples * all; i += all_threads()) {
    const int64_t n = i / all, row = i % all, valid = call.count[n], first = call.offsets[n], own = call.offsets[n + 1] - first;
    const bool is_box = row < valid, is_object = !is_box && row < valid + own;
    put_box(is_box      ? box_at(call.boxes, n * call.rows + row)
            : is_object ? box_at(call.object_boxes, first + row - valid)
                        : Box{0, 0, 0, 0},
            call.to, i);
    if (row == 0) call.count_to[n] = valid + own;
  }
}

/// The sort key of a row among rows of its kind.
GALLEY_DEVICE unsigned key_of(const SampleLabelsCall& call, int64_t n, int64_t row) {
  if (call.random == 0) return 0;
  const int64_t seed = call.rng != nullptr ? call.rng[0] : 0, step = call.rng != nullptr ? call.rng[1] : 0;
  return mask_word(seed, call.stream, step, call.rng != nullptr ? call.rng[2] + n : 0, row);
}

/// Marks the rows of a kind with the `wanted` smallest keys, of equal ones the first; all rows if there are fewer. Returns how many. By the
/// threads of a block; the key of the last one is found byte by byte. `histogram` has 256 places.
template <class IsKind>
GALLEY_DEVICE int64_t mark_smallest(const SampleLabelsCall& call, int64_t n, int64_t rows, int64_t wanted, unsigned* histogram, int* shared,
                                    const IsKind& is_kind) {
  const int thread = static_cast<int>(threadIdx.x);
  int64_t found = 0, left = wanted;
  unsigned last = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    histogram[thread] = 0;
    __syncthreads();
    for (int64_t row = thread; row < rows; row += kThreads) {
      if (!is_kind(row)) continue;
      const unsigned key = key_of(call, n, row);
      if (shift < 24 && key >> (shift + 8) != last >> (shift + 8)) continue;
      atomicAdd(histogram + (key >> shift & 255u), 1u);
    }
    __syncthreads();
    if (shift == 24) {
      for (int byte = 0; byte < 256; ++byte) found += histogram[byte];
      if (found <= wanted) break;
    }
    int byte = 0;
    while (left > static_cast<int64_t>(histogram[byte])) left -= histogram[byte++];
    last |= static_cast<unsigned>(byte) << shift;
  }
  const bool all = found <= wanted;
  int64_t equal = 0;  // rows before with the last key
  for (int64_t begin = 0; begin < rows; begin += kThreads) {
    const int64_t row = begin + thread;
    const bool is = row < rows && is_kind(row);
    const unsigned key = is ? key_of(call, n, row) : 0;
    int count = 0;
    const int before = flags_before(is && key == last, shared, count);
    const bool taken = is && (all || key < last || (key == last && equal + before < left));
    if (taken) call.to[n * call.rows + row] = 1;
    equal += count;
  }
  return all ? found : wanted;
}

/// A block for each sample. `to` is 0 at first.
GALLEY_KERNEL(sample_label_rows, (const SampleLabelsCall call)) {
  GALLEY_SHARED(unsigned, histogram, kThreads);
  GALLEY_SHARED(int, shared, kThreads);
  for (int64_t n = blockIdx.x; n < call.samples; n += gridDim.x) {
    const int64_t* labels = call.labels + n * call.rows;
    int64_t rows = call.count != nullptr ? call.count[n] : call.rows;
    rows = rows < call.rows ? rows : call.rows;
    const int64_t objects = mark_smallest(call, n, rows, call.positive, histogram, shared, [&](int64_t row) { return labels[row] > 0; });
    mark_smallest(call, n, rows, call.size - objects, histogram, shared, [&](int64_t row) { return labels[row] == 0; });
  }
}

/// A block for each sample.
GALLEY_KERNEL(true_row_places, (const TrueRowsCall call)) {
  GALLEY_SHARED(int, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t n = blockIdx.x; n < call.samples; n += gridDim.x) {
    int64_t found = 0;
    for (int64_t begin = 0; begin < call.rows && found < call.size; begin += kThreads) {
      const int64_t row = begin + thread;
      const bool is = row < call.rows && call.mask[n * call.rows + row] != 0;
      int count = 0;
      const int64_t place = found + flags_before(is, shared, count);
      if (is && place < call.size) call.index[n * call.size + place] = row;
      found += count;
    }
    found = found < call.size ? found : call.size;
    for (int64_t i = found + thread; i < call.size; i += kThreads) call.index[n * call.size + i] = 0;
    if (thread == 0) call.found[n] = found;
  }
}

}  // namespace galley::device
