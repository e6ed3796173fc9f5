// GoogLeNet (Szegedy et al. 2014) and Inception-v3 (Szegedy et al. 2015) with their auxiliary classifiers, as in torchvision.

#include <array>
#include <span>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct InceptionParams : OptionsOf<InceptionParams> {
  int64_t num_classes = 1000;
  bool aux_logits = true;
  double aux_loss_weight = 0.3;
  bool transform_input = false;
  double dropout = 0.2;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "aux_logits", .doc = "add auxiliary classifiers, which are used in training"}, aux_logits);
    v.option({.name = "aux_loss_weight", .doc = "weight of each auxiliary classifier's loss in training", .min = 0}, aux_loss_weight);
    v.option(
        {.name = "transform_input",
         .doc = "convert inputs normalized by ImageNet's mean and deviation to a mean and deviation of 0.5, as torchvision's weights need"},
        transform_input);
    v.option({.name = "dropout", .doc = "dropout before the classifier", .min = 0, .max = 1}, dropout);
  }
};
struct GoogLeNetParams : InceptionParams {
  double dropout_aux = 0.7;
  void options(OptionVisitor& v) override {
    InceptionParams::options(v);
    v.option({.name = "dropout_aux", .doc = "dropout in the auxiliary classifiers", .min = 0, .max = 1}, dropout_aux);
  }
  std::unique_ptr<Options> clone() const override { return std::make_unique<GoogLeNetParams>(*this); }
};

struct BasicConv {
  int64_t channels;
  Size2 kernel = 1;
  int64_t stride = 1;
  Size2 padding = 0;
};
Value basic_conv(Builder& b, std::string_view name, Value x, const BasicConv& options) {
  const auto module = b.scope(name);
  x = b.conv2d("conv", x,
               {.out_channels = options.channels,
                .kernel_size = options.kernel,
                .stride = options.stride,
                .padding = options.padding,
                .bias = false});
  return relu(b.batch_norm("bn", x, {.eps = 0.001}));
}

/// (x * std + mean - 0.5) / 0.5 per channel.
Value transform(Builder& b, Value x) {
  GALLEY_CHECK(x.channels() == 3, "transform_input needs images of 3 channels, but the input is ", x.type());
  constexpr std::array kMean{0.485, 0.456, 0.406}, kStd{0.229, 0.224, 0.225};
  const auto module = b.scope("transform_input");
  std::vector<Value> channels = split(x, {1, 1, 1});
  for (size_t c = 0; c < 3; ++c) channels[c] = affine(channels[c], kStd[c] / 0.5, (kMean[c] - 0.5) / 0.5);
  return concat({channels[0], channels[1], channels[2]});
}

// ---- GoogLeNet

struct Mixed {
  const char* name;
  int64_t c1, c3_reduced, c3, c5_reduced, c5, pooled;
};

Value mixed(Builder& b, const Mixed& m, Value x) {
  const auto module = b.scope(m.name);
  const Value one = basic_conv(b, "branch1", x, {m.c1});
  const auto reduced = [&](std::string_view name, int64_t first, int64_t channels) {
    const auto branch = b.scope(name);
    return basic_conv(b, "1", basic_conv(b, "0", x, {first}), {channels, 3, 1, 1});
  };
  const Value three = reduced("branch2", m.c3_reduced, m.c3);
  const Value five = reduced("branch3", m.c5_reduced, m.c5);  // torchvision uses 3x3 here, the paper 5x5
  const auto branch = b.scope("branch4");
  return concat(
      {one, three, five, basic_conv(b, "1", max_pool(x, {.kernel_size = 3, .stride = 1, .padding = 1, .ceil_mode = true}), {m.pooled})});
}

Value googlenet_aux(Builder& b, std::string_view name, Value x, const GoogLeNetParams& params) {
  const auto module = b.scope(name);
  x = flatten(basic_conv(b, "conv", adaptive_avg_pool(x, 4), {128}));
  x = relu(b.linear("fc1", x, {.out_features = 1024}));
  x = b.dropout("dropout", x, params.dropout_aux);
  return b.linear("fc2", x, {.out_features = params.num_classes});
}

NamedValues googlenet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<GoogLeNetParams>(options);
  const auto init = b.use_init({.conv_weight = Init::truncated_normal(0.01), .linear_weight = Init::truncated_normal(0.01)});
  const PoolOptions pool{.kernel_size = 3, .stride = 2, .ceil_mode = true};
  if (params.transform_input) x = transform(b, x);
  x = max_pool(basic_conv(b, "conv1", x, {64, 7, 2, 3}), pool);
  x = basic_conv(b, "conv3", basic_conv(b, "conv2", x, {64}), {192, 3, 1, 1});
  x = mixed(b, {"inception3a", 64, 96, 128, 16, 32, 32}, max_pool(x, pool));
  x = mixed(b, {"inception3b", 128, 128, 192, 32, 96, 64}, x);
  x = mixed(b, {"inception4a", 192, 96, 208, 16, 48, 64}, max_pool(x, pool));
  const Value early = x;
  x = mixed(b, {"inception4b", 160, 112, 224, 24, 64, 64}, x);
  x = mixed(b, {"inception4c", 128, 128, 256, 24, 64, 64}, x);
  x = mixed(b, {"inception4d", 112, 144, 288, 32, 64, 64}, x);
  const Value late = x;
  x = mixed(b, {"inception4e", 256, 160, 320, 32, 128, 128}, x);
  x = mixed(b, {"inception5a", 256, 160, 320, 32, 128, 128}, max_pool(x, {.kernel_size = 2, .ceil_mode = true}));
  x = mixed(b, {"inception5b", 384, 192, 384, 48, 128, 128}, x);
  NamedValues results(1);
  if (params.aux_logits) {
    // Evaluation captures them for their parameters too. Their outputs are then unused, and compilation removes the nodes.
    const Value aux1 = googlenet_aux(b, "aux1", early, params), aux2 = googlenet_aux(b, "aux2", late, params);
    if (b.training()) results.insert(results.end(), {{"aux2", aux2}, {"aux1", aux1}});
  }
  x = b.dropout("dropout", flatten(global_avg_pool(x)), params.dropout);
  results.front() = {"logits", b.linear("fc", x, {.out_features = params.num_classes})};
  return results;
}

// ---- Inception-v3

/// Convolutions in sequence, named `name`_1, `name`_2, ...
Value chain(Builder& b, const std::string& name, Value x, std::span<const BasicConv> convolutions) {
  int index = 1;
  for (const BasicConv& options : convolutions) x = basic_conv(b, cat(name, "_", index++), x, options);
  return x;
}
Value chain(Builder& b, const std::string& name, Value x, std::initializer_list<BasicConv> convolutions) {
  return chain(b, name, x, std::span(convolutions.begin(), convolutions.size()));
}

const Size2 kRow(1, 7), kRowPadding(0, 3), kColumn(7, 1), kColumnPadding(3, 0);
const PoolOptions kSamePool{.kernel_size = 3, .stride = 1, .padding = 1};
const PoolOptions kHalfPool{.kernel_size = 3, .stride = 2};

// Figures 5, 6 and 7 of the paper, and the blocks between them that halve the size.
Value inception_a(Builder& b, std::string_view name, Value x, int64_t pooled) {
  const auto module = b.scope(name);
  const Value one = basic_conv(b, "branch1x1", x, {64});
  const Value five = chain(b, "branch5x5", x, {{48}, {64, 5, 1, 2}});
  const Value three = chain(b, "branch3x3dbl", x, {{64}, {96, 3, 1, 1}, {96, 3, 1, 1}});
  return concat({one, five, three, basic_conv(b, "branch_pool", avg_pool(x, kSamePool), {pooled})});
}
Value inception_b(Builder& b, std::string_view name, Value x) {
  const auto module = b.scope(name);
  const Value three = basic_conv(b, "branch3x3", x, {384, 3, 2});
  const Value twice = chain(b, "branch3x3dbl", x, {{64}, {96, 3, 1, 1}, {96, 3, 2}});
  return concat({three, twice, max_pool(x, kHalfPool)});
}
Value inception_c(Builder& b, std::string_view name, Value x, int64_t width) {
  const auto module = b.scope(name);
  const Value one = basic_conv(b, "branch1x1", x, {192});
  const Value seven = chain(b, "branch7x7", x, {{width}, {width, kRow, 1, kRowPadding}, {192, kColumn, 1, kColumnPadding}});
  const Value twice = chain(b, "branch7x7dbl", x,
                            {{width},
                             {width, kColumn, 1, kColumnPadding},
                             {width, kRow, 1, kRowPadding},
                             {width, kColumn, 1, kColumnPadding},
                             {192, kRow, 1, kRowPadding}});
  return concat({one, seven, twice, basic_conv(b, "branch_pool", avg_pool(x, kSamePool), {192})});
}
Value inception_d(Builder& b, std::string_view name, Value x) {
  const auto module = b.scope(name);
  const Value three = chain(b, "branch3x3", x, {{192}, {320, 3, 2}});
  const Value seven = chain(b, "branch7x7x3", x, {{192}, {192, kRow, 1, kRowPadding}, {192, kColumn, 1, kColumnPadding}, {192, 3, 2}});
  return concat({three, seven, max_pool(x, kHalfPool)});
}
Value inception_e(Builder& b, std::string_view name, Value x) {
  const auto module = b.scope(name);
  const auto fork = [&](const std::string& branch, Value y) {
    const Value row = basic_conv(b, branch + "a", y, {384, {1, 3}, 1, {0, 1}});
    return concat({row, basic_conv(b, branch + "b", y, {384, {3, 1}, 1, {1, 0}})});
  };
  const Value one = basic_conv(b, "branch1x1", x, {320});
  const Value three = fork("branch3x3_2", basic_conv(b, "branch3x3_1", x, {384}));
  const Value twice = fork("branch3x3dbl_3", chain(b, "branch3x3dbl", x, {{448}, {384, 3, 1, 1}}));
  return concat({one, three, twice, basic_conv(b, "branch_pool", avg_pool(x, kSamePool), {192})});
}

Value inception_aux(Builder& b, Value x, int64_t classes) {
  const auto module = b.scope("AuxLogits");
  GALLEY_CHECK(!b.training() || (x.shape()[2] >= 17 && x.shape()[3] >= 17),
               "[inception_v3] training with the auxiliary classifier needs images of at least 299 pixels, "
               "which give features of 17 rows and columns, not ",
               x.type(), "; use larger images or aux_logits=false");
  // Evaluation needs only the parameters of the classifier, so any image size is valid.
  x = b.training() ? avg_pool(x, {.kernel_size = 5, .stride = 3}) : adaptive_avg_pool(x, 5);
  x = basic_conv(b, "conv1", basic_conv(b, "conv0", x, {128}), {768, 5});
  const auto init = b.use_init({.linear_weight = Init::truncated_normal(0.001)});
  return b.linear("fc", flatten(global_avg_pool(x)), {.out_features = classes});
}

NamedValues inception_v3(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<InceptionParams>(options);
  const auto init = b.use_init({.conv_weight = Init::truncated_normal(0.1), .linear_weight = Init::truncated_normal(0.1)});
  if (params.transform_input) x = transform(b, x);
  x = basic_conv(b, "Conv2d_1a_3x3", x, {32, 3, 2});
  x = basic_conv(b, "Conv2d_2a_3x3", x, {32, 3});
  x = basic_conv(b, "Conv2d_2b_3x3", x, {64, 3, 1, 1});
  x = basic_conv(b, "Conv2d_3b_1x1", max_pool(x, kHalfPool), {80});
  x = basic_conv(b, "Conv2d_4a_3x3", x, {192, 3});
  x = inception_a(b, "Mixed_5b", max_pool(x, kHalfPool), 32);
  x = inception_a(b, "Mixed_5c", x, 64);
  x = inception_a(b, "Mixed_5d", x, 64);
  x = inception_b(b, "Mixed_6a", x);
  x = inception_c(b, "Mixed_6b", x, 128);
  x = inception_c(b, "Mixed_6c", x, 160);
  x = inception_c(b, "Mixed_6d", x, 160);
  x = inception_c(b, "Mixed_6e", x, 192);
  NamedValues results(1);
  if (params.aux_logits) {
    const Value aux = inception_aux(b, x, params.num_classes);
    if (b.training()) results.emplace_back("aux", aux);
  }
  x = inception_d(b, "Mixed_7a", x);
  x = inception_e(b, "Mixed_7b", x);
  x = inception_e(b, "Mixed_7c", x);
  x = flatten(b.dropout("dropout", global_avg_pool(x), params.dropout));
  results.front() = {"logits", b.linear("fc", x, {.out_features = params.num_classes})};
  return results;
}

// ---- table

ModelInfo googlenet_info(const Options& options) {
  const auto& params = params_of<GoogLeNetParams>(options);
  ModelInfo info{"googlenet", ModelOutput::kClasses, {3, 224, 224}, image_names()};
  if (params.aux_logits) info.loss_weights = {{"aux1", params.aux_loss_weight}, {"aux2", params.aux_loss_weight}};
  return info;
}
ModelInfo inception_v3_info(const Options& options) {
  const auto& params = params_of<InceptionParams>(options);
  ModelInfo info{"inception", ModelOutput::kClasses, {3, 299, 299}, image_names()};
  if (params.aux_logits) info.loss_weights = {{"aux", params.aux_loss_weight}};
  return info;
}

std::unique_ptr<Options> make_inception_v3() {
  auto params = std::make_unique<InceptionParams>();
  params->aux_loss_weight = 0.4;
  params->dropout = 0.5;
  return params;
}

}  // namespace

ModelTable inception_models() {
  return {
      {{"googlenet", "GoogLeNet (Szegedy et al. 2014), 13.0 M parameters, 6.6 M without auxiliary classifiers",
        make_options<GoogLeNetParams>},
       googlenet,
       googlenet_info},
      {{"inception_v3", "Inception-v3 (Szegedy et al. 2015), 27.2 M parameters", make_inception_v3}, inception_v3, inception_v3_info},
  };
}

}  // namespace galley
