#pragma once
// The depth of parameters in a model, for learning rates that fall from the head to the embeddings (train.optimizer.layer_decay).

#include <string>
#include <vector>

namespace galley {

/// For each parameter, given the path of its module in the order of the model: the number of layers above it. A block is the outermost
/// module whose name is a number, or ends in "_" and a number: encoder.layer.3, layer1.0, encoder_layer_3. A layer is what stands before
/// the first block, each block with what follows it, and what stands after the last. Without blocks all are in one layer.
std::vector<int> layers_above(const std::vector<std::string>& modules);

}  // namespace galley
