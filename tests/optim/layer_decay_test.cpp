// Law: the layers of models with the names of transformers, torchvision and minGPT, counted by hand.
#include "libcore/optim/layer_decay.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

using Layers = std::vector<int>;

TEST(LayerDecay, CountsTheLayersAboveAParameter) {
  EXPECT_EQ(layers_above({"bert.embeddings.word_embeddings", "bert.embeddings.LayerNorm", "bert.encoder.layer.0.attention.self.query",
                          "bert.encoder.layer.0.output.dense", "bert.encoder.layer.1.output.dense", "bert.pooler.dense", "classifier"}),
            (Layers{3, 3, 2, 2, 1, 0, 0}));
  EXPECT_EQ(layers_above({"conv1", "bn1", "layer1.0.conv1", "layer1.0.downsample.0", "layer1.1.bn1", "layer2.0.conv1", "fc"}),
            (Layers{4, 4, 3, 3, 2, 1, 0}));
  EXPECT_EQ(layers_above({"conv_proj", "encoder", "encoder.layers.encoder_layer_0.ln_1", "encoder.layers.encoder_layer_0.mlp.3",
                          "encoder.layers.encoder_layer_1.ln_1", "encoder.ln", "heads.head"}),
            (Layers{3, 3, 2, 2, 1, 0, 0}));
}

TEST(LayerDecay, ModelsWithoutABodyOrAHead) {
  EXPECT_EQ(layers_above({}), Layers{});
  EXPECT_EQ(layers_above({"fc1", "fc2"}), (Layers{0, 0})) << "fc1 is not an item of a list";
  EXPECT_EQ(layers_above({"features.0", "features.3", "classifier.6"}), (Layers{2, 1, 0})) << "the last block is the head";
  EXPECT_EQ(layers_above({"encoder.layers.0.linear1", "encoder.norm", "decoder.layers.0.linear1"}), (Layers{1, 1, 0}))
      << "what stands between blocks belongs to the one before";
}

}  // namespace
}  // namespace galley
