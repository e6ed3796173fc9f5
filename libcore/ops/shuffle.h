#pragma once
// channel_shuffle: mixes the channels of groups (Zhang et al. 2017, ShuffleNet). It is one operator instead of reshape, permute and
// reshape, whose arrays of rank 5 would lose channels_last.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct ChannelShuffleAttrs : OptionsOf<ChannelShuffleAttrs> {
  int64_t groups = 1;  // divides the channels
  void options(OptionVisitor& v) override;
};

const OpDef& channel_shuffle_op();

/// x [N,C,...] -> the same shape. With P = C / groups channels in each group, output channel p * groups + g is input channel g * P + p. As
/// torch.nn.functional.channel_shuffle. The inverse is a shuffle with P groups.
Value channel_shuffle(Value x, const ChannelShuffleAttrs& attrs);
Value channel_shuffle(Value x, int64_t groups);

}  // namespace galley
