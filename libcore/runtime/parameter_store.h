#pragma once
// ParameterStore: the named arrays that persist between steps (parameters, buffers, optimizer state). All programs of a run share them.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

class Program;

/// A name identifies an array with one dtype and logical shape. The first program chooses its memory format; `set` and `get` convert.
class ParameterStore {
 public:
  ParameterStore() = default;
  explicit ParameterStore(Device& device) : device_(&device) {}
  /// The device of the arrays: that of the constructor, else that of the first program that declares arrays (the host's until then).
  Device& device() const { return *device_; }

  /// Allocates an array of zeros: in the memory of the host if `on_host` is set (Program::stays_on_host) and there is enough of it. An
  /// existing array with this type stays; if it is on the host for that reason and `on_host` is not set, it moves to the device. Throws
  /// InternalError if it has another type.
  void declare(const std::string& name, const TensorType& type, ValueRole role, bool on_host = false);
  /// The same for all parameters, buffers and state of a program.
  void declare(const Program& program);

  /// Whether all parameters, buffers and state of the program are declared, and where it reads them. `names` maps some of them to other
  /// names in the store.
  bool holds(const Program& program, const std::map<std::string, std::string>& names) const;
  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// Names in alphabetical order, of all roles or of one role.
  std::vector<std::string> names() const;
  std::vector<std::string> names(ValueRole role) const;
  ValueRole role(std::string_view name) const { return entry(name).role; }
  /// The format of each array, for CompileOptions::parameter_formats.
  std::map<std::string, MemoryFormat> formats() const;

  /// Overwrites the values. Dtype and shape must match; the format may differ.
  void set(std::string_view name, const Tensor& values);
  /// Puts this array, which may be in a mapped file, in the place of the present one. Dtype, shape and format must match, and nothing may
  /// write it.
  void adopt(std::string_view name, Tensor values);
  /// A contiguous copy in host memory.
  Tensor get(std::string_view name) const;
  /// As get, without a copy of an array that is stored so on the host: valid until the next change of the array.
  Tensor view(std::string_view name) const;
  /// The bytes of the largest copy that `view` makes.
  int64_t largest_view_copy() const;
  /// The array itself, in the program's format. The host can access it only on the host's device. Call `touch` after writing to it.
  Tensor& tensor(std::string_view name) { return entry(name).tensor; }
  const Tensor& tensor(std::string_view name) const { return entry(name).tensor; }
  /// Records that the values have changed, so that executions run `prepare` again.
  void touch(std::string_view name) { ++entry(name).version; }
  uint64_t version(std::string_view name) const { return entry(name).version; }
  /// How many arrays have moved to the device: addresses of an earlier count may be those of old values.
  uint64_t moves() const { return moved_.size(); }
  /// Size of all arrays.
  int64_t bytes() const;

 private:
  struct Entry {
    Tensor tensor;
    ValueRole role = ValueRole::kParameter;
    uint64_t version = 1;
    bool on_host = false;  // until a program reads it in each run
  };
  Device* device_ = &host_device();
  Entry& entry(std::string_view name);
  const Entry& entry(std::string_view name) const { return const_cast<ParameterStore*>(this)->entry(name); }
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<Tensor> moved_;  // the arrays on the host, which stay allocated: executions may have their addresses
};

}  // namespace galley
