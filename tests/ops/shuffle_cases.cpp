// Cases of channel_shuffle.

#include "libcore/ops/shuffle.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> shuffle_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::function<void(CaseInputs&)> build, std::vector<double> expected = {},
                       bool forward_only = false) {
    cases.push_back({.name = std::move(name), .build = std::move(build), .expected = std::move(expected), .forward_only = forward_only});
  };
  // Channels 0 1 2 | 3 4 5 of one pixel: the first of both halves, the second of both, the third of both.
  add("channel_shuffle_hand", [](CaseInputs& in) { channel_shuffle(in.values({1, 6}, {0, 1, 2, 3, 4, 5}), 2); }, {0, 3, 1, 4, 2, 5});
  add("channel_shuffle_planes_hand", [](CaseInputs& in) { channel_shuffle(in.values({1, 4, 1, 2}, {0, 1, 10, 11, 20, 21, 30, 31}), 2); },
      {0, 1, 20, 21, 10, 11, 30, 31});
  add("channel_shuffle_image", [](CaseInputs& in) { channel_shuffle(in.real({2, 6, 3, 5}), 2); });
  add("channel_shuffle_one_group", [](CaseInputs& in) { channel_shuffle(in.real({2, 5, 2, 2}), 1); });
  add("channel_shuffle_every_channel", [](CaseInputs& in) { channel_shuffle(in.real({2, 5, 2, 2}), 5); });
  add("channel_shuffle_nothing", [](CaseInputs& in) { channel_shuffle(in.real({0, 4, 2, 2}), 2); });
  add("channel_shuffle_volume", [](CaseInputs& in) { channel_shuffle(in.real({1, 6, 2, 3, 2}), 3); });

  // For kernels: each number of streams in both directions, parts shorter and longer than a vector and not multiples of it, arrays for
  // several threads.
  for (const int64_t groups : {2, 3, 4, 5, 8}) {
    for (const int64_t part : {1, 7, 29, 116}) {
      const Shape shape{2, groups * part, part > 100 ? 17 : 3, 5};
      add(cat("channel_shuffle_kernel_", groups, "_", part), [=](CaseInputs& in) { channel_shuffle(in.real(shape), groups); }, {}, true);
      add(cat("channel_shuffle_kernel_back_", groups, "_", part), [=](CaseInputs& in) { channel_shuffle(in.real(shape), part); }, {}, true);
    }
  }
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kI32, DType::kU8}) {
    for (const int64_t groups : {2, 3, 4, 5}) {
      const Shape shape{2, 60 * groups, 3, 5};
      for (const int64_t way : {groups, int64_t{60}}) {
        add(
            cat("channel_shuffle_of_", dtype, "_", groups, "_", way),
            [=](CaseInputs& in) {
              std::vector<double> values;
              for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>(i * 37 % 101));
              channel_shuffle(in.values(shape, values, dtype), way);
            },
            {}, true);
      }
    }
  }
  return cases;
}

}  // namespace galley::test
