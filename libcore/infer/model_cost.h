#pragma once
// What a model of the zoo costs, from its captured graph: no data, no memory.

#include <cstdint>
#include <optional>
#include <string>

namespace galley {

struct ModelCost {
  int64_t parameters = 0;  ///< Elements; buffers do not count.
  double flops = 0;        ///< Of one sample; two a multiply-add.
  double activations = 0;  ///< Elements that convolutions and matrix products give (Radosavovic et al. 2020, section 3).
};

/// Cost on an image of that size (0: the model's usual one) with the model's default parameters; none where the zoo has no such model,
/// or it does not take images of that size.
std::optional<ModelCost> model_cost(const std::string& model, int64_t input_size);

}  // namespace galley
