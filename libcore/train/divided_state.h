#pragma once
// DividedState: arrays of which a rank holds a part, as the whole tensors that checkpoints and files of weights contain.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libcore/weights/checkpoint.h"
#include "libcore/weights/safetensors.h"

namespace galley {

/// Checkpoints name tensors after parameters ("fc.weight.exp_avg") and know ranges of them, so that they can be loaded by any number of
/// ranks and with any strategy. Files of weights are written by rank 0; a few arrays at a time are whole there.
class DividedState {
 public:
  virtual ~DividedState() = default;

  /// Whether the state of the store is a part.
  virtual bool is_range(const std::string& state) const = 0;
  /// Whether there is a whole array of that name.
  virtual bool has(const std::string& name) const = 0;
  /// Reads this rank's part of a tensor: `read` fills the elements from `begin` on.
  virtual void load(const std::string& name, DType dtype, const Shape& shape,
                    const std::function<void(int64_t begin, std::span<std::byte> to)>& read) = 0;
  /// What this rank writes to a checkpoint. All ranks call it. Sums of gradients (".grad") are zero between steps and not part of it.
  virtual std::vector<CheckpointPiece> pieces() = 0;

  /// A whole array, for rank 0, while all other ranks are in serve(). Rank 0 calls finish() afterwards, also after an error.
  virtual TensorSource source(const std::string& name) = 0;
  virtual void serve() = 0;
  virtual void finish() = 0;
};

}  // namespace galley
