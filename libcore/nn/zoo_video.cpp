// Classifiers of clips: ResNets with convolutions in space and time (Tran et al. 2017, "A Closer Look at Spatiotemporal Convolutions for
// Action Recognition"), as in torchvision: r3d_18, mc3_18 and r2plus1d_18.
//
// A clip [N,C,T,H,W] is handled as a batch of T * N frames, time first. A convolution over 3 frames is one over the channels of the three:
// the frames before, at and after each, joined. Batch norms over frames are those over a clip's pixels.

#include "libcore/nn/zoo_video.h"

#include "libcore/nn/capture.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

struct VideoParams : OptionsOf<VideoParams> {
  int64_t num_classes = 400;
  std::vector<int64_t> layers{2, 2, 2, 2};
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "layers", .doc = "blocks of each of the four stages", .min = 1}, layers);
  }
};

/// Frames [time * samples, C, H, W], all samples of a time together.
struct Frames {
  Value x;
  int64_t time, samples;
};

/// Kernel, stride and padding in time and in space.
struct Conv3d {
  int64_t channels, time = 1, space = 1, time_stride = 1, space_stride = 1;
};

/// The frames at `first`, first + stride, ... of which there are `count`.
Value frames_at(const Frames& in, int64_t first, int64_t stride, int64_t count) {
  if (stride == 1) return slice(in.x, 0, first * in.samples, (first + count) * in.samples);
  std::vector<Value> chosen;
  for (int64_t t = 0; t < count; ++t)
    chosen.push_back(slice(in.x, 0, (first + t * stride) * in.samples, (first + t * stride + 1) * in.samples));
  ConcatAttrs by_time;
  by_time.axis = 0;
  return chosen.size() == 1 ? chosen[0] : concat(chosen, by_time);
}

/// A convolution without bias whose padding keeps sizes, except for strides; weight [channels, C, time, space, space].
Frames conv3d(Builder& b, std::string_view name, Frames in, const Conv3d& options) {
  const auto module = b.scope(name);
  const int64_t channels = in.x.channels(), around = options.time / 2;
  const Value weight = b.parameter("weight", {options.channels, channels, options.time, options.space, options.space},
                                   Init::kaiming_normal(Init::Fan::kOut), "conv3d");
  const int64_t count = (in.time - 1) / options.time_stride + 1;
  if (around > 0) {
    in.x = pad(in.x, {around * in.samples, around * in.samples, 0, 0, 0, 0, 0, 0});
    in.time += 2 * around;
  }
  std::vector<Value> taps;
  for (int64_t t = 0; t < options.time; ++t) taps.push_back(frames_at(in, t, options.time_stride, count));
  const Value joined = taps.size() == 1 ? taps[0] : concat(taps);
  const Value by_time = options.time == 1 ? weight : permute(weight, {0, 2, 1, 3, 4});
  Conv2dAttrs attrs;
  attrs.stride = {options.space_stride};
  attrs.padding = {options.space / 2};
  const Value flat = reshape(by_time, {options.channels, options.time * channels, options.space, options.space});
  return {conv2d(joined, flat, {}, attrs), count, in.samples};
}

Frames norm(Builder& b, std::string_view name, Frames in) { return {b.batch_norm(name, in.x), in.time, in.samples}; }
Frames activated(Frames in) { return {relu(in.x), in.time, in.samples}; }

enum class Kind { kFull, kSpace, kFactored };

/// A 3x3x3 convolution; one in space; or one in space to `middle` channels, a norm, and one in time.
Frames convolution(Builder& b, std::string_view name, Frames in, Kind kind, const Conv3d& options, int64_t middle) {
  const int64_t stride = options.space_stride;
  if (kind == Kind::kFull) return conv3d(b, name, in, {options.channels, 3, 3, stride, stride});
  if (kind == Kind::kSpace) return conv3d(b, name, in, {options.channels, 1, 3, 1, stride});
  const auto module = b.scope(name);
  in = activated(norm(b, "1", conv3d(b, "0", in, {middle, 1, 3, 1, stride})));
  return conv3d(b, "3", in, {options.channels, 3, 1, stride, 1});
}

Frames basic_block(Builder& b, Frames in, Kind kind, int64_t channels, int64_t stride) {
  const int64_t from = in.x.channels();
  // As many parameters as a 3x3x3 convolution: equation 1 of the paper.
  const int64_t middle = from * channels * 27 / (from * 9 + 3 * channels);
  Frames out = in;
  for (const char* name : {"conv1", "conv2"}) {
    const auto module = b.scope(name);
    const bool first = out.x.id() == in.x.id();
    out = norm(b, "1", convolution(b, "0", out, kind, {.channels = channels, .space_stride = first ? stride : 1}, middle));
    if (first) out = activated(out);
  }
  if (stride != 1 || from != channels) {
    const auto module = b.scope("downsample");
    in = norm(b, "1", conv3d(b, "0", in, {channels, 1, 1, kind == Kind::kSpace ? 1 : stride, stride}));
  }
  return {relu(add(out.x, in.x)), out.time, out.samples};
}

Frames stem(Builder& b, Frames in, Kind kind) {
  const auto module = b.scope("stem");
  if (kind != Kind::kFactored) return activated(norm(b, "1", conv3d(b, "0", in, {64, 3, 7, 1, 2})));
  in = activated(norm(b, "1", conv3d(b, "0", in, {45, 1, 7, 1, 2})));
  return activated(norm(b, "4", conv3d(b, "3", in, {64, 3, 1})));
}

/// `first` and `rest`: the convolutions of the first stage and of the others.
template <Kind kFirst, Kind kRest>
NamedValues video_resnet(Builder& b, const Options& options, Value clip) {
  const auto& params = params_of<VideoParams>(options);
  const Shape s = clip.shape();
  GALLEY_CHECK(params.layers.size() == 4, "[video_resnet] layers needs 4 values, but has ", params.layers.size());
  GALLEY_CHECK(s.rank() == 5 && s[1] == 3, "[video_resnet] the input must be clips [N,3,T,H,W], not ", clip.type());
  Frames frames{reshape(permute(clip, {2, 0, 1, 3, 4}), {s[2] * s[0], s[1], s[3], s[4]}), s[2], s[0]};
  frames = stem(b, frames, kFirst);
  for (int64_t stage = 0; stage < 4; ++stage) {
    const auto layer = b.scope(cat("layer", stage + 1));
    for (int64_t i = 0; i < params.layers[static_cast<size_t>(stage)]; ++i) {
      const auto block = b.scope(std::to_string(i));
      frames = basic_block(b, frames, stage == 0 ? kFirst : kRest, int64_t{64} << stage, stage > 0 && i == 0 ? 2 : 1);
    }
  }
  const Value pooled = global_avg_pool(frames.x);
  const Value features = mean(reshape(pooled, {frames.time, frames.samples, pooled.channels()}), {0});
  const auto init = b.use_init({.linear_weight = Init::normal(0.01), .linear_bias = Init::zeros()});
  return {{"logits", b.linear("fc", features, {.out_features = params.num_classes})}};
}

ModelInfo info(const Options&) { return {"video_resnet", ModelOutput::kClasses, {3, 16, 112, 112}, {"C", "T", "H", "W"}}; }

}  // namespace

ModelTable video_models() {
  const auto params = make_options<VideoParams>;
  return {
      {{"r3d_18", "ResNet-18 with 3x3x3 convolutions (Tran et al. 2017) for clips, 33.4 M parameters", params},
       video_resnet<Kind::kFull, Kind::kFull>,
       info},
      {{"mc3_18", "ResNet-18 for clips, 3x3x3 convolutions in the first stage only, 11.7 M parameters", params},
       video_resnet<Kind::kFull, Kind::kSpace>,
       info},
      {{"r2plus1d_18", "ResNet-18 for clips, convolutions in space and in time in turn, 31.5 M parameters", params},
       video_resnet<Kind::kFactored, Kind::kFactored>,
       info},
  };
}

}  // namespace galley
