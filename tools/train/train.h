#pragma once
// galley-train: trains what a recipe describes into a RUN folder, or continues it.

#include "tools/common/recipe_tool.h"

namespace galley {
struct TrainPlan;
struct TrainResult;
struct TrainerOptions;
}  // namespace galley

namespace galley::tools {

class TrainTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-train"; }
  std::string about() const override { return "Trains what a recipe describes, or continues an unfinished run."; }
  std::string examples() const override {
    return "  galley-train fashion_mnist_cnn -o runs/first\n  galley-train fashion_mnist_cnn optimizer.lr=0.05 batch=64 duration=10epochs\n"
           "  galley-train my.yaml --dry-run\n  mpirun -np 4 galley-train my.yaml sharding=ddp";
  }
  void add_options(Command& command) override;
  bool uses_ranks() const override { return true; }

 protected:
  std::string section() const override { return "train"; }
  std::string output_help() const override { return "RUN folder (default runs/<name>)"; }
  /// Not where the run itself goes on.
  bool takes_run_weights(const LoadedRecipe& loaded) const override;
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  std::string run_folder(const LoadedRecipe& loaded) const;
  /// Trains as one rank, which prints if it is rank 0. `grown`: the duration is longer than that of the finished run.
  int train_rank(const LoadedRecipe& loaded, const std::string& text, const TrainerOptions& options, bool grown);
  /// --simulate-ranks: every rank on a thread of its own.
  int simulate_ranks(const LoadedRecipe& loaded, const std::string& text, const TrainerOptions& options, bool grown);
  std::string continuing_command(const std::string& run) const;
  void print_plan(const TrainPlan& plan, const std::string& run, bool to_stdout, const std::string& provenance_text) const;
  void print_result(const TrainResult& result, const TrainPlan* plan, const std::string& run) const;

  bool force_ = false;
  int64_t simulated_ranks_ = 0;  // 0: not given
};

}  // namespace galley::tools
