#pragma once
// ParameterStore: the named arrays that live from step to step (parameters, buffers, optimizer state), shared by all programs of a run.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

class Program;

/// One identity a name: dtype and logical shape; the memory format is the first program's choice, and callers see contiguous only.
class ParameterStore {
 public:
  ParameterStore() = default;
  explicit ParameterStore(Device& device) : device_(&device) {}
  /// Where the arrays live: unless given, the device of the first program that declares them, the host's without one. `set` and `get` copy.
  Device& device() const { return *device_; }

  /// A new array of zeros; nothing where it is there already with that type. Throws InternalError where the types differ.
  void declare(const std::string& name, const TensorType& type, ValueRole role);
  /// All parameters, buffers and state of a program.
  void declare(const Program& program);

  /// Are all parameters, buffers and state of the program declared, those in `names` under other names?
  bool holds(const Program& program, const std::map<std::string, std::string>& names) const;
  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// Names in alphabetical order, of one role or all.
  std::vector<std::string> names() const;
  std::vector<std::string> names(ValueRole role) const;
  ValueRole role(std::string_view name) const { return entry(name).role; }
  /// For CompileOptions::parameter_formats.
  std::map<std::string, MemoryFormat> formats() const;

  /// Overwrites the values; dtype and shape must be the array's, the format may be any.
  void set(std::string_view name, const Tensor& values);
  /// A contiguous copy in host memory.
  Tensor get(std::string_view name) const;
  /// The array itself, in its program's format: the host reads and writes it only on the host's device. Whoever writes into it calls
  /// `touch`.
  Tensor& tensor(std::string_view name) { return entry(name).tensor; }
  const Tensor& tensor(std::string_view name) const { return entry(name).tensor; }
  /// Says that the values changed: programs prepare anew.
  void touch(std::string_view name) { ++entry(name).version; }
  uint64_t version(std::string_view name) const { return entry(name).version; }
  int64_t bytes() const;

 private:
  struct Entry {
    Tensor tensor;
    ValueRole role = ValueRole::kParameter;
    uint64_t version = 1;
  };
  Device* device_ = &host_device();
  Entry& entry(std::string_view name);
  const Entry& entry(std::string_view name) const { return const_cast<ParameterStore*>(this)->entry(name); }
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace galley
