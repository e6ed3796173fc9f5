// Vision transformer (Dosovitskiy et al. 2020), as in torchvision.

#include <cmath>

#include "libcore/nn/attention.h"
#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

struct VitParams : OptionsOf<VitParams> {
  int64_t num_classes = 1000;
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t hidden_dim = 768;
  int64_t mlp_dim = 3072;
  double dropout = 0;
  double attention_dropout = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "image_size", .doc = "rows and columns of the input, a multiple of patch_size", .min = 1}, image_size);
    v.option({.name = "patch_size", .doc = "rows and columns of a patch", .min = 1}, patch_size);
    v.option({.name = "num_layers", .doc = "encoder blocks", .min = 1}, num_layers);
    v.option({.name = "num_heads", .doc = "attention heads; they divide hidden_dim", .min = 1}, num_heads);
    v.option({.name = "hidden_dim", .doc = "features of a token", .min = 1}, hidden_dim);
    v.option({.name = "mlp_dim", .doc = "features inside a block's MLP", .min = 1}, mlp_dim);
    v.option({.name = "dropout", .doc = "dropout of tokens and of the output of each branch", .min = 0, .max = 1}, dropout);
    v.option({.name = "attention_dropout", .doc = "dropout of attention weights", .min = 0, .max = 1}, attention_dropout);
  }
};

const LayerNormOptions kNorm{.eps = 1e-6};

/// x [N,L,E] -> [N,L,E], with the names of torch.nn.MultiheadAttention.
Value multihead_attention(Builder& b, std::string_view name, Value x, const VitParams& params) {
  const auto module = b.scope(name);
  const int64_t width = x.shape()[2];
  const Value weight = b.parameter("in_proj_weight", {3 * width, width}, Init::xavier_uniform(width, 3 * width), "attention");
  const Value bias = b.parameter("in_proj_bias", {3 * width}, Init::zeros(), "attention");
  const Value mixed = self_attention(b, linear(x, weight, bias),
                                     {.heads = params.num_heads, .dropout = params.attention_dropout, .dropout_name = "attention_dropout"});
  const auto init = b.use_init({.linear_bias = Init::zeros()});
  return b.linear("out_proj", mixed, {.out_features = width});
}

Value encoder_block(Builder& b, std::string_view name, Value x, const VitParams& params) {
  const auto module = b.scope(name);
  x = add(x, b.dropout("dropout", multihead_attention(b, "self_attention", b.layer_norm("ln_1", x, kNorm), params), params.dropout));
  Value y = b.layer_norm("ln_2", x, kNorm);
  const auto init =
      b.use_init({.linear_weight = Init::xavier_uniform(params.hidden_dim, params.mlp_dim), .linear_bias = Init::normal(1e-6)});
  const auto mlp = b.scope("mlp");
  y = b.dropout("2", gelu(b.linear("0", y, {.out_features = params.mlp_dim})), params.dropout);
  return add(x, b.dropout("4", b.linear("3", y, {.out_features = params.hidden_dim}), params.dropout));
}

NamedValues vit(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<VitParams>(options);
  GALLEY_CHECK(params.image_size % params.patch_size == 0, "[vit] image_size=", params.image_size,
               " must be a multiple of patch_size=", params.patch_size);
  GALLEY_CHECK(params.hidden_dim % params.num_heads == 0, "[vit] hidden_dim=", params.hidden_dim,
               " must be a multiple of num_heads=", params.num_heads);
  GALLEY_CHECK(x.shape().rank() == 4 && x.shape()[2] == params.image_size && x.shape()[3] == params.image_size,
               "[vit] image_size=", params.image_size, ", but the input is ", x.type(), "; set model.image_size to the size of the images");
  const int64_t n = x.shape()[0], side = params.image_size / params.patch_size, width = params.hidden_dim;
  const Value token = b.parameter("class_token", {1, 1, width}, Init::zeros(), "vit");
  {
    const double fan_in = static_cast<double>(x.channels() * params.patch_size * params.patch_size);
    const auto init = b.use_init({.conv_weight = Init::truncated_normal(std::sqrt(1 / fan_in)), .conv_bias = Init::zeros()});
    x = b.conv2d("conv_proj", x, {.out_channels = width, .kernel_size = params.patch_size, .stride = params.patch_size});
  }
  x = transpose(reshape(x, {n, width, side * side}), 1, 2);
  x = concat({broadcast_to(token, {n, 1, width}), x}, 1);
  {
    const auto encoder = b.scope("encoder");
    x = add(x, b.parameter("pos_embedding", {1, side * side + 1, width}, Init::normal(0.02), "vit"));
    x = b.dropout("dropout", x, params.dropout);
    for (int64_t i = 0; i < params.num_layers; ++i) x = encoder_block(b, cat("layers.encoder_layer_", i), x, params);
    // The classifier reads only the first token, and tokens are normalized independently.
    x = b.layer_norm("ln", squeeze(slice(x, 1, 0, 1), 1), kNorm);
  }
  const auto init = b.use_init({.linear_weight = Init::zeros(), .linear_bias = Init::zeros()});
  return {{"logits", b.linear("heads.head", x, {.out_features = params.num_classes})}};
}

template <int64_t kPatch, int64_t kLayers, int64_t kHeads, int64_t kWidth>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<VitParams>();
  params->patch_size = kPatch;
  params->num_layers = kLayers;
  params->num_heads = kHeads;
  params->hidden_dim = kWidth;
  params->mlp_dim = 4 * kWidth;
  return params;
}

ModelInfo info(const Options& options) {
  const int64_t size = params_of<VitParams>(options).image_size;
  return {"vit", ModelOutput::kClasses, {3, size, size}, image_names()};
}

}  // namespace

ModelTable vit_models() {
  return {
      {{"vit_b_16", "ViT-B/16 (Dosovitskiy et al. 2020), 86.6 M parameters", make<16, 12, 12, 768>}, vit, info},
      {{"vit_b_32", "ViT-B/32, 88.2 M parameters", make<32, 12, 12, 768>}, vit, info},
      {{"vit_l_16", "ViT-L/16, 304.3 M parameters", make<16, 24, 16, 1024>}, vit, info},
      {{"vit_l_32", "ViT-L/32, 306.5 M parameters", make<32, 24, 16, 1024>}, vit, info},
      {{"vit_h_14", "ViT-H/14, 632.0 M parameters", make<14, 32, 16, 1280>}, vit, info},
  };
}

}  // namespace galley
