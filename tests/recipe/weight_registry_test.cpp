// Laws: every built-in registry file is valid and has a default, a hash that agrees with its url, and 1000 categories if it has any; files
// of the user add to them and take precedence; unknown references are errors with near names; a missing file is an input error with the
// path where it belongs.
#include "libcore/recipe/weight_registry.h"

#include <gtest/gtest.h>

#include <map>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/recipe/loader.h"
#include "libcore/recipe/sections.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

const std::string kBuiltIn = GALLEY_SOURCE_DIR "/recipes/weights";

template <class Action>
std::string registry_error(const Action& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.text();
    return error.text();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(WeightRegistry, BuiltInFiles) {
  const WeightRegistry registry({kBuiltIn}, "/cache");
  const std::vector<std::string> models = registry.models();
  EXPECT_EQ(models.size(), 98u) << "the classifiers of torchvision 0.29, twelve detectors, two RAFTs, three of clips, efficientnet_lite0";
  int sets = 0;
  for (const std::string& model : models) {
    SCOPED_TRACE(model);
    int defaults = 0;
    for (const PublishedWeights& entry : registry.of(model)) {
      ++sets;
      defaults += entry.is_default;
      // The digits in the file name are the first digits of its hash.
      const size_t digits = entry.url.rfind('-') + 1;
      EXPECT_TRUE(entry.sha256.starts_with(entry.url.substr(digits, entry.url.rfind('.') - digits))) << entry.url;
      EXPECT_EQ(entry.file, "/cache/" + entry.url.substr(entry.url.rfind('/') + 1));
      EXPECT_TRUE(entry.transforms.resize >= entry.transforms.crop || !entry.transforms.size.empty());
      EXPECT_EQ(entry.transforms.crop, entry.input_size);
      EXPECT_GT(entry.num_params, 900'000);
      EXPECT_NE(entry.pipeline().find("normalize"), std::string::npos);
      const std::map<std::string, size_t> classes{
          {"coco.txt", 91}, {"coco_person.txt", 2}, {"imagenet1k.txt", 1000}, {"kinetics400.txt", 400}};
      EXPECT_TRUE(entry.categories.empty() || entry.category_names().size() == classes.at(entry.categories));
      EXPECT_TRUE(model.starts_with("raft") || entry.categories.empty() == entry.metrics.empty());
    }
    EXPECT_EQ(defaults, 1);
  }
  EXPECT_EQ(sets, 140);
  for (const std::string& recipe : list_recipes(GALLEY_SOURCE_DIR "/recipes"))
    EXPECT_FALSE(recipe.starts_with("weights/")) << "a registry file is not a recipe";
}

TEST(WeightRegistry, References) {
  const WeightRegistry registry({kBuiltIn}, "/cache");
  const PublishedWeights v2 = registry.find("resnet50/IMAGENET1K_V2");
  EXPECT_EQ(v2.id(), "resnet50/IMAGENET1K_V2");
  EXPECT_EQ(v2.num_params, 25'557'032);
  EXPECT_EQ(v2.metrics, (std::vector<std::pair<std::string, std::string>>{{"top1", "80.858"}, {"top5", "95.434"}}));
  EXPECT_EQ(v2.pipeline(),
            "- {type: resize, size: 232, interpolation: bilinear, antialias: true}\n- {type: center_crop, size: 224}\n"
            "- {type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}\n");
  EXPECT_EQ(v2.category_names().at(207), "golden retriever");
  EXPECT_EQ(registry.find("resnet50").name, "IMAGENET1K_V2");
  EXPECT_EQ(registry.find("resnet50/default").name, "IMAGENET1K_V2");
  EXPECT_EQ(registry.find("densenet121").rename.size(), 10u);
  EXPECT_NE(registry_error([&] { registry.find("resnet50/IMAGENET1K_V3"); }, ErrorCode::kRecipe).find("did you mean 'IMAGENET1K_V"),
            std::string::npos);
  EXPECT_NE(registry_error([&] { registry.find("resnet51"); }, ErrorCode::kRecipe).find("did you mean 'resnet50'?"), std::string::npos);
  for (const char* other : {"../resnet50", "", "/etc", ".", "resnet50/../x"})
    registry_error([&] { registry.find(other); }, ErrorCode::kRecipe);
  EXPECT_TRUE(registry.is_reference("resnet50/IMAGENET1K_V9"));
  EXPECT_TRUE(registry.is_reference("default"));
  for (const char* file : {"resnet50", "resnet50/a/b", "runs/mine", "./resnet50/x", "w.safetensors"})
    EXPECT_FALSE(registry.is_reference(file)) << file;
}

TEST(WeightRegistry, Detectors) {
  const WeightRegistry registry({kBuiltIn}, "/cache");
  EXPECT_EQ(registry.find("fasterrcnn_mobilenet_v3_large_320_fpn").pipeline(),
            "- {type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}\n"
            "- {type: resize, size: 320, max_size: 640, rule: scale, interpolation: bilinear, antialias: false}\n"
            "- {type: pad_to, size: 640, sizes: [320x448, 320x640, 448x320, 640x320]}\n");
  EXPECT_EQ(registry.find("ssdlite320_mobilenet_v3_large").pipeline(),
            "- {type: normalize, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}\n"
            "- {type: resize, size: [320, 320], interpolation: bilinear, antialias: false}\n");
  using Options = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(registry.find("retinanet_resnet50_fpn").options_of_model, (Options{{"frozen_norm", "true"}, {"frozen_eps", "0"}}));
  EXPECT_EQ(registry.find("fcos_resnet50_fpn").options_of_model, (Options{{"frozen_norm", "true"}}));
  EXPECT_EQ(registry.find("fasterrcnn_resnet50_fpn_v2").options_of_model, Options{});
  EXPECT_EQ(registry.find("fcos_resnet50_fpn").category_names().at(18), "dog");
  EXPECT_EQ(registry.find("maskrcnn_resnet50_fpn").options_of_model, (Options{{"frozen_norm", "true"}, {"frozen_eps", "0"}}));
  EXPECT_EQ(registry.find("keypointrcnn_resnet50_fpn/COCO_LEGACY").options_of_model, (Options{{"frozen_norm", "true"}}));
  EXPECT_EQ(registry.find("keypointrcnn_resnet50_fpn").category_names().at(1), "person");
}

TEST(WeightRegistry, Videos) {
  const WeightRegistry registry({kBuiltIn}, "/cache");
  EXPECT_EQ(registry.find("r2plus1d_18").pipeline(),
            "- {type: resize, size: [128, 171], interpolation: bilinear, antialias: false}\n- {type: center_crop, size: 112}\n"
            "- {type: normalize, mean: [0.43216, 0.394666, 0.37645], std: [0.22803, 0.22145, 0.216989]}\n");
  EXPECT_EQ(registry.find("mc3_18").category_names().at(399), "zumba");
}

TEST(WeightRegistry, TheUsersOwn) {
  const TemporaryFolder folder;
  write_file(folder / "resnet50.yaml",
             "model: resnet50\ndefault: MINE\nentries:\n  - {name: MINE, path: mine.pth, categories: names.txt}\n"
             "  - {name: IMAGENET1K_V1, url: \"https://example.org/a/other-01234567.pth\", sha256: \"01234567\"}\n");
  write_file(folder / "names.txt", "cat\ndog");
  write_file(folder / "own.yaml", "model: own\nentries: [{name: A, path: /data/a.safetensors}]\n");
  const WeightRegistry registry({kBuiltIn, folder.path(), folder / "missing"}, "/cache");
  EXPECT_EQ(registry.find("resnet50").file, folder / "mine.pth");
  EXPECT_EQ(registry.find("resnet50").category_names(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(registry.find("resnet50/IMAGENET1K_V1").file, "/cache/other-01234567.pth");
  EXPECT_EQ(registry.of("resnet50").size(), 3u);
  EXPECT_EQ(registry.find("own/A").file, "/data/a.safetensors");
  EXPECT_NE(registry_error([&] { registry.find("own"); }, ErrorCode::kRecipe).find("it has A"), std::string::npos);
  EXPECT_EQ(registry.models().size(), 99u);

  const auto broken = [&](const std::string& text) {
    write_file(folder / "own.yaml", text);
    return registry_error([&] { registry.of("own"); }, ErrorCode::kRecipe);
  };
  EXPECT_NE(broken("model: other\nentries: []\n").find("the file name says 'own'"), std::string::npos);
  EXPECT_NE(broken("model: own\ndefault: B\nentries: [{name: A, path: x}]\n").find("'B', is not among"), std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: A}]\n").find("a url or a path"), std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: A, path: x, sha256: xyz}]\n").find("hexadecimal"), std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: ../A, path: x}]\n").find("a path"), std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: A, url: \"https://example.org/..\"}]\n").find("file name"), std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: A, path: x, categories: ../../etc/passwd}]\n").find("in the same folder"),
            std::string::npos);
  EXPECT_NE(broken("model: own\nentries: [{name: A, path: x, ulr: y}]\n").find("own.yaml:2"), std::string::npos)
      << "the place of an unknown key";
}

TEST(WeightRegistry, ResolvesARecipe) {
  const TemporaryFolder folder;
  write_file(folder / "own.yaml",
             "model: own\ndefault: A\nentries: [{name: A, path: a.pth, transforms: {crop: 32}}, {name: B, url: \"http://x/b.pth\"}]\n");
  const WeightRegistry registry({folder.path()}, folder / "cache");
  const auto recipe_with = [](const std::string& from) {
    static const ComponentRegistry none;
    Recipe recipe(none);
    recipe.model.type = "own";
    auto source = std::make_unique<WeightSource>();
    source->from = from;
    recipe.weights.load.items.push_back(std::move(source));
    return recipe;
  };
  Recipe recipe = recipe_with("default");
  EXPECT_NE(registry_error([&] { resolve_weights(recipe, registry); }, ErrorCode::kInput).find(folder / "a.pth"), std::string::npos);
  write_file(folder / "a.pth", "x");
  resolve_weights(recipe, registry);
  const auto& source = recipe.weights.load.at<WeightSource>(0);
  EXPECT_EQ(source.from, "default") << "the recipe's text stays";
  EXPECT_EQ(source.path(), folder / "a.pth");
  ASSERT_NE(recipe.weights.model_default, nullptr);
  EXPECT_EQ(recipe.weights.model_default->pipeline(), "- {type: center_crop, size: 32}\n");

  Recipe unfetched = recipe_with("own/B");
  const std::string text = registry_error([&] { resolve_weights(unfetched, registry); }, ErrorCode::kInput);
  EXPECT_NE(text.find("no file " + folder / "cache/b.pth"), std::string::npos) << text;
  EXPECT_NE(text.find("galley-weights fetch own/B"), std::string::npos);
  EXPECT_NE(text.find("put http://x/b.pth there"), std::string::npos);

  Recipe file = recipe_with("w.safetensors");
  resolve_weights(file, registry);
  EXPECT_EQ(file.weights.load.at<WeightSource>(0).path(), "w.safetensors");
}

TEST(WeightRegistry, TheModelNeedsTheOptionsOfItsWeights) {
  struct Params : OptionsOf<Params> {
    bool frozen_norm = false;
    double frozen_eps = 1e-5;
    std::optional<int64_t> layers = {};
    void options(OptionVisitor& v) override {
      v.option({.name = "frozen_norm"}, frozen_norm);
      v.option({.name = "frozen_eps"}, frozen_eps);
      v.option({.name = "layers"}, layers);
    }
  };
  const TemporaryFolder folder;
  write_file(folder / "own.yaml",
             "model: own\nentries: [{name: A, path: a.pth, options: {frozen_norm: true, frozen_eps: 0}}, {name: B, path: a.pth}]\n");
  write_file(folder / "a.pth", "x");
  const WeightRegistry registry({folder.path()}, folder / "cache");
  const auto resolve = [&](const std::string& from, bool frozen, double eps) {
    static const ComponentRegistry none;
    Recipe recipe(none);
    recipe.model.type = "own";
    auto params = std::make_unique<Params>();
    params->frozen_norm = frozen;
    params->frozen_eps = eps;
    recipe.model.params = std::move(params);
    auto source = std::make_unique<WeightSource>();
    source->from = from;
    recipe.weights.load.items.push_back(std::move(source));
    resolve_weights(recipe, registry);
  };
  resolve("own/A", true, 0);
  resolve("own/B", false, 1e-5);
  EXPECT_NE(registry_error([&] { resolve("own/A", false, 1e-5); }, ErrorCode::kRecipe).find("model.frozen_norm=true model.frozen_eps=0"),
            std::string::npos);
  const std::string one = registry_error([&] { resolve("own/A", true, 1e-5); }, ErrorCode::kRecipe);
  EXPECT_NE(one.find("model.frozen_eps=0"), std::string::npos) << one;
  EXPECT_EQ(one.find("frozen_norm"), std::string::npos) << one;
}

}  // namespace
}  // namespace galley
