#pragma once
// galley-weights: lists and fetches published weights; shows, converts, verifies, compares and averages weights files; merges adapters;
// exports models; learns vocabularies of tokenizers.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libcore/weights/weights_file.h"
#include "tools/common/tool.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {

class WeightsTool : public Tool {
 public:
  std::string name() const override { return "galley-weights"; }
  std::string about() const override {
    return "Lists, fetches, shows, converts, verifies, compares and averages weights; merges adapters; exports models; learns vocabularies "
           "of "
           "tokenizers.";
  }
  std::string examples() const override {
    return "  galley-weights ls 'resnet*'\n  galley-weights fetch resnet50/IMAGENET1K_V2\n  galley-weights show model.pth\n"
           "  galley-weights convert model.pth -o model.safetensors\n  galley-weights diff a.safetensors b.pth --rename module.=\n"
           "  galley-weights average runs/first/checkpoints/step-* -o mean.safetensors\n"
           "  galley-weights merge-lora llama_dir/ runs/lora/adapter -o merged.safetensors\n"
           "  galley-weights export runs/first -o model.onnx\n"
           "  galley-weights tokenizer train text.txt --vocab-size 8000 --special '<|endoftext|>' -o tokenizer.json";
  }
  void add_options(Command& command) override;
  int run() override;
  std::vector<std::string> complete(const std::vector<std::string>& words) const override;

 private:
  /// The weights named by a word of the command line: a file, a folder of a run or checkpoint, or fetched published weights.
  struct Opened {
    std::string word;
    std::vector<WeightsFile> files;
    std::optional<PublishedWeights> published;
  };
  Opened open(const std::string& word) const;

  int list() const;
  int show() const;
  int convert() const;
  int verify() const;
  int diff() const;
  int fetch_files() const;
  int average() const;
  int export_model() const;
  int train_tokenizer() const;
  int merge_lora() const;
  void add_tokenizer_options(Command& command);
  void add_merge_options(Command& command);

  Command verb(Command& command, const std::string& name, const std::string& about, int (WeightsTool::*action)() const);
  void check_word_count(size_t least, size_t most, std::string_view what) const;
  std::vector<std::pair<std::string, std::string>> renames() const;

  int (WeightsTool::*action_)() const = nullptr;
  std::vector<std::string> words_;  // arguments after the verb
  std::vector<std::string> rename_, ignore_;
  std::string output_, dtype_;
  std::vector<std::string> with_;
  std::string batch_ = "any", shape_;
  /// Options of tokenizer train.
  struct VocabularyOptions {
    int64_t size = 8000, min_count = 2;
    std::string pattern = "gpt2";
    std::vector<std::string> special;
  };
  VocabularyOptions vocabulary_;
  bool no_cache_ = false;
  bool fold_ = false;
  bool all_ = false, dry_run_ = false, strict_ = false;
};

}  // namespace galley::tools
