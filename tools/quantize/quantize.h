#pragma once
// galley-quantize: float weights become integers, and every layer says what that cost.

#include <memory>
#include <optional>

#include "libcore/quant/calibration.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/quantize/quantization_report.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class QuantizeTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-quantize"; }
  std::string about() const override {
    return "Turns a model's float weights into integers (quantize), and says layer by layer what that costs.";
  }
  std::string examples() const override {
    return "  galley-quantize runs/first -o model.int8.safetensors\n"
           "  galley-quantize imagenet_resnet50 weights=resnet50.safetensors --calibration stats.calib --evaluate -o "
           "resnet50.int8.safetensors\n"
           "  galley-quantize runs/first --sensitivity --evaluate -o keep.yaml\n"
           "  galley-quantize runs/first 'goal={metric: top1, max_drop: 0.5}' -o model.int8.safetensors\n"
           "  galley-quantize runs/first method=weight_only quantize.weights.dtype=int4 quantize.weights.group_size=32 -o "
           "model.int4.safetensors";
  }
  void add_options(Command& command) override;
  int run() override;

 protected:
  std::string section() const override { return "quantize"; }
  std::string output_help() const override {
    return "write the quantized weights to this file (.safetensors); with --sensitivity: a recipe fragment (.yaml)";
  }
  bool takes_precision() const override { return false; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  /// Where statistics come from: a file, or data; neither where the method wants none.
  struct Statistics {
    std::optional<Calibration> calibration;
    std::unique_ptr<Calibrator> calibrator;
  };
  Statistics find_statistics(Session& session) const;
  std::optional<Calibration> collect(const Session& session, const ModelQuantizer& quantizer, Statistics& source);
  void evaluate(Session& session, ModelQuantizer& quantizer, QuantizationResult& result) const;
  /// quantize.goal: fills model, metrics and search of the result.
  void search(Session& session, ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration,
              QuantizationResult& result) const;
  int sensitivity(Session& session, ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration);
  /// --journal, else a file next to the output; "" without both.
  std::string journal_path() const { return !journal_.empty() || output_.empty() ? journal_ : output_ + ".journal.jsonl"; }
  void write(const Session& session, QuantizationResult& result) const;
  /// Of a language model with a cache, how fast it generates one text: in float, and with the weights that were written.
  void measure_generation(const Session& session, QuantizationResult& result) const;
  int print_plan(const Session& session, const ModelQuantizer& quantizer, const QuantizeConfig& config,
                 const Calibration* calibration) const;
  int report(const Recipe& recipe, const QuantizationResult& result) const;

  std::string calibration_, journal_;
  bool evaluate_ = false, sensitivity_ = false;
  int64_t keep_float_ = 3;
  std::string measure_;  // samples of the batches that are timed: "1,64"; "": none
};

}  // namespace galley::tools
