#include "libcore/nn/layer_kinds.h"

#include <functional>

#include "libcore/nn/capture.h"
#include "libcore/nn/layer_spec.h"
#include "libcore/nn/recurrent.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/softmax.h"

namespace galley {
namespace {

using Inputs = std::span<const Value>;
using BuildLayer = std::function<Value(Builder& b, std::string_view name, const Options& params, Inputs inputs)>;

struct LayerEntry {
  ComponentKind kind;
  BuildLayer build;
  bool several = false;  // takes two or more inputs; others take one
};

Size2 size2(std::string_view key, const std::vector<int64_t>& v) {
  GALLEY_CHECK(v.size() == 1 || v.size() == 2, key, " needs one number or two (rows, columns), not ", v.size());
  return {v.front(), v.back()};
}

Size3 size3(std::string_view key, const std::vector<int64_t>& v) {
  GALLEY_CHECK(v.size() == 1 || v.size() == 3, key, " needs one number or three (depth, rows, columns), not ", v.size());
  return v.size() == 1 ? Size3(v.front()) : Size3(v[0], v[1], v[2]);
}

/// Converts a negative axis, counted from the end, to a non-negative one.
int64_t checked_axis(std::string_view key, int64_t axis, int rank) {
  GALLEY_CHECK(axis >= -rank && axis < rank, key, "=", axis, " is outside the dimensions of an input of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

struct NoParams : OptionsOf<NoParams> {
  void options(OptionVisitor&) override {}
};

// ---- layers with parameters

struct Conv2dLayer : OptionsOf<Conv2dLayer> {
  int64_t out_channels = 1;
  std::vector<int64_t> kernel_size{1}, stride{1}, padding{0}, dilation{1};
  int64_t groups = 1;
  bool bias = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "out_channels", .doc = "channels of the output", .min = 1, .required = true}, out_channels);
    v.option({.name = "kernel_size", .doc = "[depth,] rows and columns of the kernel", .min = 1, .required = true}, kernel_size);
    v.option({.name = "stride", .doc = "stride of the kernel", .min = 1}, stride);
    v.option({.name = "padding", .doc = "zero padding on each side", .min = 0}, padding);
    v.option({.name = "dilation", .doc = "spacing between the kernel's elements", .min = 1}, dilation);
    v.option({.name = "groups", .doc = "groups of channels, each convolved separately", .min = 1}, groups);
    v.option({.name = "bias", .doc = "add a learned bias to each channel"}, bias);
  }
};
Conv2dOptions conv2d_options(const Options& options) {
  const auto& p = params_of<Conv2dLayer>(options);
  return {.out_channels = p.out_channels,
          .kernel_size = size2("kernel_size", p.kernel_size),
          .stride = size2("stride", p.stride),
          .padding = size2("padding", p.padding),
          .dilation = size2("dilation", p.dilation),
          .groups = p.groups,
          .bias = p.bias};
}
Value build_conv2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  return b.conv2d(name, in[0], conv2d_options(options));
}
/// Inputs: x, offsets, and a mask if there are three.
Value build_deform_conv2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  GALLEY_CHECK(in.size() <= 3, "deform_conv2d takes x, offsets and a mask, but ", in.size(), " inputs are given");
  return b.deform_conv2d(name, in[0], in[1], conv2d_options(options), in.size() == 3 ? in[2] : Value{});
}

Value build_conv3d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<Conv2dLayer>(options);
  return b.conv3d(name, in[0],
                  {.out_channels = p.out_channels,
                   .kernel_size = size3("kernel_size", p.kernel_size),
                   .stride = size3("stride", p.stride),
                   .padding = size3("padding", p.padding),
                   .dilation = size3("dilation", p.dilation),
                   .groups = p.groups,
                   .bias = p.bias});
}

struct LinearLayer : OptionsOf<LinearLayer> {
  int64_t out_features = 1;
  bool bias = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "out_features", .doc = "size of the last dimension of the output", .min = 1, .required = true}, out_features);
    v.option({.name = "bias", .doc = "add a learned bias to each feature"}, bias);
  }
};
Value build_linear(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<LinearLayer>(options);
  return b.linear(name, in[0], {.out_features = p.out_features, .bias = p.bias});
}

struct BatchNormLayer : OptionsOf<BatchNormLayer> {
  double eps = 1e-5, momentum = 0.1;
  bool affine = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
    v.option({.name = "momentum", .doc = "weight of a batch in the running statistics", .min = 0, .max = 1}, momentum);
    v.option({.name = "affine", .doc = "learned scale and shift of each channel"}, affine);
  }
};
Value build_batch_norm(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<BatchNormLayer>(options);
  return b.batch_norm(name, in[0], {.eps = p.eps, .momentum = p.momentum, .affine = p.affine});
}

struct LayerNormLayer : OptionsOf<LayerNormLayer> {
  int64_t dims = 1;
  double eps = 1e-5;
  bool affine = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "dims", .doc = "number of trailing dimensions to normalize", .min = 1, .max = 7}, dims);
    v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
    v.option({.name = "affine", .doc = "learned scale and shift of each element"}, affine);
  }
};
Value build_layer_norm(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<LayerNormLayer>(options);
  return b.layer_norm(name, in[0], {.dims = p.dims, .eps = p.eps, .affine = p.affine});
}

struct GroupNormLayer : OptionsOf<GroupNormLayer> {
  int64_t num_groups = 1;
  double eps = 1e-5;
  bool affine = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_groups", .doc = "groups of channels, each normalized separately", .min = 1, .required = true}, num_groups);
    v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
    v.option({.name = "affine", .doc = "learned scale and shift of each channel"}, affine);
  }
};
Value build_group_norm(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<GroupNormLayer>(options);
  return b.group_norm(name, in[0], {.groups = p.num_groups, .eps = p.eps, .affine = p.affine});
}

struct EmbeddingLayer : OptionsOf<EmbeddingLayer> {
  int64_t num_embeddings = 1, embedding_dim = 1;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_embeddings", .doc = "rows of the table", .min = 1, .required = true}, num_embeddings);
    v.option({.name = "embedding_dim", .doc = "columns of the table", .min = 1, .required = true}, embedding_dim);
  }
};
Value build_embedding(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<EmbeddingLayer>(options);
  return b.embedding(name, in[0], {.rows = p.num_embeddings, .width = p.embedding_dim});
}

struct PReluLayer : OptionsOf<PReluLayer> {
  int64_t num_parameters = 1;
  double init = 0.25;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_parameters", .doc = "learned slopes: 1 for all channels, or one for each", .min = 1, .main = true},
             num_parameters);
    v.option({.name = "init", .doc = "initial slope"}, init);
  }
};
Value build_prelu(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<PReluLayer>(options);
  return b.prelu(name, in[0], {.num_parameters = p.num_parameters, .init = p.init});
}

template <Cell kCell>
struct RecurrentLayer : OptionsOf<RecurrentLayer<kCell>> {
  int64_t hidden_size = 1, num_layers = 1;
  bool bias = true, bidirectional = false;
  double dropout = 0;
  Nonlinearity nonlinearity = Nonlinearity::kTanh;
  void options(OptionVisitor& v) override {
    v.option({.name = "hidden_size", .doc = "units per layer", .min = 1, .required = true}, hidden_size);
    v.option({.name = "num_layers", .doc = "number of stacked layers", .min = 1}, num_layers);
    v.option({.name = "bias", .doc = "add learned biases to the gates"}, bias);
    v.option({.name = "dropout", .doc = "dropout on the output of each layer except the last", .min = 0, .max = 1}, dropout);
    v.option({.name = "bidirectional", .doc = "also read the sequence backward; twice the output features"}, bidirectional);
    if (kCell == Cell::kRnn) v.choice({.name = "nonlinearity", .doc = "tanh or relu"}, nonlinearity, kNonlinearityNames);
  }
};
template <Cell kCell>
Value build_recurrent(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto& p = params_of<RecurrentLayer<kCell>>(options);
  return recurrent(b, name, in[0],
                   {.cell = kCell,
                    .hidden_size = p.hidden_size,
                    .num_layers = p.num_layers,
                    .bias = p.bias,
                    .dropout = p.dropout,
                    .bidirectional = p.bidirectional,
                    .nonlinearity = p.nonlinearity})
      .y;
}

// ---- random

struct DropLayer : OptionsOf<DropLayer> {
  double p = 0.5;
  void options(OptionVisitor& v) override { v.option({.name = "p", .doc = "drop probability", .min = 0, .max = 1, .main = true}, p); }
};
Value build_dropout(Builder& b, std::string_view name, const Options& options, Inputs in) {
  return b.dropout(name, in[0], params_of<DropLayer>(options).p);
}
Value build_stochastic_depth(Builder& b, std::string_view name, const Options& options, Inputs in) {
  return b.stochastic_depth(name, in[0], params_of<DropLayer>(options).p);
}

// ---- functions of one value

/// The layer of a row of the table of element-wise functions. It has the operator's name and attributes. A function of two values accepts
/// any number of inputs and applies it from the first to the last.
LayerEntry function_layer(const ElementwiseRow& row) {
  const auto build = [&row](Builder& b, std::string_view name, const Options& options, Inputs in) {
    const auto module = b.scope(name);
    if (row.arity() == 1) return emit_all(row.name, row.make_attrs != nullptr ? options.clone() : nullptr, in.first(1)).front();
    Value result = in[0];
    for (const Value& next : in.subspan(1)) result = emit(row.name, {result, next});
    return result;
  };
  return {{row.name, row.layer, row.make_attrs != nullptr ? row.make_attrs : make_options<NoParams>}, build, row.arity() > 1};
}

struct AxisLayer : OptionsOf<AxisLayer> {
  int64_t dim = 1;
  void options(OptionVisitor& v) override {
    v.option({.name = "dim", .doc = "dimension; negative: from the end", .min = -8, .max = 7, .main = true}, dim);
  }
};
template <bool kLog>
Value build_softmax(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  SoftmaxAttrs attrs;
  attrs.axis = checked_axis("dim", params_of<AxisLayer>(options).dim, in[0].shape().rank());
  return emit(kLog ? "log_softmax" : "softmax", {in[0]}, attrs);
}

// ---- pooling and resizing

struct MaxPoolLayer : OptionsOf<MaxPoolLayer> {
  std::vector<int64_t> kernel_size{2}, stride, padding{0}, dilation{1};
  bool ceil_mode = false;
  void options(OptionVisitor& v) override {
    v.option({.name = "kernel_size", .doc = "[depth,] rows and columns of the window", .min = 1, .required = true, .main = true},
             kernel_size);
    v.option({.name = "stride", .doc = "stride of the window; default: its size", .min = 1}, stride);
    v.option({.name = "padding", .doc = "padding on each side", .min = 0}, padding);
    v.option({.name = "dilation", .doc = "spacing between the window's elements", .min = 1}, dilation);
    v.option({.name = "ceil_mode", .doc = "the last window may extend over the edge (sizes are rounded up)"}, ceil_mode);
  }
};
MaxPool2dAttrs max_pool_attrs(const Options& options) {
  const auto& p = params_of<MaxPoolLayer>(options);
  MaxPool2dAttrs attrs;
  attrs.kernel_size = p.kernel_size;
  attrs.stride = p.stride;
  attrs.padding = p.padding;
  attrs.dilation = p.dilation;
  attrs.ceil_mode = p.ceil_mode;
  return attrs;
}
Value build_max_pool2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return emit("max_pool2d", {in[0]}, max_pool_attrs(options));
}
Value build_max_pool3d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return max_pool3d(in[0], max_pool_attrs(options));
}

struct AvgPoolLayer : OptionsOf<AvgPoolLayer> {
  std::vector<int64_t> kernel_size{2}, stride, padding{0};
  bool ceil_mode = false, count_include_pad = true;
  void options(OptionVisitor& v) override {
    v.option({.name = "kernel_size", .doc = "[depth,] rows and columns of the window", .min = 1, .required = true, .main = true},
             kernel_size);
    v.option({.name = "stride", .doc = "stride of the window; default: its size", .min = 1}, stride);
    v.option({.name = "padding", .doc = "zero padding on each side", .min = 0}, padding);
    v.option({.name = "ceil_mode", .doc = "the last window may extend over the edge (sizes are rounded up)"}, ceil_mode);
    v.option({.name = "count_include_pad", .doc = "include padding in the mean"}, count_include_pad);
  }
};
AvgPool2dAttrs avg_pool_attrs(const Options& options) {
  const auto& p = params_of<AvgPoolLayer>(options);
  AvgPool2dAttrs attrs;
  attrs.kernel_size = p.kernel_size;
  attrs.stride = p.stride;
  attrs.padding = p.padding;
  attrs.ceil_mode = p.ceil_mode;
  attrs.count_include_pad = p.count_include_pad;
  return attrs;
}
Value build_avg_pool2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return emit("avg_pool2d", {in[0]}, avg_pool_attrs(options));
}
Value build_avg_pool3d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return avg_pool3d(in[0], avg_pool_attrs(options));
}

struct AdaptivePoolLayer : OptionsOf<AdaptivePoolLayer> {
  std::vector<int64_t> output_size{1};
  void options(OptionVisitor& v) override {
    v.option({.name = "output_size", .doc = "[depth,] rows and columns of the output", .min = 1, .main = true}, output_size);
  }
};
Value build_adaptive_avg_pool2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return adaptive_avg_pool(in[0], size2("output_size", params_of<AdaptivePoolLayer>(options).output_size));
}
Value build_adaptive_avg_pool3d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  AdaptiveAvgPool2dAttrs attrs;
  attrs.output_size = size3("output_size", params_of<AdaptivePoolLayer>(options).output_size).list();
  return adaptive_avg_pool3d(in[0], attrs);
}
Value build_adaptive_max_pool2d(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  AdaptiveMaxPool2dAttrs attrs;
  attrs.output_size = size2("output_size", params_of<AdaptivePoolLayer>(options).output_size).list();
  return emit("adaptive_max_pool2d", {in[0]}, attrs);
}

struct InterpolateLayer : OptionsOf<InterpolateLayer> {
  std::vector<int64_t> size{1};
  ResizeMode mode = ResizeMode::kNearest;
  bool align_corners = false;
  void options(OptionVisitor& v) override {
    v.option({.name = "size", .doc = "[depth,] rows and columns of the output", .min = 1, .required = true, .main = true}, size);
    v.choice({.name = "mode", .doc = "interpolation"}, mode, kResizeModeNames);
    v.option({.name = "align_corners", .doc = "align the centers of the corner pixels (bilinear)"}, align_corners);
  }
};
Value build_interpolate(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  const auto& p = params_of<InterpolateLayer>(options);
  const Size2 size = size2("size", p.size);
  ResizeAttrs attrs;
  attrs.size = {size.h, size.w};
  attrs.mode = p.mode;
  attrs.align_corners = p.align_corners;
  return resize(in[0], attrs);
}

// ---- shapes

struct FlattenLayer : OptionsOf<FlattenLayer> {
  int64_t start_dim = 1, end_dim = -1;
  void options(OptionVisitor& v) override {
    v.option({.name = "start_dim", .doc = "first dimension to flatten", .min = -8, .max = 7}, start_dim);
    v.option({.name = "end_dim", .doc = "last dimension to flatten", .min = -8, .max = 7}, end_dim);
  }
};
Value build_flatten(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  const auto& p = params_of<FlattenLayer>(options);
  const int rank = in[0].shape().rank();
  const int64_t start = checked_axis("start_dim", p.start_dim, rank), end = checked_axis("end_dim", p.end_dim, rank);
  GALLEY_CHECK(start <= end, "start_dim=", p.start_dim, " comes after end_dim=", p.end_dim);
  return flatten(in[0], start, end);
}

struct ReshapeLayer : OptionsOf<ReshapeLayer> {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  void options(OptionVisitor& v) override {
    v.option({.name = "shape", .doc = "shape of the output, batch included; one size may be -1", .min = -1, .required = true, .main = true},
             shape);
    v.option({.name = "names", .doc = "names of the dimensions of the output"}, names);
  }
};
Value build_reshape(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  const auto& p = params_of<ReshapeLayer>(options);
  ReshapeAttrs attrs;
  attrs.shape = p.shape;
  attrs.names = p.names;
  return reshape(in[0], attrs);
}

struct RenameLayer : OptionsOf<RenameLayer> {
  std::vector<std::string> names;
  void options(OptionVisitor& v) override {
    v.option({.name = "names", .doc = "one per dimension, batch included, e.g. [N, C, H, W]", .required = true, .main = true}, names);
  }
};
Value build_rename(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  ReshapeAttrs attrs;
  attrs.shape.assign(in[0].shape().begin(), in[0].shape().end());
  attrs.names = params_of<RenameLayer>(options).names;
  GALLEY_CHECK(attrs.names.size() == attrs.shape.size(), "names has ", attrs.names.size(), " entries, but the input is ", in[0].type());
  return reshape(in[0], attrs);
}

struct PermuteLayer : OptionsOf<PermuteLayer> {
  std::vector<int64_t> dims;
  void options(OptionVisitor& v) override {
    v.option({.name = "dims",
              .doc = "dimension i of the output is dimension dims[i] of the input",
              .min = 0,
              .max = 7,
              .required = true,
              .main = true},
             dims);
  }
};
Value build_permute(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return permute(in[0], params_of<PermuteLayer>(options).dims);
}

Value build_channel_shuffle(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  return channel_shuffle(in[0], params_of<ChannelShuffleAttrs>(options));
}

struct PadLayer : OptionsOf<PadLayer> {
  std::vector<int64_t> pad;
  double value = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "pad",
              .doc = "before and after the last dimension, then the second last, ... (as torch.nn.functional.pad)",
              .min = 0,
              .required = true,
              .main = true},
             pad);
    v.option({.name = "value", .doc = "value of the new elements"}, value);
  }
};
Value build_pad(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  const auto& p = params_of<PadLayer>(options);
  const size_t rank = static_cast<size_t>(in[0].shape().rank());
  GALLEY_CHECK(p.pad.size() % 2 == 0 && p.pad.size() <= 2 * rank, "pad needs two numbers per dimension, but has ", p.pad.size(),
               " numbers for ", rank, " dimensions");
  std::vector<int64_t> padding(2 * rank, 0);
  for (size_t i = 0; i < p.pad.size(); i += 2) {
    padding[2 * rank - 2 - i] = p.pad[i];
    padding[2 * rank - 1 - i] = p.pad[i + 1];
  }
  return pad(in[0], std::move(padding), p.value);
}

struct MeanLayer : OptionsOf<MeanLayer> {
  std::vector<int64_t> dim;
  bool keepdim = false;
  void options(OptionVisitor& v) override {
    v.option({.name = "dim", .doc = "dimensions to average over", .min = -8, .max = 7, .required = true, .main = true}, dim);
    v.option({.name = "keepdim", .doc = "keep them, with size 1"}, keepdim);
  }
};
Value build_mean(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  const auto& p = params_of<MeanLayer>(options);
  return mean(in[0], p.dim, p.keepdim);
}

// ---- joins

Value build_concat(Builder& b, std::string_view name, const Options& options, Inputs in) {
  const auto module = b.scope(name);
  ConcatAttrs attrs;
  attrs.axis = checked_axis("dim", params_of<AxisLayer>(options).dim, in[0].shape().rank());
  return concat(in, attrs);
}
Value build_identity(Builder&, std::string_view, const Options&, Inputs in) { return in[0]; }

/// In the order of docs/recipe.md.
const std::vector<LayerEntry>& table() {
  static const std::vector<LayerEntry> entries = [] {
    std::vector<LayerEntry> all{
        {{"conv2d", "2-D convolution", make_options<Conv2dLayer>}, build_conv2d},
        {{"conv3d", "3-D convolution over [N,C,D,H,W]", make_options<Conv2dLayer>}, build_conv3d},
        {{"deform_conv2d", "2-D convolution whose taps are moved; inputs: [x, offsets] or [x, offsets, mask] (Zhu et al. 2019)",
          make_options<Conv2dLayer>},
         build_deform_conv2d,
         true},
        {{"linear", "matrix product over the last dimension", make_options<LinearLayer>}, build_linear},
        {{"batch_norm", "batch normalization over all dimensions but 1 (Ioffe, Szegedy 2015)", make_options<BatchNormLayer>},
         build_batch_norm},
        {{"layer_norm", "normalization over the last dimensions (Ba et al. 2016)", make_options<LayerNormLayer>}, build_layer_norm},
        {{"group_norm", "normalization over groups of channels (Wu, He 2018)", make_options<GroupNormLayer>}, build_group_norm},
        {{"embedding", "selects rows of a table by indices", make_options<EmbeddingLayer>}, build_embedding},
        {{"prelu", "x above 0, else a learned slope times x (He et al. 2015)", make_options<PReluLayer>}, build_prelu},
        {{"lstm", "LSTM over [N,T,C], zero state at the start (Hochreiter, Schmidhuber 1997)", make_options<RecurrentLayer<Cell::kLstm>>},
         build_recurrent<Cell::kLstm>},
        {{"gru", "GRU over [N,T,C], zero state at the start (Cho et al. 2014)", make_options<RecurrentLayer<Cell::kGru>>},
         build_recurrent<Cell::kGru>},
        {{"rnn", "plain recurrent layer over [N,T,C], zero state at the start (Elman 1990)", make_options<RecurrentLayer<Cell::kRnn>>},
         build_recurrent<Cell::kRnn>},
        {{"dropout", "drops elements while training", make_options<DropLayer>}, build_dropout},
        {{"stochastic_depth", "drops samples of a residual branch while training (Huang et al. 2016)", make_options<DropLayer>},
         build_stochastic_depth},
    };
    const auto add_functions = [&all](int arity) {
      for (const ElementwiseRow& row : elementwise_rows()) {
        if (!row.layer.empty() && row.arity() == arity) all.push_back(function_layer(row));
      }
    };
    const auto add = [&all](std::vector<LayerEntry> more) { all.insert(all.end(), more.begin(), more.end()); };
    add_functions(1);
    add({
        {{"softmax", "exponentials that sum to 1 along a dimension", make_options<AxisLayer>}, build_softmax<false>},
        {{"log_softmax", "logarithm of softmax", make_options<AxisLayer>}, build_softmax<true>},
        {{"max_pool2d", "largest value of each window", make_options<MaxPoolLayer>}, build_max_pool2d},
        {{"avg_pool2d", "mean of each window", make_options<AvgPoolLayer>}, build_avg_pool2d},
        {{"adaptive_avg_pool2d", "means over as many windows as the output has pixels", make_options<AdaptivePoolLayer>},
         build_adaptive_avg_pool2d},
        {{"adaptive_max_pool2d", "largest values of as many windows as the output has pixels", make_options<AdaptivePoolLayer>},
         build_adaptive_max_pool2d},
        {{"max_pool3d", "largest value of each window of [N,C,D,H,W]", make_options<MaxPoolLayer>}, build_max_pool3d},
        {{"avg_pool3d", "mean of each window of [N,C,D,H,W]", make_options<AvgPoolLayer>}, build_avg_pool3d},
        {{"adaptive_avg_pool3d", "means over as many windows of [N,C,D,H,W] as the output has elements", make_options<AdaptivePoolLayer>},
         build_adaptive_avg_pool3d},
        {{"interpolate", "resizes images", make_options<InterpolateLayer>}, build_interpolate},
        {{"flatten", "joins dimensions into one", make_options<FlattenLayer>}, build_flatten},
        {{"reshape", "the same elements in another shape", make_options<ReshapeLayer>}, build_reshape},
        {{"rename", "gives the dimensions names", make_options<RenameLayer>}, build_rename},
        {{"permute", "reorders dimensions", make_options<PermuteLayer>}, build_permute},
        {{"channel_shuffle", "interleaves the channels of groups (Zhang et al. 2017)", make_options<ChannelShuffleAttrs>},
         build_channel_shuffle},
        {{"pad", "adds a border of one value", make_options<PadLayer>}, build_pad},
        {{"mean", "averages over dimensions", make_options<MeanLayer>}, build_mean},
    });
    add_functions(2);
    add({
        {{"concat", "its inputs one after the other along a dimension", make_options<AxisLayer>}, build_concat, true},
        {{"identity", "its input", make_options<NoParams>}, build_identity},
    });
    return all;
  }();
  return entries;
}

}  // namespace

ComponentKinds layer_kinds() {
  static const std::vector<ComponentKind> kinds = [] {
    std::vector<ComponentKind> list;
    for (const LayerEntry& entry : table()) list.push_back(entry.kind);
    return list;
  }();
  return kinds;
}

Value build_layer(Builder& b, const Component& layer, std::string_view name, const std::vector<Value>& inputs) {
  for (const LayerEntry& entry : table()) {
    if (entry.kind.type != layer.type) continue;
    GALLEY_CHECK(entry.several || inputs.size() == 1, layer.type, " takes one input, but ", inputs.size(), " are given");
    GALLEY_CHECK(!entry.several || inputs.size() >= 2, layer.type, " takes two or more inputs, but has ", inputs.size(),
                 "; list them, e.g. inputs: [conv1, in]");
    return entry.build(b, name, *layer.params, inputs);
  }
  fail(ErrorCode::kRecipe, "there is no layer '", layer.type, "'");
}

}  // namespace galley
