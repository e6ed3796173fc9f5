#pragma once
// galley-predict: what a model says about images (files, folders, archives), text or raw tensors.

#include "libcore/infer/predict.h"
#include "libcore/infer/text_predictor.h"
#include "tools/common/recipe_tool.h"
#include "tools/predict/listing.h"
#include "tools/predict/text.h"

namespace galley::tools {

class PredictTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-predict"; }
  std::string about() const override {
    return "Predicts: images to classes, masks or numbers; text to classes or vectors; text that continues a prompt; tensors to tensors.";
  }
  std::string examples() const override {
    return "  galley-predict runs/first photo.jpg holiday/ more.tar\n  galley-predict runs/first photo.jpg top=1 --format json\n"
           "  galley-predict runs/gpt --prompt 'To be' generate.max_new_tokens=200 generate.temperature=0.8\n"
           "  galley-predict bert_dir/ --text 'a fine film' 'a dull one' --embed -o vectors.safetensors\n"
           "  galley-predict runs/answers --text 'Who won?' --text-pair 'The home team won.'\n"
           "  galley-predict runs/first --tensors in.safetensors -o out.safetensors --capture 'layer1.*'";
  }
  void add_options(Command& command) override;
  int run() override;

 protected:
  std::string section() const override { return "predict"; }
  bool takes_inputs() const override { return true; }
  std::string output_help() const override { return "write the raw results to this safetensors file"; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  std::shared_ptr<const Source> open_inputs(const Session& session) const;
  /// The preprocessing of images. Without one, an input file that does not exist is reported first.
  std::vector<Component> pipeline_of_images(const Session& session) const;
  /// Predicts all samples into `listing` (where the task presents them) and the output file.
  void predict(const Source& source, Predictor& predictor, const std::string& recipe_text, Listing& listing) const;
  /// Prints the listing where it has something to say. Returns the exit code.
  int finish(const Listing& listing, int64_t samples) const;

  /// Text instead of images: --prompt, --tokenize and the like.
  int run_text(LoadedRecipe& loaded);
  int print_text(Session& session, const TextOutput& output) const;
  /// Classes, or with --embed the vectors, of whole texts.
  int run_whole_texts(LoadedRecipe& loaded);
  /// The answers of texts to questions, for models with start and end logits.
  int answer_questions(Session& session, TextPredictor& predictor, const NamedTexts& given, const std::string& recipe_text);

  TextOptions text_;
  std::string tensors_, draw_, draw_format_ = "png", on_error_ = "report", replicas_ = "1";
  std::vector<std::string> capture_;
  int64_t batch_ = 16;
};

}  // namespace galley::tools
