#pragma once
// galley-predict: what a model says about images (files, folders, archives), or about raw tensors.

#include "libcore/train/predict.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class PredictTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-predict"; }
  std::string about() const override { return "Predicts: images, folders and archives to classes; or tensors to tensors."; }
  std::string examples() const override {
    return "  galley-predict runs/first photo.jpg holiday/ more.tar\n  galley-predict runs/first photo.jpg top=1 --format json\n"
           "  galley-predict runs/first --tensors in.safetensors -o out.safetensors --capture 'layer1.*'";
  }
  void add_options(CLI::App& app) override;

 protected:
  std::string section() const override { return "predict"; }
  bool takes_inputs() const override { return true; }
  std::string output_help() const override { return "write the raw results to this safetensors file"; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  std::shared_ptr<const Source> open_inputs(const Session& session) const;

  std::string tensors_, draw_, on_error_ = "fail", replicas_ = "1";
  std::vector<std::string> capture_;
  int64_t batch_ = 16;
};

}  // namespace galley::tools
