#include "libcore/ops/shuffle.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"

namespace galley {

void ChannelShuffleAttrs::options(OptionVisitor& v) {
  v.option({.name = "groups", .doc = "number of groups", .min = 1, .required = true, .main = true}, groups);
}

const OpDef& channel_shuffle_op() {
  static const OpDef def{.name = "channel_shuffle",
                         .doc = "interleaves the channels of groups (Zhang et al. 2017)",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ChannelShuffleAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           const int64_t groups = c.attrs<ChannelShuffleAttrs>().groups;
                           GALLEY_CHECK(c.in(0).shape.rank() >= 2, "the input must be [N,C,...], not ", c.in(0));
                           GALLEY_CHECK(groups >= 1 && c.in(0).shape[1] % groups == 0, "groups=", groups, " does not divide the ",
                                        c.in(0).shape[1], " channels of ", c.in(0).shape);
                           TensorType y = c.in(0);
                           y.format = {};
                           return {y};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               const int64_t channels = g.in(0).shape()[1];
                               g.set(0, channel_shuffle(g.grad(), channels == 0 ? 1 : channels / g.attrs<ChannelShuffleAttrs>().groups));
                             },
                         .quantize = QuantizeRule::kPassThrough,
                         .definition = definition::channel_shuffle,
                         .cases = {"channel_shuffle:16x116x28x28:groups=2", "channel_shuffle:16x116x28x28:groups=58"}};
  return def;
}

Value channel_shuffle(Value x, const ChannelShuffleAttrs& attrs) { return emit("channel_shuffle", {x}, attrs); }
Value channel_shuffle(Value x, int64_t groups) {
  ChannelShuffleAttrs attrs;
  attrs.groups = groups;
  return channel_shuffle(x, attrs);
}

OpTable shuffle_ops() { return {&channel_shuffle_op()}; }

}  // namespace galley
