#pragma once
// TensorState: parameters and states that ranks divide along a dimension (tensor parallelism), as whole tensors.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libcore/comm/communicator.h"
#include "libcore/nn/parameter.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/tensor_divisions.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/train/divided_state.h"

namespace galley {

/// A whole array from the parts of all ranks, which call it together; `own`: this rank's.
Tensor gather_parts(Communicator& ranks, const std::string& name, const Tensor& own, const Shape& whole, const TensorDivision& division);

class TensorState : public DividedState {
 public:
  /// `ranks`: those that divide matrices. `parameters`: of the whole model; `states`: of the step. `writes`: whether this group of ranks
  /// writes checkpoints and files; others hold the same values. The store must outlive the object.
  TensorState(Communicator& ranks, ParameterStore& store, const TensorDivisions& divisions, const std::vector<ParameterSpec>& parameters,
              const std::vector<StateSpec>& states, bool writes);

  bool is_range(const std::string& state) const override { return has(state); }
  bool has(const std::string& name) const override { return places_.count(name) > 0; }
  void load(const std::string& name, DType dtype, const Shape& shape,
            const std::function<void(int64_t begin, std::span<std::byte> to)>& read) override;
  std::vector<CheckpointPiece> pieces() override;
  TensorSource source(const std::string& name) override;

 private:
  struct Array {
    std::string name, group;  // group: of the checkpoint
    DType dtype = DType::kF32;
    Shape whole;
    TensorDivision division;
  };
  void add(const std::string& name, const std::string& group, DType dtype, const Shape& whole, const TensorDivision& division);
  Tensor give(int64_t array) override { return gather(arrays_[static_cast<size_t>(array)]); }
  /// The whole array, from all ranks, which call it together.
  Tensor gather(const Array& array) const;

  Communicator& ranks_;
  ParameterStore& store_;
  bool writes_;
  std::vector<Array> arrays_;
  std::map<std::string, size_t> places_;  // in arrays_
};

}  // namespace galley
