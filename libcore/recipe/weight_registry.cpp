#include "libcore/recipe/weight_registry.h"

#include <algorithm>
#include <memory>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/recipe/lora.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/sections.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {
namespace {

constexpr std::string_view kSuffix = ".yaml";
constexpr int64_t kFileLimit = 1 << 20;

/// A registry file: the sets of one model.
struct RegistryFile : OptionsOf<RegistryFile> {
  void options(OptionVisitor& v) override {
    v.option({.name = "model", .doc = "name in the zoo", .required = true}, model);
    v.option({.name = "default", .doc = "the set to use if none is named"}, default_name);
    v.list({.name = "entries", .doc = "published sets", .required = true}, entries.items, make_options<PublishedWeights>);
  }
  std::string model, default_name;
  OptionList entries;
};

[[noreturn]] void fail_unknown(const std::string& what, const std::string& word, const std::vector<std::string>& known,
                               const std::string& otherwise) {
  const std::string near = nearest(word, known);
  throw Error(ErrorCode::kRecipe, what).suggest(near.empty() ? otherwise : cat("did you mean '", near, "'?"));
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Whether a name can be part of a path without leaving its folder.
bool is_plain_name(std::string_view name) { return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos; }

void check(const PublishedWeights& entry, const std::string& file) {
  const auto wrong = [&](std::string_view why) { fail(ErrorCode::kRecipe, file, ": the entry '", entry.name, "' ", why); };
  if (!is_plain_name(entry.name)) wrong("has a name that is empty, hidden or a path");
  if (entry.url.empty() == entry.path.empty()) wrong("needs either a url or a path");
  if (!entry.url.empty() && !is_plain_name(entry.url.substr(entry.url.rfind('/') + 1)))
    wrong("has a url that does not end with a file name");
  if (!is_hex(entry.sha256) || (!entry.sha256.empty() && (entry.sha256.size() < 8 || entry.sha256.size() > 64)))
    wrong("has a sha256 that is not 8 to 64 lower-case hexadecimal digits");
  if (!entry.categories.empty() && !is_plain_name(entry.categories))
    wrong("has categories that are not the name of a file in the same folder");
  if (entry.transforms.mean.size() != entry.transforms.std.size()) wrong("has different numbers of means and standard deviations");
}

std::string list_text(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + cat(value);
  return "[" + text + "]";
}

/// Canvases of images whose sides are up to 4:3 and up to the limit, either way round; mixed batches get the square.
std::string canvases(const PublishedTransforms& transforms) {
  if (transforms.resize == 0 || transforms.max_size == 0) return "";
  const auto rounded = [](int64_t side) { return (side + 31) / 32 * 32; };
  const int64_t side = rounded(transforms.resize), usual = rounded((transforms.resize * 4 + 2) / 3), longest = rounded(transforms.max_size);
  return cat(", sizes: [", side, "x", usual, ", ", side, "x", longest, ", ", usual, "x", side, ", ", longest, "x", side, "]");
}

}  // namespace

void PublishedTransforms::options(OptionVisitor& v) {
  v.option({.name = "resize", .doc = "length of the smaller side after the resize", .unit = "pixels", .min = 0}, resize);
  v.option({.name = "max_size", .doc = "as in the transform resize", .unit = "pixels", .min = 0}, max_size);
  v.option({.name = "size", .doc = "height and width of a resize without regard to the aspect ratio", .unit = "pixels", .min = 1}, size);
  v.option({.name = "pad_to", .doc = "as in the transform pad_to", .unit = "pixels", .min = 0}, pad_to);
  v.option({.name = "crop", .doc = "side of the square of the center crop", .unit = "pixels", .min = 0}, crop);
  v.option({.name = "interpolation", .doc = "as in the transform resize"}, interpolation);
  v.option({.name = "antialias", .doc = "as in the transform resize"}, antialias);
  v.option({.name = "mean", .doc = "mean of each channel, of values in 0..1"}, mean);
  v.option({.name = "std", .doc = "standard deviation of each channel"}, std);
}

void PublishedWeights::options(OptionVisitor& v) {
  v.option({.name = "name", .doc = "name of the set; recipes refer to MODEL/NAME", .required = true}, name);
  v.option({.name = "about", .doc = "description in one line"}, about);
  v.option({.name = "url", .doc = "download location for galley-weights fetch"}, url);
  v.option({.name = "path", .doc = "a local file, instead of url"}, path);
  v.option({.name = "sha256", .doc = "digest of the file: all digits, or a prefix"}, sha256);
  v.option({.name = "megabytes", .doc = "size of the file", .unit = "MiB", .min = 0}, megabytes);
  v.option({.name = "categories", .doc = "file in the same folder with one class name per line"}, categories);
  v.option({.name = "input_size", .doc = "side of the images in training", .unit = "pixels", .min = 0}, input_size);
  v.option({.name = "min_size", .doc = "smallest allowed side of an image", .unit = "pixels", .min = 0}, min_size);
  v.section({.name = "transforms", .doc = "preprocessing of an image"}, transforms);
  v.pairs({.name = "metrics", .doc = "published results: top1, top5 and map in percent, epe in pixels"}, metrics);
  v.pairs({.name = "options", .doc = "options of the model that the weights need, where they are not the defaults"}, options_of_model);
  v.option({.name = "num_params", .doc = "parameters of the model", .min = 0}, num_params);
  v.option({.name = "gmacs", .doc = "1e9 multiply-adds per sample, as published", .min = 0}, gmacs);
  v.option({.name = "recipe", .doc = "how the weights were trained"}, recipe);
  v.option({.name = "license", .doc = "license of the weights, if it is not the model's"}, license);
  v.pairs({.name = "rename", .doc = "names in the file and the names to replace them with"}, rename);
  v.option({.name = "ignore", .doc = "selectors of tensors that are not loaded"}, ignore);
}

std::string PublishedWeights::pipeline() const {
  std::string text;
  const std::string normalize =
      transforms.mean.empty() ? ""
                              : cat("- {type: normalize, mean: ", list_text(transforms.mean), ", std: ", list_text(transforms.std), "}\n");
  // torchvision's detectors resize floats.
  const bool normalized_first = transforms.pad_to > 0 || (!transforms.size.empty() && transforms.crop == 0);
  if (normalized_first) text += normalize;
  if (transforms.resize > 0 || !transforms.size.empty()) {
    const std::vector<int64_t>& sides = transforms.size;
    text += cat("- {type: resize, size: ", sides.empty() ? cat(transforms.resize) : cat("[", sides.front(), ", ", sides.back(), "]"));
    if (transforms.max_size > 0) text += cat(", max_size: ", transforms.max_size, ", rule: scale");  // of torchvision's detectors
    text += cat(", interpolation: ", transforms.interpolation, ", antialias: ", transforms.antialias ? "true" : "false", "}\n");
  }
  if (transforms.crop > 0) text += cat("- {type: center_crop, size: ", transforms.crop, "}\n");
  if (!normalized_first) text += normalize;
  if (transforms.pad_to > 0) text += cat("- {type: pad_to, size: ", transforms.pad_to, canvases(transforms), "}\n");
  return text;
}

std::vector<std::string> PublishedWeights::category_names() const {
  std::vector<std::string> names;
  if (categories.empty()) return names;
  const std::string text = read_file(parent_folder(registry_file) + "/" + categories, kFileLimit);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

WeightRegistry::WeightRegistry(std::vector<std::string> folders, std::string cache_folder)
    : folders_(std::move(folders)), cache_folder_(std::move(cache_folder)) {}

std::vector<std::string> WeightRegistry::models() const {
  std::set<std::string> names;
  for (const std::string& folder : folders_) {
    if (!is_folder(folder)) continue;
    for (const FolderEntry& entry : list_folder(folder)) {
      if (!entry.is_folder && entry.name.ends_with(kSuffix)) names.insert(entry.name.substr(0, entry.name.size() - kSuffix.size()));
    }
  }
  return {names.begin(), names.end()};
}

bool WeightRegistry::has(std::string_view model) const {
  return is_plain_name(model) && std::any_of(folders_.begin(), folders_.end(),
                                             [&](const std::string& folder) { return file_exists(cat(folder, "/", model, kSuffix)); });
}

std::vector<PublishedWeights> WeightRegistry::of(const std::string& model) const {
  if (!has(model))
    fail_unknown(cat("there are no published weights for the model '", model, "'"), model, models(), "galley-weights ls lists them");
  std::vector<PublishedWeights> found;
  std::string default_name;
  for (const std::string& folder : folders_) {
    const std::string file = cat(folder, "/", model, kSuffix);
    if (!file_exists(file)) continue;
    RegistryFile content;
    read_options(parse_yaml(std::make_shared<TextSource>(TextSource{file, read_file(file, kFileLimit)})), content);
    GALLEY_CHECK(content.model == model, file, ": `model` is '", content.model, "', but the file name says '", model, "'");
    if (!content.default_name.empty()) default_name = content.default_name;
    for (size_t i = 0; i < content.entries.size(); ++i) {
      PublishedWeights entry = content.entries.at<PublishedWeights>(i);
      check(entry, file);
      entry.model = model;
      entry.registry_file = file;
      if (entry.path.empty()) {
        entry.file = cache_folder_ + "/" + entry.url.substr(entry.url.rfind('/') + 1);
      } else {
        entry.file = entry.path.front() == '/' ? entry.path : folder + "/" + entry.path;
      }
      std::erase_if(found, [&](const PublishedWeights& earlier) { return earlier.name == entry.name; });
      found.push_back(std::move(entry));
    }
  }
  for (PublishedWeights& entry : found) entry.is_default = entry.name == default_name;
  const bool has_default = std::any_of(found.begin(), found.end(), [](const PublishedWeights& entry) { return entry.is_default; });
  GALLEY_CHECK(default_name.empty() || has_default, "the default of the model ", model, ", '", default_name,
               "', is not among its published weights");
  return found;
}

PublishedWeights WeightRegistry::find(const std::string& reference) const {
  const size_t slash = reference.find('/');
  const std::string model = reference.substr(0, slash), name = slash == std::string::npos ? "default" : reference.substr(slash + 1);
  std::vector<std::string> names;
  for (PublishedWeights& entry : of(model)) {
    if (entry.name == name || ((name == "default" || name == "DEFAULT") && entry.is_default)) return std::move(entry);
    names.push_back(entry.name);
  }
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  fail_unknown(cat("the model ", model, " has no published weights '", name, "'; it has ", list), name, names,
               cat("weights=", model, "/", names.empty() ? "" : names.front()));
}

bool WeightRegistry::is_reference(const std::string& from) const {
  if (from == "default") return !file_exists(from);
  const size_t slash = from.find('/');
  return slash != std::string::npos && from.find('/', slash + 1) == std::string::npos && has(from.substr(0, slash)) && !file_exists(from);
}

namespace {

/// Whether an option of a struct has the value that the text says.
class HasValue : public OptionVisitor {
 public:
  HasValue(std::string_view name, const std::string& text) : name_(name), text_(text) {}
  bool same = true;
  using OptionVisitor::option;
  void option(const OptionInfo& info, bool& value) override { compare(info, value ? "true" : "false"); }
  void option(const OptionInfo& info, int64_t& value) override { compare(info, std::to_string(value)); }
  void option(const OptionInfo& info, double& value) override { compare(info, cat(value)); }
  void option(const OptionInfo& info, std::string& value) override { compare(info, value); }
  void option(const OptionInfo&, std::vector<int64_t>&) override {}
  void option(const OptionInfo&, std::vector<double>&) override {}
  void option(const OptionInfo&, std::vector<std::string>&) override {}
  void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) override {
    compare(info, std::string(names[static_cast<size_t>(value)]));
  }
  void section(const OptionInfo&, Options&) override {}
  bool present(const OptionInfo&, bool has_value) override { return has_value; }

 private:
  void compare(const OptionInfo& info, const std::string& value) {
    if (info.name == name_) same = value == text_;
  }
  std::string_view name_;
  const std::string& text_;
};

/// Throws if the model that the weights are for has other options than they need.
void check_model(const Component& model, const PublishedWeights& entry) {
  if (model.type != entry.model || model.params == nullptr) return;
  const std::unique_ptr<Options> params = model.params->clone();
  std::string remedy;
  for (const auto& [name, text] : entry.options_of_model) {
    HasValue has(name, text);
    params->options(has);
    if (!has.same) remedy += cat(remedy.empty() ? "" : " ", "model.", name, "=", text);
  }
  if (remedy.empty()) return;
  throw Error(ErrorCode::kRecipe, cat("the weights ", entry.id(), " are for a model with other options")).key("model").suggest(remedy);
}

}  // namespace

void resolve_weights(Recipe& recipe, const WeightRegistry& registry) {
  if (recipe.lora) resolve_lora(*recipe.lora);
  for (const std::unique_ptr<Options>& item : recipe.weights.load.items) {
    auto& source = static_cast<WeightSource&>(*item);
    if (source.published || !registry.is_reference(source.from)) continue;
    auto entry = std::make_shared<PublishedWeights>(registry.find(source.from == "default" ? recipe.model.type : source.from));
    check_model(recipe.model, *entry);
    if (!file_exists(entry->file)) {
      const std::string remedy = entry->url.empty()
                                     ? "correct the path in " + entry->registry_file
                                     : cat("galley-weights fetch ", entry->id(), " downloads them; or put ", entry->url, " there");
      throw Error(ErrorCode::kInput, cat("the weights ", entry->id(), " are not on this machine: there is no file ", entry->file))
          .key("weights")
          .suggest(remedy);
    }
    source.published = std::move(entry);
  }
  if (!registry.has(recipe.model.type)) return;
  for (PublishedWeights& entry : registry.of(recipe.model.type)) {
    if (entry.is_default) recipe.weights.model_default = std::make_shared<PublishedWeights>(std::move(entry));
  }
}

}  // namespace galley
