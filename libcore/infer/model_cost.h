#pragma once
// The cost of a zoo model, computed from its captured graph without data or memory for its values.

#include <cstdint>
#include <optional>
#include <string>

namespace galley {

struct ModelCost {
  int64_t parameters = 0;  ///< Number of elements, without buffers.
  double flops = 0;        ///< Per sample, two per multiply-add.
  double activations = 0;  ///< Output elements of convolutions and matrix products (Radosavovic et al. 2020, section 3).
};

/// The cost for an image of this size (0: the model's default) with the model's default parameters. Returns nullopt if the zoo has no such
/// model or the model does not accept this size.
std::optional<ModelCost> model_cost(const std::string& model, int64_t input_size);

}  // namespace galley
