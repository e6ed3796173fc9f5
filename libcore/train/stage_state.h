#pragma once
// StageState: the parameters and buffers of all stages of a pipeline, for rank 0, which writes files of weights.

#include <string>
#include <vector>

#include "libcore/comm/communicator.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/train/divided_state.h"

namespace galley {

/// Rank 0 asks for one tensor at a time; the rank that holds it gives it to all.
class StageState : public WholeArrays {
 public:
  struct Entry {
    std::string name;
    TensorType type;
    int root = 0;  ///< The rank that gives it.
  };
  /// `entries`: equal on all ranks. All must outlive the object.
  StageState(Communicator& ranks, ParameterStore& store, std::vector<Entry> entries);

  bool has(const std::string& name) const override;
  TensorSource source(const std::string& name) override;

 private:
  Tensor give(int64_t entry) override;

  Communicator& ranks_;
  ParameterStore& store_;
  std::vector<Entry> entries_;
};

}  // namespace galley
