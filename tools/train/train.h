#pragma once
// galley-train: trains what a recipe describes into a RUN folder, or continues it.

#include "tools/common/recipe_tool.h"

namespace galley {
struct TrainPlan;
struct TrainResult;
}  // namespace galley

namespace galley::tools {

class TrainTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-train"; }
  std::string about() const override { return "Trains what a recipe describes, or continues an unfinished run."; }
  std::string examples() const override {
    return "  galley-train fashion_mnist_cnn -o runs/first\n  galley-train fashion_mnist_cnn optimizer.lr=0.05 batch=64 duration=10epochs\n"
           "  galley-train my.yaml --dry-run";
  }
  void add_options(Command& command) override;

 protected:
  std::string section() const override { return "train"; }
  std::string output_help() const override { return "RUN folder (default runs/<name>)"; }
  /// Not where the run itself goes on.
  bool takes_run_weights(const LoadedRecipe& loaded) const override;
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  std::string run_folder(const LoadedRecipe& loaded) const;
  void print_plan(const TrainPlan& plan, const std::string& run, bool to_stdout, const std::string& provenance_text) const;
  void print_result(const TrainResult& result, const TrainPlan* plan, const std::string& run) const;

  bool force_ = false;
};

}  // namespace galley::tools
