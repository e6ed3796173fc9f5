#include "libcore/dist/plan_model.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {

double seconds_of(const Operation& operation, const Cluster& cluster) {
  if (operation.seconds >= 0) return operation.seconds;
  double seconds = operation.bytes / cluster.bandwidth;
  if (operation.extent > 0) seconds = std::max(seconds, cluster.product_seconds(operation.executed, operation.extent, operation.dtype));
  return std::max(seconds, static_cast<double>(operation.kernels) * cluster.launch);
}

double seconds_of(const std::vector<Operation>& operations, const Cluster& cluster) {
  double sum = 0;
  for (const Operation& operation : operations) sum += seconds_of(operation, cluster);
  return sum;
}

int64_t PlanModel::elements(int unit) const {
  int64_t sum = 0;
  for (const PlanParameter& parameter : parameters) {
    if (parameter.unit == unit) sum += parameter.elements;
  }
  return sum;
}

int64_t PlanModel::trained_elements() const {
  int64_t sum = 0;
  for (const PlanParameter& parameter : parameters) sum += parameter.trained ? parameter.elements : 0;
  return sum;
}

int64_t PlanModel::frozen_elements() const {
  int64_t sum = 0;
  for (const PlanParameter& parameter : parameters) sum += parameter.trained ? 0 : parameter.elements;
  return sum;
}

std::vector<bool> PlanModel::staying_units() const {
  std::vector<bool> seen(units.size(), false), stay(units.size(), false);
  int last = -1;
  for (const PlanSegment& segment : forward) {
    if (segment.unit < 0 || segment.unit == last) continue;
    const auto unit = static_cast<size_t>(segment.unit);
    stay[unit] = stay[unit] || seen[unit];
    seen[unit] = true;
    last = segment.unit;
  }
  return stay;
}

int64_t PlanModel::largest_part(int unit) const {
  const std::vector<int64_t>& parts = units[static_cast<size_t>(unit)].parts;
  return parts.empty() ? elements(unit) : *std::max_element(parts.begin(), parts.end());
}

PlanModel without_tables(PlanModel model, const std::vector<bool>& removed) {
  GALLEY_ASSERT(removed.size() == model.tables.size());
  const auto clean = [&](std::vector<Operation>& work) {
    std::erase_if(work, [&](const Operation& operation) { return operation.table >= 0 && removed[static_cast<size_t>(operation.table)]; });
  };
  for (std::vector<PlanSegment>* segments : {&model.forward, &model.backward}) {
    for (PlanSegment& segment : *segments) clean(segment.work);
  }
  clean(model.update);
  for (size_t i = 0; i < removed.size(); ++i) {
    if (removed[i]) model.parameters[model.tables[i].parameter].elements = 0;
  }
  return model;
}

}  // namespace galley
