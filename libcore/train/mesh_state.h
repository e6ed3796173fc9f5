#pragma once
// MeshState: arrays that ranks divide along two axes of the mesh, as whole tensors. Some ranks hold parts of matrices; those that have the
// same parts and read different samples hold ranges of them, or of the optimizer's state (zero1, zero2, fsdp).

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/nn/parameter.h"
#include "libcore/passes/tensor_divisions.h"
#include "libcore/train/sharded_state.h"

namespace galley {

/// All ranks of the mesh gather one array at a time.
class MeshState : public DividedState {
 public:
  /// `all`: the ranks of the mesh; `tensor`: those that divide matrices. `parameters`: of the whole model; `states`: of the step. All must
  /// outlive the object.
  MeshState(Communicator& all, Communicator& tensor, std::unique_ptr<ShardedState> ranges, ParameterStore& store,
            const TensorDivisions& divisions, const std::vector<ParameterSpec>& parameters, const std::vector<StateSpec>& states);

  bool is_range(const std::string& state) const override { return ranges_->is_range(state) || has(state); }
  bool has(const std::string& name) const override { return ranges_->has(name) || matrices_.count(name) > 0; }
  void load(const std::string& name, DType dtype, const Shape& shape,
            const std::function<void(int64_t begin, std::span<std::byte> to)>& read) override;
  std::vector<CheckpointPiece> pieces() override;
  TensorSource source(const std::string& name) override;

 private:
  /// A parameter that is divided, or a state of one.
  struct Matrix {
    const TensorDivision* division = nullptr;
    Shape whole;
    bool parameter = false;
  };
  Tensor give(int64_t array) override { return gather(names_[static_cast<size_t>(array)]); }
  void forget() override { ranges_->forget(); }
  Tensor gather(const std::string& name);
  DType dtype_of(const std::string& name) const;

  Communicator& all_;
  Communicator& tensor_;
  std::unique_ptr<ShardedState> ranges_;
  ParameterStore& store_;
  std::map<std::string, Matrix> matrices_;
  std::vector<std::string> names_;  // of all arrays, sorted
};

}  // namespace galley
