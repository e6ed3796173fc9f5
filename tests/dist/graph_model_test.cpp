// Laws: modules become units by the rule; tensor parallelism divides matrices, work and activations. tests/train/planned_model_test.cpp
// reads models from whole recipes.

#include "libcore/dist/graph_model.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Modules = std::vector<std::pair<std::string, int64_t>>;

TEST(ModuleUnits, WrapsByCountFromBelow) {
  const Modules modules{{"wte", 50}, {"h.0.attn", 30}, {"h.0.mlp", 80}, {"h.1.attn", 30}, {"h.1.mlp", 80}, {"ln_f", 1}};
  const auto units = [&](int64_t parameters) {
    const ModuleUnits found = module_units(modules, {.parameters = parameters});
    std::string text;
    for (size_t i = 0; i < modules.size(); ++i) text += found.names[static_cast<size_t>(found.of[i])] + ' ';
    return text;
  };
  EXPECT_EQ(units(1000), "      ") << "everything is one unit, the model";
  EXPECT_EQ(units(100), " h.0 h.0 h.1 h.1  ") << "a block, and what is left";
  EXPECT_EQ(units(200), " h.0..1 h.0..1 h.0..1 h.0..1  ") << "consecutive items of a list are put together";
  EXPECT_EQ(units(60), "  h.0.mlp  h.1.mlp  ") << "a part that qualifies is a unit of its own, the rest of the block is too small";
  EXPECT_EQ(units(30), "wte h.0.attn h.0.mlp h.1.attn h.1.mlp  ");
}

TEST(ModuleUnits, WrapsByName) {
  const Modules modules{{"a.b", 1}, {"a.c", 1}, {"d", 1}};
  const ModuleUnits units = module_units(modules, {.selects = [](const std::string& module) { return module == "a"; }});
  EXPECT_EQ(units.names, (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(units.of, (std::vector<int>{0, 0, 1}));
}

TEST(TensorParallel, NeedsBlocks) {
  PlanModel model;
  model.units.push_back({.name = "fc"});
  model.forward.push_back({.name = "fc", .unit = 0});
  EXPECT_THROW(tensor_parallel(model, 2), Error);
  model.forward.front().name = "h.0.fc";
  model.forward.front().output_bytes = 64;
  model.forward.front().kept_bytes = 100;
  model.parameters.push_back({.name = "h.0.fc.weight", .elements = 10, .unit = 0, .divisible = true});
  model.parameters.push_back({.name = "h.0.fc.bias", .elements = 3, .unit = 0});
  const PlanModel part = tensor_parallel(model, 2);
  EXPECT_EQ(part.parameters[0].elements, 5);
  EXPECT_EQ(part.parameters[1].elements, 3);
  EXPECT_EQ(part.forward.front().reductions, 2);
  EXPECT_DOUBLE_EQ(part.forward.front().reduced_bytes, 64);
  EXPECT_DOUBLE_EQ(part.forward.front().kept_bytes, 50);
}

}  // namespace
}  // namespace galley
