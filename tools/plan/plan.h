#pragma once
// galley-plan: memory, traffic and time of a recipe's step on a described cluster, before any run.

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "libcore/train/step_planner.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class PlanTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-plan"; }
  std::string about() const override {
    return "Predicts memory, traffic and time of training steps on a cluster, and finds settings that fit.";
  }
  std::string examples() const override {
    return "  galley-plan benchmark/gpt_124m_synthetic --ranks 64 --cluster a100_80gb sharding=fsdp\n"
           "  galley-plan my.yaml --ranks 8 --cluster cluster.yaml --fit 40GiB -o fit.yaml\n"
           "  galley-plan cifar10_resnet20 --validate 20";
  }
  void add_options(Command& command) override;
  int run() override;
  std::vector<std::string> complete(const std::vector<std::string>& words) const override;

 protected:
  std::string section() const override { return "train"; }
  std::string output_help() const override { return "with --fit: write the settings as a recipe fragment, for --with FILE"; }
  int run_recipe(LoadedRecipe& loaded) override;
  bool computes_here() const override { return local(); }

 private:
  struct Outcome;
  void check_options() const;
  /// Throws Error (kUsage) for options of a plan, which `verb` does not take.
  void refuse_plan_options(const std::string& verb) const;
  Cluster cluster() const;
  bool local() const { return cluster_ == "local"; }
  /// The bytes of --fit.
  int64_t memory_to_fit() const;
  /// How steps are measured for this cluster, which must outlive the result.
  StepMeasuring measuring(const Cluster& cluster) const;
  void note_host(const Recipe& recipe) const;
  int print_published() const;
  int print_clusters() const;
  void find(const Recipe& recipe, StepPlanner& planner, Outcome& outcome) const;
  nlohmann::ordered_json json(const Recipe& recipe, const Outcome& outcome) const;
  void print_outcome(const Recipe& recipe, const Outcome& outcome) const;

  std::string cluster_ = "local", fit_, html_, trace_;
  int64_t ranks_ = 1, validate_ = 0;
  bool effects_ = false;
};

}  // namespace galley::tools
