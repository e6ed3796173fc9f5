#pragma once
// galley-convert-layout: tensor files from one memory format to another; and the layout check, which says where a model loses
// channels_last, why, and what each format costs.

#include "tools/common/recipe_tool.h"

namespace galley::tools {

class ConvertLayoutTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-convert-layout"; }
  std::string about() const override {
    return "Converts tensor files between memory formats; --check says where a recipe's model loses channels_last.";
  }
  std::string examples() const override {
    return "  galley-convert-layout in.safetensors --to channels_last -o out.safetensors\n  galley-convert-layout --check resnet.yaml "
           "benchmark.batch=16\n"
           "  galley-convert-layout --check resnet.yaml --apply format.yaml";
  }
  void add_options(Command& command) override;
  int run() override;

 protected:
  std::string section() const override { return "benchmark"; }
  std::string output_help() const override { return "the file to write"; }
  int run_recipe(LoadedRecipe& loaded) override;  // --check

 private:
  int convert(const std::string& input);

  std::string to_, check_, apply_;
  bool values_ = false;
};

}  // namespace galley::tools
