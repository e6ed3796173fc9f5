#pragma once
// The registry of published weights: one YAML file a model, in recipes/weights/ and in the user's own folder, says which sets there
// are, where they are to be had, what images they want, how good they are. Data alone: nothing here uses the network (that is
// galley-weights fetch) or opens weights.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

/// How an image becomes the model's input: resized by its smaller side, cut out of the middle, normalised.
struct PublishedTransforms : OptionsOf<PublishedTransforms> {
  void options(OptionVisitor& v) override;
  int64_t resize = 0;  ///< Pixels; 0: not resized.
  int64_t crop = 0;    ///< Pixels; 0: not cut.
  std::string interpolation = "bilinear";
  bool antialias = true;
  std::vector<double> mean, std;  ///< Of values in 0..1; empty: not normalised.
};

/// One set of weights of a model.
struct PublishedWeights : OptionsOf<PublishedWeights> {
  void options(OptionVisitor& v) override;
  std::string name;  ///< "IMAGENET1K_V2"
  std::string about;
  std::string url;
  std::string path;    ///< A file that is here already, instead of a url; relative ones start at the registry file's folder.
  std::string sha256;  ///< Of the file: all 64 digits, or the first ones.
  double megabytes = 0;
  std::string categories;                ///< A file of one name a line, beside the registry's file.
  int64_t input_size = 0, min_size = 0;  ///< Pixels of a side: as trained, and at least.
  PublishedTransforms transforms;
  std::vector<std::pair<std::string, std::string>> metrics;  ///< top1, top5: percent.
  int64_t num_params = 0;
  double gmacs = 0;    ///< 1e9 multiply-adds of one sample, as published.
  std::string recipe;  ///< How they were trained.
  std::string license;
  std::vector<std::pair<std::string, std::string>> rename;  ///< As weights.load.N.rename: from the file's names to the model's.
  std::vector<std::string> ignore;                          ///< As weights.load.N.ignore.

  // What the registry knows, no options.
  std::string model;
  bool is_default = false;
  std::string registry_file;  ///< Where the entry stands.
  std::string file;           ///< Where the weights are, or will be when fetched.

  std::string id() const { return model + "/" + name; }
  /// The pipeline of `transforms` as a recipe writes it (what galley.pipeline holds); "" where there are none.
  std::string pipeline() const;
  /// Names of the classes in order; empty where none are given. Throws (kInput) where their file is missing.
  std::vector<std::string> category_names() const;
};

class WeightRegistry {
 public:
  /// Folders of registry files, of which later ones add to earlier ones (and win); where fetched files lie. Missing folders are
  /// empty ones.
  WeightRegistry(std::vector<std::string> folders, std::string cache_folder);

  const std::string& cache_folder() const { return cache_folder_; }
  /// Names of all models with published weights, sorted.
  std::vector<std::string> models() const;
  bool has(std::string_view model) const;
  /// All sets of a model, as the files list them. Throws (kRecipe) where a file is wrong or the model unknown, with near names.
  std::vector<PublishedWeights> of(const std::string& model) const;
  /// "resnet50/IMAGENET1K_V2", "resnet50/default" or "resnet50" (the default). Throws (kRecipe) with near names.
  PublishedWeights find(const std::string& reference) const;
  /// Whether a recipe's `from` names published weights: `default`, or MODEL/NAME of a known model where no such file exists.
  bool is_reference(const std::string& from) const;

 private:
  std::vector<std::string> folders_;
  std::string cache_folder_;
};

struct Recipe;

/// Finds what weights.load names in the registry: MODEL/NAME, or `default`, the model's default set (WeightSource::published), and
/// what the registry says of the model itself (WeightsSection::model_default). Throws (kRecipe) for an unknown name, (kInput)
/// where the file has not been fetched, saying which file to put where.
void resolve_weights(Recipe& recipe, const WeightRegistry& registry);

}  // namespace galley
