#pragma once
// A zoo model at golden weights, on the reference interpreter in double.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libcore/kernels/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "tests/nn/set_field.h"
#include "tests/support/golden_weights.h"

namespace galley {

/// A model of the zoo with some of its fields set.
struct GoldenModel {
  std::string file;  // of tests/golden/models
  std::string type;
  Shape input;
  std::vector<std::pair<std::string, std::vector<double>>> fields;

  Component component() const {
    Component model = default_model(type);
    for (const auto& [name, values] : fields) {
      Setter setter(name, values);
      model.params->fields(setter);
      EXPECT_TRUE(setter.found) << type << " has no field " << name;
    }
    return model;
  }
};

/// Golden values of every parameter and buffer.
inline std::map<std::string, RefArray> golden_feeds(const std::vector<ParameterSpec>& specs) {
  std::map<std::string, RefArray> feeds;
  for (const ParameterSpec& spec : specs) feeds[spec.name] = {spec.type.shape, golden_state(spec.name, spec.type.shape)};
  return feeds;
}
/// Labels 0, 3, 6, ... modulo the classes, as make_golden.py's `batch`.
inline RefArray golden_labels(int64_t count, int64_t classes) {
  RefArray labels{{count}, {}};
  for (int64_t i = 0; i < count; ++i) labels.v.push_back(static_cast<double>(i * 3 % classes));
  return labels;
}

}  // namespace galley
