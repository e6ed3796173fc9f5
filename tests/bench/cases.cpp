#include "tests/bench/cases.h"

#include <cmath>
#include <memory>
#include <span>

#include "libcore/base/error.h"
#include "libcore/data/codec.h"
#include "libcore/data/resample.h"
#include "libcore/infer/operator_work.h"
#include "tests/support/jpeg.h"

namespace galley::bench {
namespace {

constexpr int kHeight = 375, kWidth = 500;  // size of a typical ImageNet photograph

/// Waves of different lengths in each channel, with enough detail that decoding takes as long as for a photograph.
Image waves() {
  Image image(DType::kU8, kHeight, kWidth, 3);
  for (int64_t y = 0; y < kHeight; ++y) {
    for (int64_t x = 0; x < kWidth; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const double u = static_cast<double>(x), v = static_cast<double>(y), k = static_cast<double>(c + 1);
        image.row<uint8_t>(y)[x * 3 + c] =
            static_cast<uint8_t>(127 + 60 * std::sin(u * k / 9) + 40 * std::sin(v / (5 + k)) + 20 * std::sin((u + v) * k / 3));
      }
    }
  }
  return image;
}

Case decode_case() {
  return {"decode_jpeg:500x375", [] {
            const auto file = std::make_shared<std::vector<std::byte>>(test::encode_jpeg(waves().as<uint8_t>(), kHeight, kWidth));
            return Work{[file] { decode_image(*file, ColorMode::kRgb, "waves"); }, 0,
                        static_cast<double>(file->size()) + 3.0 * kWidth * kHeight};
          }};
}

/// Applies random_resized_crop to a decoded image.
Case resize_case(const Region& region) {
  return {cat("resize:", region.width, "x", region.height, "to224x224"), [region] {
            const auto image = std::make_shared<Image>(waves());
            return Work{[image, region] { resize_region(*image, region, {224, 224}); }, 0,
                        3.0 * static_cast<double>(region.width * region.height + 224 * 224)};
          }};
}

std::vector<Case> operator_cases_of(std::span<const char* const> texts) {
  std::vector<Case> cases;
  for (const char* text : texts) cases.push_back(operator_case(text));
  return cases;
}

}  // namespace

Case operator_case(const std::string& text) {
  return {text, [text] {
            const BenchmarkWork work = operator_work(text, true);
            return Work{[work] { work.run(); }, work.row.flops, work.row.bytes};
          }};
}

std::vector<Case> timed_cases() {
  constexpr const char* kOperators[] = {
      "conv2d_backward_weights:mb16ic64ih56oc64kh3",
      "conv2d_backward_weights:mb16ic512ih28oc1024kh1sh2",
      "conv2d_backward_weights:mb32ic120ih28oc120kh5g120",
      "conv2d_backward_weights:mb16ic3ih224oc64kh7ph3sh2",
      "conv2d:mb16ic64ih56oc64kh3",
      "conv2d:mb32ic120ih28oc120kh5g120",
      "conv2d:mb32ic72ih56oc24kh1",
      "conv2d_backward_data:mb32ic120ih28oc120kh5g120",
      "batch_norm:16x256x56x56+256+256:activation=relu",
      "batch_norm:16x256x56x56+256+256+16x256x56x56:activation=relu",
      "batch_norm_backward:16x256x56x56+16x256x56x56+256+256+256+256:activation=relu",
      "batch_norm_depthwise:32x64x112x112+64x1x3x3+64+64:stride=2,padding=1,activation=relu",
      "batch_norm_depthwise_backward:32x64x56x56+64x1x3x3+32x64x112x112+64+64+64+64:stride=2,padding=1,activation=relu",
      "batch_norm_depthwise_backward:32x120x28x28+120x1x5x5+32x120x28x28+120+120+120+120:padding=2,activation=relu",
      "pointwise_batch_norm_depthwise:32x24x56x56+72x24x1x1+72x1x3x3+72+72:padding=1,activation=relu",
      "pointwise_batch_norm_depthwise_backward:32x72x56x56+72x1x3x3+72+72+72+72+32x24x56x56+72x24x1x1+32x24x56x56+25x24:padding=1,"
      "activation=relu",
      "quantized_conv2d:mb1ic64ih56oc64kh3",
      "quantized_conv2d:mb1ic256ih14oc1024kh1",
      "quantized_conv2d:mb1ic120ih28oc120kh5g120",
      "quantized_linear:mb1ic2048oc1000",
      "linear:mb1ic2048oc1000",
      "linear:mb16ic2048oc1000",
      "layer_norm:16x197x768+768+768",
      "softmax:12x197x197:axis=2",
      "lstm:1x64x256+1024x256+1024x256+1024+1024:save=false",
      "sgd_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000:momentum=0.9",
  };
  std::vector<Case> cases = operator_cases_of(kOperators);
  cases.push_back(decode_case());
  cases.push_back(resize_case({30, 60, 300, 400}));
  return cases;
}

std::vector<Case> counted_cases() {
  constexpr const char* kOperators[] = {
      "conv2d_backward_weights:mb1ic64ih28oc64kh3sh2",
      "conv2d_backward_weights:mb1ic32ih28oc32kh5g32",
      "conv2d_backward_weights:mb4ic24ih28oc72kh1",
      "conv2d:mb4ic64ih28oc64kh3ph1",
      "conv2d:mb4ic72ih28oc24kh1",
      "conv2d_backward_weights:mb4ic64ih28oc64kh3ph1",
      "winograd_weights:64x64x3x3",
      "batch_norm:2x64x28x28+64+64:activation=relu",
      "batch_norm_backward:2x64x28x28+2x64x28x28+64+64+64+64:activation=relu",
      "batch_norm_depthwise:2x64x28x28+64x1x3x3+64+64:padding=1,activation=relu",
      "batch_norm_depthwise_backward:2x64x28x28+64x1x3x3+2x64x28x28+64+64+64+64:padding=1,activation=relu",
      "pointwise_batch_norm_depthwise:2x24x28x28+72x24x1x1+72x1x3x3+72+72:padding=1,activation=relu",
      "pointwise_batch_norm_depthwise_backward:2x72x28x28+72x1x3x3+72+72+72+72+2x24x28x28+72x24x1x1+2x24x28x28+25x24:padding=1,activation="
      "relu",
      "quantized_conv2d:mb1ic64ih28oc64kh3",
      "quantized_conv2d:mb1ic64ih28oc64kh5g64",
      "linear:mb4ic512oc100",
      "layer_norm:64x256+256+256",
      "softmax:64x256:axis=1",
      "lstm:1x16x64+256x64+256x64+256+256:save=false",
      "sgd_update:256x256+256x256+scalar+scalar@i64+256x256:momentum=0.9",
  };
  std::vector<Case> cases = operator_cases_of(kOperators);
  cases.push_back(resize_case({30, 60, 300, 400}));
  return cases;
}

}  // namespace galley::bench
