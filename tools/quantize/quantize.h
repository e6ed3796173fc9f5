#pragma once
// galley-quantize: float weights become integers, and every layer says what that cost.

#include <optional>

#include "libcore/quant/calibration.h"
#include "libcore/train/layer_times.h"
#include "libcore/train/metrics.h"
#include "libcore/train/model_quantizer.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class QuantizeTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-quantize"; }
  std::string about() const override { return "Turns a model's float weights into integers (quantize), and says layer by layer what that costs."; }
  std::string examples() const override {
    return "  galley-quantize runs/first -o model.int8.safetensors\n"
           "  galley-quantize resnet50_imagenet weights=resnet50.safetensors --calibration stats.calib --evaluate -o resnet50.int8.safetensors\n"
           "  galley-quantize runs/first method=weight_only weights.dtype=int4 weights.group_size=32 -o model.int4.safetensors";
  }
  void add_options(CLI::App& app) override;
  int run() override;

 protected:
  std::string section() const override { return "quantize"; }
  std::string output_help() const override { return "write the quantized weights to this file (.safetensors)"; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  /// What the search for accuracy asks: met, and how much was lost in the metric's unit.
  struct Goal {
    bool met = false;
    double drop = 0;
  };
  struct Result {
    QuantizedModel model;
    MetricValues real, quantized;  // empty: not measured
    std::optional<Goal> goal;
    std::optional<QuantizationTimes> times;
    int64_t calibrated_samples = 0;
    int64_t reorders = 0;  // of activations, in the compiled program
    int64_t bytes = 0, bytes_float = 0;
  };

  std::optional<Calibration> calibrate(Session& session, const ModelQuantizer& quantizer);
  void evaluate(Session& session, ModelQuantizer& quantizer, Result& result) const;
  void write(const Session& session, Result& result) const;
  int print_plan(const Session& session, const ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration) const;
  int report(const Recipe& recipe, const Result& result) const;

  std::string calibration_;
  bool evaluate_ = false;
  int64_t measure_ = 0;  // samples of the batch that is timed; 0: none
};

}  // namespace galley::tools
