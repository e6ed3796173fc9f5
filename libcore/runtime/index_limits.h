#pragma once
// What fed arrays of indices may select. Kernels of devices can throw no errors, so that a run there checks them when they are fed. Indices
// that the graph computes are not checked, nor are those that another execution gives (Execution::feed_from).

#include <map>
#include <vector>

#include "libcore/runtime/program.h"
#include "libcore/tensor/tensor.h"

namespace galley {

class IndexLimits {
 public:
  /// Of the fed arrays that operators of the program read as they are, or through views (OpDef::index_range).
  explicit IndexLimits(const Program& program);
  /// Throws Error (kInput), naming the index, the operator and its module, if one of `values`, an array in the host's memory that is fed to
  /// `input`, selects nothing.
  void check(ValueId input, const Tensor& values) const;

 private:
  struct Limit {
    const Node* node;
    IndexRange range;
  };
  std::map<ValueId, std::vector<Limit>> limits_;
};

}  // namespace galley
