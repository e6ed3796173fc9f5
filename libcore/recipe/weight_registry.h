#pragma once
// The registry of published weights. One YAML file per model, in recipes/weights/ or in the user's folder, lists sets of weights: location,
// preprocessing, published metrics. Nothing here uses the network (galley-weights fetch does) or opens weights.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

/// Preprocessing of an image: resize of the smaller side or to a fixed size, center crop, normalization, canvas. With a fixed size or a
/// canvas, as detectors have, normalization comes first, so that pixels are not rounded after the resize.
struct PublishedTransforms : OptionsOf<PublishedTransforms> {
  void options(OptionVisitor& v) override;
  int64_t resize = 0;         ///< Pixels; 0: no resize of the smaller side.
  int64_t max_size = 0;       ///< Largest length of the longer side after it; 0: no limit.
  std::vector<int64_t> size;  ///< [height, width] of a resize that does not keep the aspect ratio.
  int64_t pad_to = 0;         ///< Side of the square canvas on which the image is put; 0: none.
  int64_t crop = 0;           ///< Pixels; 0: no crop.
  std::string interpolation = "bilinear";
  bool antialias = true;
  std::vector<double> mean, std;  ///< Of values in 0..1; empty: no normalization.
};

/// One set of weights of a model.
struct PublishedWeights : OptionsOf<PublishedWeights> {
  void options(OptionVisitor& v) override;
  std::string name;  ///< "IMAGENET1K_V2"
  std::string about;
  std::string url;
  std::string path;    ///< A local file, instead of a url. A relative path starts at the registry file's folder.
  std::string sha256;  ///< Digest of the file: all 64 digits, or a prefix.
  double megabytes = 0;
  std::string categories;                ///< A file with one class name per line, in the registry file's folder.
  int64_t input_size = 0, min_size = 0;  ///< Pixels of a side: in training, and the smallest allowed.
  PublishedTransforms transforms;
  std::vector<std::pair<std::string, std::string>> metrics;  ///< Published results in percent: top1, top5; map of boxes.
  /// Options of the model that the weights need, where they are not the defaults: frozen_norm, frozen_eps.
  std::vector<std::pair<std::string, std::string>> options_of_model;
  int64_t num_params = 0;
  double gmacs = 0;    ///< 1e9 multiply-adds per sample, as published.
  std::string recipe;  ///< How the weights were trained.
  std::string license;
  std::vector<std::pair<std::string, std::string>> rename;  ///< As weights.load.N.rename: from names in the file to names in the model.
  std::vector<std::string> ignore;                          ///< As weights.load.N.ignore.

  // Set by the registry; not options.
  std::string model;
  bool is_default = false;
  std::string registry_file;  ///< The file that holds this entry.
  std::string file;           ///< Path of the weights, whether or not they have been fetched.

  std::string id() const { return model + "/" + name; }
  /// The pipeline of `transforms` as YAML, in the form of the metadata galley.pipeline; "" if there are no transforms.
  std::string pipeline() const;
  /// Names of the classes in order; empty if the entry names no file. Throws (kInput) if the file is missing.
  std::vector<std::string> category_names() const;
};

/// Reads registry files on demand.
class WeightRegistry {
 public:
  /// `folders` hold registry files; later folders add to earlier ones and take precedence. Missing folders count as empty. `cache_folder`
  /// holds fetched files.
  WeightRegistry(std::vector<std::string> folders, std::string cache_folder);

  const std::string& cache_folder() const { return cache_folder_; }
  /// Names of all models with published weights, sorted.
  std::vector<std::string> models() const;
  bool has(std::string_view model) const;
  /// All sets of a model, in the order of the files. Throws (kRecipe) if a file is invalid, or, with near names, if the model is unknown.
  std::vector<PublishedWeights> of(const std::string& model) const;
  /// "resnet50/IMAGENET1K_V2", "resnet50/default" or "resnet50" (the default). Throws (kRecipe) with near names.
  PublishedWeights find(const std::string& reference) const;
  /// Whether a recipe's `from` names published weights: `default`, or MODEL/NAME of a known model if no file of that name exists.
  bool is_reference(const std::string& from) const;

 private:
  std::vector<std::string> folders_;
  std::string cache_folder_;
};

struct Recipe;

/// Looks up published weights in the registry: MODEL/NAME or `default` of weights.load sets WeightSource::published, the model's default
/// set sets WeightsSection::model_default. The section `lora` gets the values of the folder that it loads. Throws (kRecipe) for an unknown
/// name or for a model with other options than a set needs, and (kInput), with the path to put it, if the file has not been fetched.
void resolve_weights(Recipe& recipe, const WeightRegistry& registry);

}  // namespace galley
