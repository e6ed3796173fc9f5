#pragma once
// Arrays of which a rank holds a part, or none, as the whole tensors that checkpoints and files of weights contain.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libcore/weights/checkpoint.h"
#include "libcore/weights/safetensors.h"

namespace galley {

class Communicator;

/// Gives rank 0 whole arrays, a few at a time: it asks for one by its number, and all ranks work together to give it. Rank 0 writes files
/// of weights.
class WholeArrays {
 public:
  /// `ranks` must outlive the object. `serves`: whether these ranks work for rank 0; false: others do.
  explicit WholeArrays(Communicator& ranks, bool serves = true) : ranks_(ranks), serves_(serves) {}
  virtual ~WholeArrays() = default;
  WholeArrays(const WholeArrays&) = delete;
  WholeArrays& operator=(const WholeArrays&) = delete;

  /// Whether there is a whole array of that name.
  virtual bool has(const std::string& name) const = 0;
  /// A whole array, for rank 0, while all other ranks are in serve(). Rank 0 calls finish() afterwards, also after an error.
  virtual TensorSource source(const std::string& name) = 0;
  void serve();
  void finish();

 protected:
  /// For rank 0: asks all ranks for an array, and gives it.
  Tensor request(int64_t array);

 private:
  /// Called by all ranks in the same order.
  virtual Tensor give(int64_t array) = 0;
  /// Frees what is kept between requests.
  virtual void forget() {}

  Communicator& ranks_;
  bool serves_;
};

/// Checkpoints name tensors after parameters ("fc.weight.exp_avg") and know ranges of them, so that they can be loaded by any number of
/// ranks and with any strategy.
class DividedState : public WholeArrays {
 public:
  using WholeArrays::WholeArrays;

  /// Whether the state of the store is a part.
  virtual bool is_range(const std::string& state) const = 0;
  /// Reads this rank's part of a tensor: `read` fills the elements from `begin` on.
  virtual void load(const std::string& name, DType dtype, const Shape& shape,
                    const std::function<void(int64_t begin, std::span<std::byte> to)>& read) = 0;
  /// What this rank writes to a checkpoint. All ranks call it. Sums of gradients (".grad") are zero between steps and not part of it.
  virtual std::vector<CheckpointPiece> pieces() = 0;
};

}  // namespace galley
