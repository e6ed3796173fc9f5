#pragma once
// channel_shuffle: mixes the channels of groups (Zhang et al. 2017, ShuffleNet). One operator and not reshape, permute, reshape: those pass
// through rank 5, where an image would lose channels_last.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct ChannelShuffleAttrs : OptionsOf<ChannelShuffleAttrs> {
  int64_t groups = 1;  // divides the channels
  void options(OptionVisitor& v) override;
};

const OpDef& channel_shuffle_op();

/// x [N,C,...] -> the same shape: of `groups` parts of C / groups = P channels, the first of each, then the second of each: output channel
/// p * groups + g is input channel g * P + p. As torch.nn.functional.channel_shuffle. Its inverse has P groups.
Value channel_shuffle(Value x, const ChannelShuffleAttrs& attrs);
Value channel_shuffle(Value x, int64_t groups);

}  // namespace galley
