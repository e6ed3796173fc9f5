#pragma once
// galley-profile: shows where the time and memory of a recipe's steps go, how close they are to the machine's limits, and what to change.

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "libcore/profiler/report.h"
#include "libcore/profiler/statistics.h"
#include "tools/common/recipe_tool.h"

namespace galley {
class MachineWatch;
class ProfiledWork;
}  // namespace galley

namespace galley::tools {

class ProfileTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-profile"; }
  std::string about() const override {
    return "Shows where the time and memory of training steps or forward passes go, and what to change.";
  }
  std::string examples() const override {
    return "  galley-profile fashion_mnist_cnn\n  galley-profile resnet50_synthetic -o trace.json.gz --html profile.html\n  galley-profile "
           "my.yaml what=forward batch=1 --by layer --format json\n"
           "  galley-profile my.yaml --apply faster.yaml --verify";
  }
  void add_options(Command& command) override;

 protected:
  std::string section() const override { return "profile"; }
  std::string output_help() const override { return "write a trace for Perfetto or chrome://tracing; compressed if the name ends in .gz"; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  /// Compares the recipe with the one that applies the advice.
  RoundComparison verify(const LoadedRecipe& loaded, const std::vector<Advice>& advice) const;
  struct Outcome;
  void print_fits(const Recipe& recipe, const ProfileReport& report) const;
  /// Records the work, then makes the report and the pages of it. False: a signal came.
  bool measure(const Recipe& recipe, const MachineWatch& watch, ProfiledWork& work, Outcome& outcome) const;
  void write_files(const Outcome& outcome) const;
  /// Where --verify is given and the advice has values: what following it gains. Nothing where a signal came.
  std::optional<RoundComparison> verified(const LoadedRecipe& loaded, const std::vector<Advice>& advice) const;
  nlohmann::ordered_json json(const Recipe& recipe, const Outcome& outcome) const;
  std::string text(const Outcome& outcome) const;
  void print_outcome(const Recipe& recipe, const Outcome& outcome) const;

  std::string html_, apply_, by_ = "op";
  int64_t rows_ = 20, trace_mib_ = 64;
  bool verify_ = false;
  double verify_s_ = 30, overhead_s_ = 0;
};

}  // namespace galley::tools
