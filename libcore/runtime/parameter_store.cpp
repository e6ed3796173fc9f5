#include "libcore/runtime/parameter_store.h"

#include <algorithm>
#include <utility>

#include "libcore/device/kept_memory.h"
#include "libcore/runtime/program.h"

namespace galley {
namespace {

/// The device's kernels may still read or write arrays in the host's memory.
void wait_for(const Tensor& stored, Device& device) {
  if (stored.storage()->host_access() && !device.is_host()) device.stream().synchronize();
}

/// In memory of the host that the device can read; undefined: there is not enough of it.
Tensor host_array(const TensorType& type, Device& device) {
  try {
    return {type.dtype, type.shape, type.format, Storage::allocate_host(type.bytes(), device)};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

ParameterStore::Entry& ParameterStore::entry(std::string_view name) {
  const auto found = entries_.find(name);
  GALLEY_ASSERT(found != entries_.end(), "there is no parameter, buffer or state named '", name, "'");
  return found->second;
}

void ParameterStore::declare(const std::string& name, const TensorType& type, ValueRole role, bool on_host) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    Tensor tensor = on_host ? host_array(type, *device_) : Tensor();
    on_host = tensor.defined();
    if (!on_host) tensor = Tensor(type.dtype, type.shape, type.format, device_of_kept_arrays(*device_));
    entries_[name] = {.tensor = std::move(tensor), .role = role, .on_host = on_host};
    return;
  }
  if (found->second.role != role) found->second.role = role;  // that of an adopted array was not known
  const Tensor& tensor = found->second.tensor;
  GALLEY_ASSERT(tensor.dtype() == type.dtype && tensor.shape() == type.shape && tensor.format() == type.format, "'", name, "' is ",
                tensor.str(), " in the store, but ", type, " in a program");
  if (!found->second.on_host || on_host) return;
  Tensor on_device(type.dtype, type.shape, type.format, *device_);
  copy(tensor, on_device, device_->stream());
  moved_.push_back(std::exchange(found->second.tensor, std::move(on_device)));
  found->second.on_host = false;
}

void ParameterStore::declare(const Program& program) {
  if (entries_.empty() && device_ != &program.device())
    device_ = &program.device();  // writes only on a change, because replicas bind in parallel
  GALLEY_ASSERT(device_ == &program.device(), "the program is on device ", program.device().name(), ", but the parameters are on ",
                device_->name());
  std::vector<ValueId> arrays;
  int64_t bytes = 0;
  for (ValueId id : program.graph().inputs()) {
    const ValueInfo& info = program.graph().value(id);
    if (info.role == ValueRole::kInput || info.role == ValueRole::kCarried) continue;
    arrays.push_back(id);
    if (!has(info.name)) bytes += kept_bytes(info.type.bytes());
  }
  const KeptArrays side_by_side(*device_, bytes);
  for (const ValueId id : arrays) {
    const ValueInfo& info = program.graph().value(id);
    declare(info.name, info.type, info.role, program.stays_on_host(id));
  }
}

bool ParameterStore::holds(const Program& program, const std::map<std::string, std::string>& names) const {
  for (ValueId id : program.graph().inputs()) {
    const ValueInfo& info = program.graph().value(id);
    if (info.role == ValueRole::kInput || info.role == ValueRole::kCarried) continue;
    const auto other = names.find(info.name);
    const auto found = entries_.find(other == names.end() ? info.name : other->second);
    if (found == entries_.end() || (found->second.on_host && !program.stays_on_host(id))) return false;
  }
  return true;
}

std::vector<std::string> ParameterStore::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::vector<std::string> ParameterStore::names(ValueRole role) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.role == role) names.push_back(name);
  }
  return names;
}

std::map<std::string, MemoryFormat> ParameterStore::formats() const {
  std::map<std::string, MemoryFormat> formats;
  for (const auto& [name, entry] : entries_) formats.emplace(name, entry.tensor.format());
  return formats;
}

void ParameterStore::set(std::string_view name, const Tensor& values) {
  Entry& target = entry(name);
  GALLEY_CHECK_INPUT(values.dtype() == target.tensor.dtype() && values.shape() == target.tensor.shape(), "'", name, "' is ",
                     target.tensor.dtype(), " ", target.tensor.shape(), ", but the given values are ", values.dtype(), " ", values.shape());
  const Tensor converted = values.to(target.tensor.format());
  wait_for(target.tensor, *device_);
  copy(converted, target.tensor, device_->stream());
  ++target.version;
}

void ParameterStore::adopt(std::string_view name, Tensor values) {
  GALLEY_ASSERT(device_ == &host_device() || values.storage()->host_access(), "only the host's arrays can be adopted");
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    entries_[std::string(name)] = {std::move(values), ValueRole::kParameter};
    return;
  }
  Entry& target = found->second;
  GALLEY_ASSERT(
      values.dtype() == target.tensor.dtype() && values.shape() == target.tensor.shape() && values.format() == target.tensor.format(), "'",
      name, "' is ", target.tensor.str(), ", but the adopted array is ", values.str());
  wait_for(target.tensor, *device_);
  target.tensor = std::move(values);
  ++target.version;
}

Tensor ParameterStore::get(std::string_view name) const {
  const Tensor& stored = entry(name).tensor;
  wait_for(stored, *device_);
  const Tensor tensor = on_host(stored, device_->stream());
  if (!stored.storage()->host_access() && tensor.format().is_contiguous()) return tensor;
  return tensor.format().is_contiguous() ? tensor.clone() : tensor.to(MemoryFormat::contiguous());
}

Tensor ParameterStore::view(std::string_view name) const {
  wait_for(entry(name).tensor, *device_);
  return on_host(entry(name).tensor, device_->stream()).to(MemoryFormat::contiguous());
}

int64_t ParameterStore::largest_view_copy() const {
  int64_t most = 0;
  for (const auto& [name, entry] : entries_) {
    if (!entry.tensor.storage()->host_access() || !entry.tensor.format().is_contiguous()) most = std::max(most, entry.tensor.bytes());
  }
  return most;
}

int64_t ParameterStore::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_) bytes += entry.tensor.bytes();
  return bytes;
}

}  // namespace galley
