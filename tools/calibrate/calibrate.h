#pragma once
// galley-calibrate: ranges and histograms of every value of a model over samples of its data, for galley-quantize.

#include "libcore/quant/calibration.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class CalibrateTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-calibrate"; }
  std::string about() const override {
    return "Collects the ranges of a model's values over samples of its data (data.calibration), once, for every observer.";
  }
  std::string examples() const override {
    return "  galley-calibrate runs/first -o stats.calib\n  galley-calibrate imagenet_resnet50 weights=resnet50.safetensors --samples 256 "
           "-o stats.calib\n"
           "  galley-calibrate --merge a.calib b.calib -o both.calib\n  galley-calibrate --show stats.calib";
  }
  void add_options(Command& command) override;
  int run() override;

 protected:
  std::string section() const override { return "quantize"; }
  std::string output_help() const override { return "write the statistics to this file (.calib)"; }
  bool takes_precision() const override { return false; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  int calibrate(LoadedRecipe& loaded);
  int merge();
  int show(const ActivationScheme& scheme);
  int report(const Calibration& calibration, double wall_s, int exit_code) const;

  std::vector<std::string> merge_;
  std::string show_;
  int64_t samples_ = 0;
  bool continue_ = false;
};

}  // namespace galley::tools
