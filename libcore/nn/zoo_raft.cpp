// RAFT (Teed, Deng 2020, "Recurrent All-Pairs Field Transforms for Optical Flow"), as in torchvision: two images are encoded at an eighth
// of their resolution; a recurrent block then updates the flow several times, each time from the correlation of the features around the
// point to which each pixel moves.
//
// The recurrent block's convolutions read the hidden state, the context and the motion. The context is the same in all updates, so its part
// of the convolutions is computed once, with its columns of the weights.

#include <algorithm>
#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection_parts.h"
#include "libcore/nn/flow.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/flow.h"

namespace galley {
namespace {

constexpr int64_t kFactor = 8;        // of the encoders' resolution
constexpr int64_t kMaskHidden = 256;  // channels of the mask predictor
constexpr double kMaskMultiplier = 0.25;

enum class Norm { kNone, kInstance, kBatch };

struct RaftParams : OptionsOf<RaftParams> {
  int64_t num_flow_updates = 12;
  std::vector<int64_t> feature_encoder_layers{64, 64, 96, 128, 256}, context_encoder_layers{64, 64, 96, 128, 256};
  int64_t corr_block_num_levels = 4, corr_block_radius = 4;
  std::vector<int64_t> motion_encoder_corr_layers{256, 192}, motion_encoder_flow_layers{128, 64};
  int64_t motion_encoder_out_channels = 128, recurrent_block_hidden_state_size = 128, flow_head_hidden_size = 256;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_flow_updates", .doc = "updates of the flow, in training and in predictions", .min = 1, .max = 64, .main = true},
             num_flow_updates);
    v.option({.name = "feature_encoder_layers", .doc = "channels of the encoder of both images: stem, three stages, result", .min = 1},
             feature_encoder_layers);
    v.option({.name = "context_encoder_layers",
              .doc = "channels of the encoder of the first image; the result is split into hidden state and context",
              .min = 1},
             context_encoder_layers);
    v.option({.name = "corr_block_num_levels", .doc = "levels of the correlation pyramid", .min = 1, .max = 8}, corr_block_num_levels);
    v.option({.name = "corr_block_radius", .doc = "pixels on each side that a look-up compares", .min = 1, .max = 16}, corr_block_radius);
    v.option({.name = "motion_encoder_corr_layers", .doc = "channels of one or two convolutions of correlations", .min = 1},
             motion_encoder_corr_layers);
    v.option({.name = "motion_encoder_flow_layers", .doc = "channels of two convolutions of the flow", .min = 1},
             motion_encoder_flow_layers);
    v.option({.name = "motion_encoder_out_channels", .doc = "channels of the motion, the flow's two included", .min = 3},
             motion_encoder_out_channels);
    v.option({.name = "recurrent_block_hidden_state_size", .doc = "channels of the hidden state", .min = 1},
             recurrent_block_hidden_state_size);
    v.option({.name = "flow_head_hidden_size", .doc = "channels of the head that predicts the change of the flow", .min = 1},
             flow_head_hidden_size);
  }
};

std::unique_ptr<Options> make_small() {
  auto params = std::make_unique<RaftParams>();
  params->feature_encoder_layers = {32, 32, 64, 96, 128};
  params->context_encoder_layers = {32, 32, 64, 96, 160};
  params->corr_block_radius = 3;
  params->motion_encoder_corr_layers = {96};
  params->motion_encoder_flow_layers = {64, 32};
  params->motion_encoder_out_channels = 82;
  params->recurrent_block_hidden_state_size = 96;
  params->flow_head_hidden_size = 128;
  return params;
}

// ---- Encoders

struct Encoder {
  const std::vector<int64_t>& channels;  // stem, three stages, result
  Norm norm;
  bool bottleneck;
};

struct EncoderConv {
  int64_t channels, kernel, stride = 1;
  bool activation = true;
};

/// Convolution "0", norm "1" and relu.
Value encoder_conv(Builder& b, std::string_view name, Value x, Norm norm, const EncoderConv& options) {
  const auto module = b.scope(name);
  x = b.conv2d("0", x,
               {.out_channels = options.channels, .kernel_size = options.kernel, .stride = options.stride, .padding = options.kernel / 2});
  if (norm == Norm::kBatch) x = b.batch_norm("1", x);
  if (norm == Norm::kInstance) x = b.group_norm("1", x, {.groups = x.channels(), .affine = false});
  return options.activation ? relu(x) : x;
}

Value encoder_block(Builder& b, Value x, const Encoder& encoder, int64_t channels, int64_t stride) {
  Value y = x;
  if (encoder.bottleneck) {
    y = encoder_conv(b, "convnormrelu1", y, encoder.norm, {channels / 4, 1});
    y = encoder_conv(b, "convnormrelu2", y, encoder.norm, {channels / 4, 3, stride});
    y = encoder_conv(b, "convnormrelu3", y, encoder.norm, {channels, 1});
  } else {
    y = encoder_conv(b, "convnormrelu1", y, encoder.norm, {channels, 3, stride});
    y = encoder_conv(b, "convnormrelu2", y, encoder.norm, {channels, 3});
  }
  if (stride != 1) x = encoder_conv(b, "downsample", x, encoder.norm, {channels, 1, stride, false});
  return relu(add(x, y));
}

Value encode(Builder& b, std::string_view name, Value x, const Encoder& encoder) {
  GALLEY_CHECK(encoder.channels.size() == 5, "[raft] ", name, "_layers needs 5 values, but has ", encoder.channels.size());
  const auto module = b.scope(name);
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut)});
  x = encoder_conv(b, "convnormrelu", x, encoder.norm, {encoder.channels[0], 7, 2});
  for (size_t stage = 1; stage <= 3; ++stage) {
    const auto layer = b.scope(cat("layer", stage));
    for (int64_t i = 0; i < 2; ++i) {
      const auto block = b.scope(std::to_string(i));
      x = encoder_block(b, x, encoder, encoder.channels[stage], stage > 1 && i == 0 ? 2 : 1);
    }
  }
  return b.conv2d("conv", x, {.out_channels = encoder.channels[4]});
}

// ---- Updates

// PyTorch's initial values of a convolution.
const Init kWeight = Init::kaiming_uniform(std::sqrt(5.0));
Init fan_bias(int64_t inputs) { return Init::uniform(1 / std::sqrt(static_cast<double>(inputs))); }

/// A convolution of the update block, which is applied in each update.
SharedConv shared(Builder& b, std::string_view name, int64_t in_channels, int64_t channels, int64_t kernel) {
  return SharedConv(b, name, in_channels, {.out_channels = channels, .kernel_size = kernel, .padding = kernel / 2}, kWeight,
                    fan_bias(in_channels * kernel * kernel));
}

/// Features of the motion: of correlations and flow.
class MotionEncoder {
 public:
  MotionEncoder(Builder& b, const RaftParams& params, int64_t values) {
    const std::vector<int64_t>&corr = params.motion_encoder_corr_layers, &flow = params.motion_encoder_flow_layers;
    GALLEY_CHECK(corr.size() == 1 || corr.size() == 2, "[raft] motion_encoder_corr_layers needs 1 or 2 values, but has ", corr.size());
    GALLEY_CHECK(flow.size() == 2, "[raft] motion_encoder_flow_layers needs 2 values, but has ", flow.size());
    const auto module = b.scope("motion_encoder");
    corr_.push_back(shared(b, "convcorr1.0", values, corr[0], 1));
    if (corr.size() == 2) corr_.push_back(shared(b, "convcorr2.0", corr[0], corr[1], 3));
    flow_.push_back(shared(b, "convflow1.0", 2, flow[0], 7));
    flow_.push_back(shared(b, "convflow2.0", flow[0], flow[1], 3));
    joint_.push_back(shared(b, "conv.0", corr.back() + flow[1], params.motion_encoder_out_channels - 2, 3));
  }
  Value operator()(Value flow, Value correlations) const {
    Value motion = flow;
    for (const SharedConv& conv : corr_) correlations = relu(conv(correlations));
    for (const SharedConv& conv : flow_) motion = relu(conv(motion));
    return concat({relu(joint_[0](concat({correlations, motion}))), flow});
  }

 private:
  std::vector<SharedConv> corr_, flow_, joint_;
};

/// torchvision's ConvGRU, whose input is hidden state, context and motion.
class ConvGru {
 public:
  ConvGru(Builder& b, std::string_view name, Value context, int64_t hidden, int64_t motion, Size2 kernel) {
    const auto module = b.scope(name);
    padding_ = {kernel.h / 2, kernel.w / 2};
    const int64_t fixed = context.channels(), inputs = hidden + fixed + motion;
    std::vector<Value> moving, constant;
    for (const char* gate : {"convz", "convr", "convq"}) {
      const auto conv = b.scope(gate);
      const Value weight = b.parameter("weight", {hidden, inputs, kernel.h, kernel.w}, kWeight, "conv2d");
      const Value bias = b.parameter("bias", {hidden}, fan_bias(inputs * kernel.h * kernel.w), "conv2d");
      const std::vector<Value> columns = split(weight, {hidden, fixed, motion});
      moving.push_back(concat({columns[0], columns[2]}));
      constant.push_back(apply(context, columns[1], bias));
    }
    gates_ = concat({moving[0], moving[1]}, 0);
    candidate_ = moving[2];
    constant_gates_ = concat({constant[0], constant[1]});
    constant_candidate_ = constant[2];
  }
  Value operator()(Value hidden, Value motion) const {
    const std::vector<Value> gates = chunk(sigmoid(add(apply(concat({hidden, motion}), gates_, {}), constant_gates_)), 2);
    const Value update = gates[0], reset = gates[1];
    const Value candidate = tanh(add(apply(concat({mul(reset, hidden), motion}), candidate_, {}), constant_candidate_));
    return add(hidden, mul(update, sub(candidate, hidden)));
  }

 private:
  Value apply(Value x, Value weight, Value bias) const {
    Conv2dAttrs attrs;
    attrs.padding = padding_;
    return conv2d(x, weight, bias, attrs);
  }

  std::vector<int64_t> padding_;
  Value gates_, candidate_, constant_gates_, constant_candidate_;
};

/// What the second image gives to the look-ups: its features at falling resolution. The mean of dot products is the dot product of the
/// mean.
std::vector<Value> correlation_pyramid(Value features, int64_t levels) {
  std::vector<Value> pyramid{features};
  while (std::ssize(pyramid) < levels) pyramid.push_back(avg_pool(pyramid.back(), {.kernel_size = 2}));
  return pyramid;
}

Value bilinear_upsample(Value flow) {
  ResizeAttrs attrs;
  attrs.size = {flow.shape()[2] * kFactor, flow.shape()[3] * kFactor};
  attrs.align_corners = true;
  return affine(resize(flow, attrs), static_cast<double>(kFactor));
}

/// Throws (exit 3) unless the sizes of the images can be encoded.
void check_images(const Shape& first, const Shape& second, int64_t levels) {
  GALLEY_CHECK(first == second, "[raft] image1 and image2 must have the same shape, not ", first, " and ", second);
  const int64_t least = kFactor << levels;
  const auto fits = [&](int64_t size) { return std::max((size + kFactor - 1) / kFactor * kFactor, least); };
  const int64_t rows = first[2], columns = first[3];
  if (fits(rows) == rows && fits(columns) == columns) return;
  throw Error(ErrorCode::kRecipe, cat("[raft] images must be a multiple of ", kFactor, " and at least ", least,
                                      " pixels high and wide, not ", rows, " x ", columns))
      .suggest(cat("add an item to the pipeline: {type: resize, size: [", fits(rows), ", ", fits(columns),
                   "]}, or {type: pad, padding: [0, 0, ", fits(columns) - columns, ", ", fits(rows) - rows, "], padding_mode: edge}"));
}

/// The parts in which the models differ.
struct Architecture {
  bool bottleneck;
  Norm context_norm;
  bool mask;                   // a predicted mask resizes the flow; without it, bilinear
  std::vector<Size2> kernels;  // of the recurrent block
};

/// Updates the hidden state and predicts how the flow changes.
class UpdateBlock {
 public:
  UpdateBlock(Builder& b, const RaftParams& params, const Architecture& architecture, Value context) {
    const auto module = b.scope("update_block");
    const int64_t hidden = params.recurrent_block_hidden_state_size, side = 2 * params.corr_block_radius + 1;
    motion_encoder_.emplace_back(b, params, side * side * params.corr_block_num_levels);
    {
      const auto block = b.scope("recurrent_block");
      for (const Size2& kernel : architecture.kernels)
        recurrent_.emplace_back(b, cat("convgru", recurrent_.size() + 1), context, hidden, params.motion_encoder_out_channels, kernel);
    }
    const auto head = b.scope("flow_head");
    head_.push_back(shared(b, "conv1", hidden, params.flow_head_hidden_size, 3));
    head_.push_back(shared(b, "conv2", params.flow_head_hidden_size, 2, 3));
  }
  Value hidden(Value hidden, Value flow, Value correlations) const {
    const Value motion = motion_encoder_[0](flow, correlations);
    for (const ConvGru& gru : recurrent_) hidden = gru(hidden, motion);
    return hidden;
  }
  Value change(Value hidden) const { return head_[1](relu(head_[0](hidden))); }

 private:
  std::vector<MotionEncoder> motion_encoder_;
  std::vector<ConvGru> recurrent_;
  std::vector<SharedConv> head_;
};

/// Predicts the mask of convex_upsample.
class MaskPredictor {
 public:
  MaskPredictor(Builder& b, int64_t hidden) {
    const auto module = b.scope("mask_predictor");
    convs_.push_back(shared(b, "convrelu.0", hidden, kMaskHidden, 3));
    convs_.push_back(shared(b, "conv", kMaskHidden, 9 * kFactor * kFactor, 1));
  }
  Value operator()(Value hidden) const { return affine(convs_[1](relu(convs_[0](hidden))), kMaskMultiplier); }

 private:
  std::vector<SharedConv> convs_;
};

NamedValues raft(Builder& b, const RaftParams& params, const Architecture& architecture, Value image1, Value image2) {
  check_images(image1.shape(), image2.shape(), params.corr_block_num_levels);
  const int64_t hidden_size = params.recurrent_block_hidden_state_size, samples = image1.shape()[0];
  const Value features =
      encode(b, "feature_encoder", concat({image1, image2}, 0), {params.feature_encoder_layers, Norm::kInstance, architecture.bottleneck});
  const Value first = slice(features, 0, 0, samples);
  const std::vector<Value> pyramid = correlation_pyramid(slice(features, 0, samples), params.corr_block_num_levels);
  const Value encoded =
      encode(b, "context_encoder", image1, {params.context_encoder_layers, architecture.context_norm, architecture.bottleneck});
  GALLEY_CHECK(encoded.channels() > hidden_size, "[raft] context_encoder_layers ends with ", encoded.channels(),
               " channels; they must exceed recurrent_block_hidden_state_size, ", hidden_size);
  Value hidden = tanh(slice(encoded, 1, 0, hidden_size));
  const UpdateBlock update(b, params, architecture, relu(slice(encoded, 1, hidden_size)));
  std::vector<MaskPredictor> mask;
  if (architecture.mask) mask.emplace_back(b, hidden_size);

  CorrelationLookupAttrs lookup;
  lookup.radius = params.corr_block_radius;
  const Shape& s = first.shape();
  Value flow = full(b.graph(), {.dtype = first.dtype(), .shape = {samples, 2, s[2], s[3]}}, 0);
  std::vector<Value> flows;
  for (int64_t i = 0; i < params.num_flow_updates; ++i) {
    const auto step = b.scope(cat("update", i + 1));
    if (i > 0) flow = detach(flow);
    hidden = update.hidden(hidden, flow, correlation_lookup(flow, first, pyramid, lookup));
    flow = add(flow, update.change(hidden));
    flows.push_back(architecture.mask ? convex_upsample(flow, mask[0](hidden)) : bilinear_upsample(flow));
  }
  NamedValues results{{std::string(kFlowResult), flows.back()}};
  for (size_t i = 0; i + 1 < flows.size(); ++i) results.emplace_back(cat(kEarlierFlow, i + 1), flows[i]);
  return results;
}

NamedValues raft_large(Builder& b, const Options& options, const NamedValues& inputs) {
  return raft(b, params_of<RaftParams>(options), {false, Norm::kBatch, true, {Size2(1, 5), Size2(5, 1)}}, inputs[0].second,
              inputs[1].second);
}

NamedValues raft_small(Builder& b, const Options& options, const NamedValues& inputs) {
  return raft(b, params_of<RaftParams>(options), {true, Norm::kNone, false, {Size2(3)}}, inputs[0].second, inputs[1].second);
}

ModelInfo info(const Options&) {
  const std::vector<int64_t> shape{3, 368, 496};  // of FlyingChairs' crops
  ModelInfo info{"raft", ModelOutput::kFlow, shape, image_names()};
  for (const std::string_view name : {kFirstImage, kSecondImage}) {
    info.inputs.push_back({.name = std::string(name), .shape = shape, .names = image_names()});
  }
  info.named_outputs = true;
  return info;
}

}  // namespace

ModelTable raft_models() {
  return {
      {{"raft_large", "RAFT (Teed, Deng 2020) for optical flow, 5.3 M parameters", make_options<RaftParams>}, nullptr, info, raft_large},
      {{"raft_small", "RAFT for optical flow, 1.0 M parameters", make_small}, nullptr, info, raft_small},
  };
}

}  // namespace galley
