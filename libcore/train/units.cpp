#include "libcore/train/units.h"

#include <cstdint>
#include <map>

#include "libcore/train/planned_model.h"

namespace galley {

std::vector<GradientBucket> units_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters, const ParameterGroups& groups,
                                     const std::function<bool(const std::string&)>& divided) {
  std::vector<const ParameterSpec*> specs;
  std::vector<std::pair<std::string, int64_t>> modules;
  for (const ParameterSpec& spec : parameters) {
    if (spec.role != ValueRole::kParameter) continue;
    specs.push_back(&spec);
    modules.emplace_back(spec.module, spec.type.elements());
  }
  const ModuleUnits units = module_units(modules, wrap_rule(recipe, parameters));
  std::vector<BucketMember> members;
  const auto group_of = [&](const ParameterSpec& spec) {
    const auto found = groups.group_of.find(spec.name);
    return spec.trainable && found != groups.group_of.end() ? static_cast<int64_t>(found->second) : 0;
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto count = static_cast<int64_t>(groups.groups.size());
    const int64_t unit = units.of[i] * 4 + (specs[i]->trainable ? 2 : 0) + (divided && divided(specs[i]->name) ? 1 : 0);
    members.push_back({.elements = specs[i]->type.elements(),
                       .element_bytes = dtype_size(specs[i]->type.dtype),
                       .key = (unit * count + group_of(*specs[i])) * 256 + static_cast<int64_t>(specs[i]->type.dtype)});
  }
  std::vector<GradientBucket> arrays;
  std::map<std::string, int> seen;  // arrays of each unit
  for (BucketLayout& layout : divide_into_buckets(members, INT64_MAX, INT64_MAX)) {
    GradientBucket& array = arrays.emplace_back();
    const ParameterSpec& first = *specs[layout.members.front()];
    std::string name = units.names[static_cast<size_t>(units.of[layout.members.front()])];
    if (name.empty()) name = "model";
    if (const int before = seen[name]++; before > 0) name += cat("+", before);
    array.name = "grads." + name;
    array.gather_name = "params." + name;
    array.state = "shard." + name;
    array.dtype = first.type.dtype;
    array.trained = first.trainable;
    array.divided = divided && divided(first.name);
    array.group = group_of(first);
    for (const size_t member : layout.members) {
      array.parameters.push_back(specs[member]->name);
      array.shapes.push_back(specs[member]->type.shape);
    }
    array.layout = std::move(layout);
  }
  return arrays;
}

}  // namespace galley
