#pragma once
// HostArray: an array of a ParameterStore that the host changes, wherever the store has it.

#include <string>

#include "libcore/runtime/parameter_store.h"

namespace galley {

/// The array itself where the host can access it, else a copy that `changed` writes back.
class HostArray {
 public:
  /// The array must be contiguous, and the store must outlive the object.
  HostArray(ParameterStore& store, const std::string& name)
      : store_(store),
        name_(name),
        copied_(!store.tensor(name).storage()->host_access()),
        array_(copied_ ? store.get(name) : store.tensor(name)) {}

  Tensor& array() { return array_; }
  /// The array has changed.
  void changed() {
    if (copied_) {
      store_.set(name_, array_);
    } else {
      store_.touch(name_);
    }
  }

 private:
  ParameterStore& store_;
  std::string name_;
  bool copied_;
  Tensor array_;
};

}  // namespace galley
