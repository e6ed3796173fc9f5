// Swin transformer (Liu et al. 2021) and Swin transformer V2 (Liu et al. 2022), as in torchvision.

#include <cmath>
#include <limits>
#include <map>

#include "libcore/nn/attention.h"
#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

struct SwinParams : OptionsOf<SwinParams> {
  int64_t num_classes = 1000;
  int64_t patch_size = 4;
  int64_t embed_dim = 96;
  std::vector<int64_t> depths{2, 2, 6, 2};
  std::vector<int64_t> num_heads{3, 6, 12, 24};
  int64_t window_size = 7;
  double mlp_ratio = 4;
  double stochastic_depth_prob = 0.2;
  int64_t image_size = 224;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "patch_size", .doc = "rows and columns of a patch", .min = 1}, patch_size);
    v.option({.name = "embed_dim", .doc = "features of a token in the first stage; they double from stage to stage", .min = 1}, embed_dim);
    v.option({.name = "depths", .doc = "blocks of each stage", .min = 1}, depths);
    v.option({.name = "num_heads", .doc = "attention heads of each stage", .min = 1}, num_heads);
    v.option({.name = "window_size", .doc = "rows and columns of tokens that attend to each other", .min = 2}, window_size);
    v.option({.name = "mlp_ratio", .doc = "features inside a block's MLP, as a multiple of the token's", .min = 0.01}, mlp_ratio);
    v.option({.name = "stochastic_depth_prob",
              .doc = "probability of skipping the last block; it increases linearly from 0 at the first block",
              .min = 0,
              .max = 1},
             stochastic_depth_prob);
    v.option({.name = "image_size", .doc = "default rows and columns of the input; other sizes are possible", .min = 1}, image_size);
  }
};

enum class Version { kOne, kTwo };

const Init kWeight = Init::truncated_normal(0.02);

/// State that all blocks share.
struct Swin {
  Builder& b;
  const SwinParams& params;
  Version version;
  std::map<std::pair<int64_t, int64_t>, Value> masks = {};  // by padded rows and columns
};

/// Parameters of a linear layer that are declared in the file's order, before the product is captured.
LinearParameters linear_parameters(Builder& b, std::string_view name, int64_t in_features, int64_t out_features, bool bias = true) {
  const auto module = b.scope(name);
  return b.linear_parameters({out_features, in_features}, kWeight, bias ? std::optional<Init>(Init::zeros()) : std::nullopt);
}

// ---- windows of x [N,H,W,C]

/// Rotates an axis by `by` positions towards the start; the first positions move to the end.
Value roll(Value x, int64_t axis, int64_t by) { return by == 0 ? x : concat({slice(x, axis, by), slice(x, axis, 0, by)}, axis); }

/// [N,H,W,C] -> [N * windows, size * size, C].
Value split_windows(Value x, int64_t size) {
  const Shape& s = x.shape();
  const Value grid = permute(reshape(x, {s[0], s[1] / size, size, s[2] / size, size, s[3]}), {0, 1, 3, 2, 4, 5});
  return reshape(grid, {s[0] * (s[1] / size) * (s[2] / size), size * size, s[3]});
}
/// Inverse of split_windows; `whole` is the shape [N,H,W,C].
Value join_windows(Value x, const Shape& whole, int64_t size) {
  const Value grid = reshape(x, {whole[0], whole[1] / size, whole[2] / size, size, size, whole[3]});
  return reshape(permute(grid, {0, 1, 3, 2, 4, 5}), whole);
}

/// After a shift, windows at the edge hold tokens from both ends of the image. The mask, [windows,1,size * size,size * size], is 0 for
/// tokens from the same region and -100 for others.
Value shift_mask(Builder& b, int64_t rows, int64_t columns, int64_t size, const Size2& shift) {
  const auto constant = [&](int64_t r, int64_t c, double value) {
    return full(b.graph(), {.dtype = b.dtype(), .shape = {1, r, c, 1}}, value);
  };
  // Numbers the three bands of an axis: whole windows, the unshifted part of the last window, and the part that was rotated into it.
  const auto bands = [&](bool is_row, int64_t length, int64_t by, double step) {
    const auto band = [&](int64_t count, double value) { return is_row ? constant(count, 1, value) : constant(1, count, value); };
    if (by == 0) return band(length, 0);
    return concat({band(length - size, 0), band(size - by, step), band(by, 2 * step)}, is_row ? 1 : 2);
  };
  const Value bands_sum = add(bands(true, rows, shift.h, 3), bands(false, columns, shift.w, 1));
  const Value region = split_windows(bands_sum, size);  // [windows,size * size,1]
  const int64_t windows = region.shape()[0], tokens = size * size;
  const Value same =
      equal(broadcast_to(region, {windows, tokens, tokens}), broadcast_to(transpose(region, 1, 2), {windows, tokens, tokens}));
  const TensorType type{.dtype = b.dtype(), .shape = {windows, tokens, tokens}};
  return reshape(where(same, full(b.graph(), type, 0), full(b.graph(), type, -100)), {windows, 1, tokens, tokens});
}

// ---- relative positions

/// For each pair of tokens of a window, the row of their relative position in the table of (2 size - 1)^2 relative positions.
Init position_index(int64_t size) {
  std::vector<double> index;
  for (int64_t i = 0; i < size * size; ++i) {
    for (int64_t j = 0; j < size * size; ++j) {
      index.push_back(static_cast<double>((i / size - j / size + size - 1) * (2 * size - 1) + i % size - j % size + size - 1));
    }
  }
  return Init::table(std::move(index));
}

/// Equation 4 of the second paper: sign(d) log2(1 + |d|) / log2(8), where d is the relative distance scaled to -8..8; rows, then columns.
Init position_table(int64_t size) {
  const auto spaced = [size](int64_t i) {
    const double d = 8 * static_cast<double>(i - (size - 1)) / static_cast<double>(size - 1);
    return std::copysign(std::log2(std::fabs(d) + 1) / 3, d);
  };
  std::vector<double> table;
  for (int64_t row = 0; row < 2 * size - 1; ++row) {
    for (int64_t column = 0; column < 2 * size - 1; ++column) table.insert(table.end(), {spaced(row), spaced(column)});
  }
  return Init::table(std::move(table));
}

/// Converts a table [(2 size - 1)^2, heads] to attention biases [heads,size * size,size * size].
Value position_bias(Value table, Value index, int64_t size) {
  return permute(reshape(embedding(table, index), {size * size, size * size, table.shape()[1]}), {2, 0, 1});
}

/// x / max(|x|, 1e-12) along the last axis. The maximum is taken before the square root, whose derivative at 0 (padding tokens) is
/// infinite.
Value normalize(Value x) {
  const Value length_squared = clamp(sum(square(x), {-1}, true), 1e-24, std::numeric_limits<double>::infinity());
  return mul(x, rsqrt(length_squared));
}

/// Attention of version 2: the scores are cosines of the angles between queries and keys, scaled for each head. qkv [n,tokens,3E] ->
/// [n,tokens,E]; logit_scale [heads,1,1].
Value cosine_attention(Value qkv, Value logit_scale, Value bias) {
  const int64_t n = qkv.shape()[0], tokens = qkv.shape()[1], channels = qkv.shape()[2] / 3, heads = logit_scale.shape()[0];
  const Value all = reshape(qkv, {n, tokens, 3 * heads, channels / heads});
  const auto part = [&](int64_t i) { return slice(all, 2, i * heads, (i + 1) * heads); };
  const Value scale = exp(clamp(logit_scale, -std::numeric_limits<double>::infinity(), std::log(100.0)));
  AttentionAttrs attrs;
  attrs.scale = 1;
  const Value q = mul(normalize(part(0)), reshape(scale, {heads, 1}));
  return reshape(attention({.q = q, .k = normalize(part(1)), .v = part(2), .bias = bias}, attrs).o, {n, tokens, channels});
}

// ---- blocks

/// Attention within windows of x [N,H,W,C]. If `shifted`, windows are shifted by half their size.
Value window_attention(Swin& swin, Value x, int64_t heads, bool shifted) {
  Builder& b = swin.b;
  const auto module = b.scope("attn");
  const int64_t size = swin.params.window_size, tokens = size * size, channels = x.shape()[3], rows = x.shape()[1], columns = x.shape()[2];
  const bool two = swin.version == Version::kTwo;
  GALLEY_CHECK(channels % heads == 0, "[swin] num_heads=", heads, " does not divide ", channels, " features, at ", b.graph().path());

  // In the order of torchvision's files.
  const int64_t distances = (2 * size - 1) * (2 * size - 1);
  const Value table = two ? Value() : b.parameter("relative_position_bias_table", {distances, heads}, kWeight, "swin");
  const Value logit_scale = two ? b.parameter("logit_scale", {heads, 1, 1}, Init::constant(std::log(10.0)), "swin") : Value();
  const Value coordinates = two ? b.buffer("relative_coords_table", {.dtype = b.dtype(), .shape = {1, 2 * size - 1, 2 * size - 1, 2}},
                                           position_table(size), "swin")
                                : Value();
  const Value index = b.buffer("relative_position_index", {.dtype = DType::kI64, .shape = {tokens * tokens}}, position_index(size), "swin");
  LinearParameters qkv = linear_parameters(b, "qkv", channels, 3 * channels), proj = linear_parameters(b, "proj", channels, channels);
  Value bias;
  if (two) {
    const auto mlp = b.scope("cpb_mlp");
    const Value hidden = relu(b.linear("0", reshape(coordinates, {distances, 2}), {.out_features = 512}));
    bias = affine(sigmoid(position_bias(b.linear("2", hidden, {.out_features = heads, .bias = false}), index, size)), 16);
  } else {
    bias = position_bias(table, index, size);
  }

  // Pads to whole windows. An axis with only one window is not shifted.
  const int64_t more_rows = (size - rows % size) % size, more_columns = (size - columns % size) % size;
  if (more_rows + more_columns > 0) x = pad(x, {0, 0, 0, more_rows, 0, more_columns, 0, 0});
  const Shape whole = x.shape();
  const Size2 shift(shifted && size < whole[1] ? size / 2 : 0, shifted && size < whole[2] ? size / 2 : 0);
  x = split_windows(roll(roll(x, 1, shift.h), 2, shift.w), size);

  if (two) {  // keys have no bias
    const Value none = full(b.graph(), {.dtype = b.dtype(), .shape = {channels}}, 0);
    qkv.bias = concat({slice(qkv.bias, 0, 0, channels), none, slice(qkv.bias, 0, 2 * channels)}, 0);
  }
  if (shift.h + shift.w > 0) {
    Value& mask = swin.masks[{whole[1], whole[2]}];
    if (!mask) mask = shift_mask(b, whole[1], whole[2], size, shift);
    bias = add(bias, mask);
  } else {
    bias = reshape(bias, {1, heads, tokens, tokens});
  }
  x = b.linear(x, qkv);
  x = two ? cosine_attention(x, logit_scale, bias) : self_attention(b, x, {.heads = heads, .bias = bias});
  x = join_windows(b.linear(x, proj), whole, size);
  x = roll(roll(x, 1, shift.h == 0 ? 0 : whole[1] - shift.h), 2, shift.w == 0 ? 0 : whole[2] - shift.w);
  if (more_rows > 0) x = slice(x, 1, 0, rows);
  return more_columns > 0 ? slice(x, 2, 0, columns) : x;
}

Value mlp(Swin& swin, Value x) {
  Builder& b = swin.b;
  const auto module = b.scope("mlp");
  const int64_t channels = x.shape()[-1], hidden = static_cast<int64_t>(static_cast<double>(channels) * swin.params.mlp_ratio);
  const auto init = b.use_init({.linear_weight = kWeight, .linear_bias = Init::zeros()});
  return b.linear("3", gelu(b.linear("0", x, {.out_features = hidden})), {.out_features = channels});
}

/// Version 1 normalizes the input of each branch, version 2 its output.
Value block(Swin& swin, std::string_view name, Value x, int64_t heads, bool shifted, double drop) {
  Builder& b = swin.b;
  const auto module = b.scope(name);
  const auto branch = [&](Value y) { return b.stochastic_depth("stochastic_depth", y, drop); };
  if (swin.version == Version::kOne) {
    x = add(x, branch(window_attention(swin, b.layer_norm("norm1", x), heads, shifted)));
    return add(x, branch(mlp(swin, b.layer_norm("norm2", x))));
  }
  // Norms come first in torchvision's files.
  const auto norm = [&](std::string_view leaf) {
    const auto inner = b.scope(leaf);
    const Value weight = b.parameter("weight", {x.shape()[3]}, Init::ones(), "layer_norm");
    return std::pair(weight, b.parameter("bias", {x.shape()[3]}, Init::zeros(), "layer_norm"));
  };
  const auto normed = [](Value y, const std::pair<Value, Value>& affine) { return layer_norm(y, affine.first, affine.second).y; };
  const auto norm1 = norm("norm1");
  x = add(x, branch(normed(window_attention(swin, x, heads, shifted), norm1)));
  const auto norm2 = norm("norm2");
  return add(x, branch(normed(mlp(swin, x), norm2)));
}

/// Joins 2x2 tokens into one token with twice the features.
Value merge_patches(Swin& swin, std::string_view name, Value x) {
  Builder& b = swin.b;
  const auto module = b.scope(name);
  const int64_t rows = x.shape()[1], columns = x.shape()[2], channels = x.shape()[3];
  if (rows % 2 + columns % 2 > 0) x = pad(x, {0, 0, 0, rows % 2, 0, columns % 2, 0, 0});
  const auto every_second = [](Value y, int64_t axis, int64_t start) {
    SliceAttrs attrs;
    attrs.axis = axis;
    attrs.start = start;
    attrs.step = 2;
    return slice(y, attrs);
  };
  const auto corner = [&](int64_t row, int64_t column) { return every_second(every_second(x, 1, row), 2, column); };
  x = concat({corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1)}, 3);
  const auto module_init = b.use_init({.linear_weight = kWeight});
  if (swin.version == Version::kTwo) return b.layer_norm("norm", b.linear("reduction", x, {.out_features = 2 * channels, .bias = false}));
  const LinearParameters reduction = linear_parameters(b, "reduction", 4 * channels, 2 * channels, /*bias=*/false);
  return b.linear(b.layer_norm("norm", x), reduction);
}

NamedValues swin_transformer(Builder& b, const SwinParams& params, Version version, Value x) {
  GALLEY_CHECK(!params.depths.empty() && params.depths.size() == params.num_heads.size(),
               "[swin] depths and num_heads need one value per stage, but have ", params.depths.size(), " and ", params.num_heads.size());
  Swin swin{b, params, version};
  int64_t blocks = 0, done = 0;
  for (const int64_t depth : params.depths) blocks += depth;
  {
    const auto features = b.scope("features");
    int index = 0;
    const auto next = [&index] { return std::to_string(index++); };
    {
      const auto module = b.scope(next());
      x = b.conv2d("0", x, {.out_channels = params.embed_dim, .kernel_size = params.patch_size, .stride = params.patch_size});
      x = b.layer_norm("2", permute(x, {0, 2, 3, 1}));
    }
    const auto init = b.use_init({.linear_weight = kWeight, .linear_bias = Init::zeros()});
    for (size_t stage = 0; stage < params.depths.size(); ++stage) {
      if (stage > 0) x = merge_patches(swin, next(), x);
      const auto module = b.scope(next());
      for (int64_t i = 0; i < params.depths[stage]; ++i) {
        const double drop = blocks > 1 ? params.stochastic_depth_prob * static_cast<double>(done++) / static_cast<double>(blocks - 1) : 0;
        x = block(swin, std::to_string(i), x, params.num_heads[stage], i % 2 == 1, drop);
      }
    }
  }
  x = flatten(global_avg_pool(permute(b.layer_norm("norm", x), {0, 3, 1, 2})));
  const auto init = b.use_init({.linear_weight = kWeight, .linear_bias = Init::zeros()});
  return {{"logits", b.linear("head", x, {.out_features = params.num_classes})}};
}

template <Version kVersion>
NamedValues build(Builder& b, const Options& params, Value input) {
  return swin_transformer(b, params_of<SwinParams>(params), kVersion, input);
}

/// Features and heads of the first stage (both double per stage), blocks of the third stage, drop probability in hundredths, window and
/// image size.
template <int64_t kWidth, int64_t kHeads, int64_t kDepth, int64_t kDrop, int64_t kWindow, int64_t kImage>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<SwinParams>();
  params->embed_dim = kWidth;
  params->depths = {2, 2, kDepth, 2};
  params->num_heads = {kHeads, 2 * kHeads, 4 * kHeads, 8 * kHeads};
  params->stochastic_depth_prob = static_cast<double>(kDrop) / 100;
  params->window_size = kWindow;
  params->image_size = kImage;
  return params;
}

ModelInfo info(const Options& options) {
  const int64_t size = params_of<SwinParams>(options).image_size;
  return {"swin", ModelOutput::kClasses, {3, size, size}, image_names()};
}

}  // namespace

ModelTable swin_models() {
  return {
      {{"swin_t", "Swin-T (Liu et al. 2021), 28.3 M parameters", make<96, 3, 6, 20, 7, 224>}, build<Version::kOne>, info},
      {{"swin_s", "Swin-S, 49.6 M parameters", make<96, 3, 18, 30, 7, 224>}, build<Version::kOne>, info},
      {{"swin_b", "Swin-B, 87.8 M parameters", make<128, 4, 18, 50, 7, 224>}, build<Version::kOne>, info},
      {{"swin_v2_t", "Swin-T, version 2 (Liu et al. 2022), 28.4 M parameters", make<96, 3, 6, 20, 8, 256>}, build<Version::kTwo>, info},
      {{"swin_v2_s", "Swin-S, version 2, 49.7 M parameters", make<96, 3, 18, 30, 8, 256>}, build<Version::kTwo>, info},
      {{"swin_v2_b", "Swin-B, version 2, 87.9 M parameters", make<128, 4, 18, 50, 8, 256>}, build<Version::kTwo>, info},
  };
}

}  // namespace galley
