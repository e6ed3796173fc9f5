// The tools with different tasks: segmentation from files to masks, models without a loss, fields that do not fit, several inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

std::string number(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

/// A 24-bit BMP of 8 x 6 pixels: the left part of `split` columns is dark, the right bright.
std::string scene(int split) {
  std::string rows;
  for (int y = 0; y < 6; ++y)
    for (int x = 0; x < 8; ++x) rows += std::string(3, static_cast<char>(x < split ? 20 : 220));
  return "BM" + number(54 + 144, 4) + number(0, 4) + number(54, 4) + number(40, 4) + number(8, 4) + number(6, 4) + number(1, 2) +
         number(24, 2) + std::string(24, '\0') + rows;
}

/// A network of one layer over colors.
const char* kByBrightness =
    "model: {type: layers, input: {shape: [3, 6, 8]}, layers: [{name: classifier, type: conv2d, out_channels: 2, kernel_size: 1}]}\n"
    "task: segmentation\n";

/// Weights that predict 0 for dark pixels and 1 for bright ones.
std::string weights_of(const std::string& path) {
  // Class 0: 1 - 2 (r + g + b); class 1: 2 (r + g + b) - 1.
  const float weight[] = {-2, -2, -2, 2, 2, 2}, bias[] = {1, -1};
  std::string values(reinterpret_cast<const char*>(weight), sizeof weight);
  values.append(reinterpret_cast<const char*>(bias), sizeof bias);
  write_text(path, safetensors_of(R"({"classifier.weight":{"dtype":"F32","shape":[2,3,1,1],"data_offsets":[0,24]},)"
                                  R"("classifier.bias":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}})",
                                  values));
  return path;
}

TEST(Segmentation, FromFilesToMasks) {
  const std::string folder = scratch_folder();
  for (int i = 0; i < 6; ++i) {
    std::filesystem::create_directories(folder + "/images");
    write_text(folder + "/images/s" + std::to_string(i) + ".bmp", scene(2 + i % 5));
  }
  // The predictions of a known model are masks, which are read back exactly as a data set.
  write_text(folder + "/known.yaml", std::string("recipe: 1\n") + kByBrightness +
                                         "data: {val: {source: {type: mask_folder, images: images, masks: out, num_classes: 2}}}\n");
  const std::string known = weights_of(folder + "/known.safetensors");
  const Outcome predicted = run("galley-predict", {folder + "/known.yaml", "weights=" + known, folder + "/images", "--draw",
                                                   folder + "/drawn", "--format", "json", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const Json first = Json::parse(predicted.out.substr(0, predicted.out.find('\n')));
  EXPECT_TRUE(first["file"].get<std::string>().ends_with("images/s0.bmp"));
  EXPECT_EQ(first["mask"], folder + "/drawn/s0.mask.png");
  EXPECT_EQ(first["classes"], Json::parse(R"([{"index":1,"label":"1","share":0.75},{"index":0,"label":"0","share":0.25}])"));
  EXPECT_TRUE(first.contains("provenance"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/drawn/s0.png"));
  std::filesystem::create_directories(folder + "/masks");
  for (int i = 0; i < 6; ++i)
    std::filesystem::rename(folder + "/drawn/s" + std::to_string(i) + ".mask.png", folder + "/masks/s" + std::to_string(i) + ".png");
  const Outcome bare =
      run("galley-predict", {folder + "/known.yaml", "weights=" + known, folder + "/images/s0.bmp", "--format", "json", "-q"});
  EXPECT_TRUE(Json::parse(bare.out)["mask"].is_null()) << "without --draw nothing is written";

  const std::string data =
      "data:\n  root: " + folder +
      "\n  train: {source: {type: mask_folder, images: images, masks: masks, num_classes: 2, classes: [dark, bright]}, pipeline: [{type: "
      "random_horizontal_flip}]}\n"
      "  val: {source: {type: mask_folder, images: images, masks: masks, num_classes: 2, classes: [dark, bright]}, batch: 4}\n";
  const std::string recipe = folder + "/train.yaml";
  write_text(recipe, std::string("recipe: 1\nname: masks\nthreads: 1\n") + kByBrightness + data +
                         "train: {duration: 60 steps, batch: 6, optimizer: {type: adam, lr: 0.1}, validate: 20 steps}\n");
  const Outcome evaluated = run("galley-evaluate", {recipe, "weights=" + known, "--format", "json", "-q"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"]["miou"], 100.0) << "masks are read as they were written";
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"]["pixel_accuracy"], 100.0);
  const Outcome trained = run("galley-train", {recipe, "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  EXPECT_EQ(result["best"]["metric"], "miou");
  EXPECT_EQ(result["metrics"]["miou"], 100.0) << result.dump() << ": two colors are easily told apart";
  const Outcome labeled = run("galley-predict", {folder + "/run", folder + "/images/s1.bmp", "--format", "json", "-q"});
  ASSERT_EQ(labeled.code, 0) << labeled.err;
  EXPECT_EQ(Json::parse(labeled.out)["classes"][0]["label"], "bright") << labeled.out;

  const Outcome wrong =
      run("galley-train", {recipe, "-o", folder + "/wrong", "data.train.source.num_classes=1", "data.train.source.classes=dark", "-q"});
  EXPECT_EQ(wrong.code, 4);
  for (const char* word : {"/masks/s", ".png", "class 1", "num_classes is 1"})
    EXPECT_NE(wrong.err.find(word), std::string::npos) << wrong.err;
  const Outcome more =
      run("galley-train", {recipe, "-o", folder + "/wrong", "data.train.source.num_classes=3", "data.train.source.classes=a,b,c", "-q"});
  EXPECT_EQ(more.code, 3);
  EXPECT_NE(more.err.find("has 3 classes, but the model has 2"), std::string::npos) << more.err;
}

/// The network over colors, for images of `height` x `width` pixels.
std::string by_brightness(int height, int width) {
  return "recipe: 1\ntask: segmentation\nmodel: {type: layers, input: {shape: [3, " + std::to_string(height) + ", " +
         std::to_string(width) + "]}, layers: [{name: classifier, type: conv2d, out_channels: 2, kernel_size: 1}]}\n";
}

// With a center crop and a flip, the mask is placed where the network read the image. The masks are read as labels of whole images.
TEST(Segmentation, MasksAreDrawnWhereTheNetworkLooked) {
  const std::string folder = scratch_folder();
  std::filesystem::create_directories(folder + "/images");
  for (int i = 0; i < 4; ++i) write_text(folder + "/images/s" + std::to_string(i) + ".bmp", scene(3 + i % 3));
  const std::string weights = "weights=" + weights_of(folder + "/known.safetensors");
  write_text(
      folder + "/middle.yaml",
      by_brightness(8, 8) +
          "data: {val: {source: {type: mask_folder, images: images, masks: masks, num_classes: 2}, pipeline: [{type: center_crop, size: "
          "[4, 4]}, {type: random_horizontal_flip, p: 1}, {type: resize, size: [8, 8], interpolation: nearest}]}}\n");
  const Outcome drawn =
      run("galley-predict", {folder + "/middle.yaml", weights, folder + "/images", "--draw", folder + "/masks", "--format", "json", "-q"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(Json::parse(drawn.out.substr(0, drawn.out.find('\n')))["classes"][0]["share"], 0.75)
      << "of the 4 columns that were seen, 3 are bright";
  for (int i = 0; i < 4; ++i)
    std::filesystem::rename(folder + "/masks/s" + std::to_string(i) + ".mask.png", folder + "/masks/s" + std::to_string(i) + ".png");
  write_text(folder + "/whole.yaml",
             by_brightness(6, 8) + "data: {root: " + folder +
                 ", val: {source: {type: mask_folder, images: images, masks: masks, num_classes: 2, ignore_index: 255}, batch: 2}}\n");
  const Outcome evaluated = run("galley-evaluate", {folder + "/whole.yaml", weights, "--format", "json", "-q"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"]["pixel_accuracy"], 100.0);
  const Outcome unseen =
      run("galley-evaluate", {folder + "/whole.yaml", weights, "data.val.source.ignore_index=null", "--format", "json", "-q"});
  EXPECT_EQ(unseen.code, 4) << "outside of the middle the mask says nothing: class 255";
  EXPECT_NE(unseen.err.find("class 255"), std::string::npos) << unseen.err;
  const Outcome distorted = run("galley-predict", {folder + "/middle.yaml", weights, folder + "/images", "--draw", folder + "/again",
                                                   "data.val.pipeline+={type: auto_augment}", "-q"});
  EXPECT_EQ(distorted.code, 3);
  EXPECT_NE(distorted.err.find("the position of the mask in the image is unknown"), std::string::npos) << distorted.err;
}

// Regression and multi-label classification of images: the model sums the colors of the pixels.
TEST(Tasks, NumbersAndLabelsOfImagesArePredicted) {
  const std::string folder = scratch_folder();
  write_text(folder + "/a.bmp", scene(8));  // all pixels are 20 / 255
  const std::string model =
      "model: {type: layers, input: {shape: [3, 6, 8]}, layers: [{name: classifier, type: conv2d, out_channels: 2, kernel_size: 1}, {type: "
      "mean, "
      "dim: [2, 3]}]}\ndata: {val: {source: {type: synthetic}}}\n";
  const std::string weights = "weights=" + weights_of(folder + "/known.safetensors");
  const double logit = 1 - 2 * 3 * 20.0 / 255;  // and its negative
  write_text(folder + "/numbers.yaml", "recipe: 1\nloss: mse\n" + model);
  const Outcome numbers = run("galley-predict", {folder + "/numbers.yaml", weights, folder + "/a.bmp", "--format", "json", "-q"});
  ASSERT_EQ(numbers.code, 0) << numbers.err;
  EXPECT_NEAR(Json::parse(numbers.out)["values"][0].get<double>(), logit, 1e-6);
  EXPECT_NEAR(Json::parse(numbers.out)["values"][1].get<double>(), -logit, 1e-6);
  write_text(folder + "/labels.yaml", "recipe: 1\nloss: bce_with_logits\n" + model);
  const Outcome labels =
      run("galley-predict", {folder + "/labels.yaml", weights, folder + "/a.bmp", "--format", "json", "-q", "--draw", folder});
  ASSERT_EQ(labels.code, 0) << labels.err;
  ASSERT_EQ(Json::parse(labels.out)["labels"].size(), 1u) << labels.out;
  EXPECT_EQ(Json::parse(labels.out)["labels"][0]["index"], 0);
  EXPECT_NEAR(Json::parse(labels.out)["labels"][0]["score"].get<double>(), 1 / (1 + std::exp(-logit)), 1e-6);
  EXPECT_TRUE(std::filesystem::exists(folder + "/a.png"));
  const Outcome both =
      run("galley-predict", {folder + "/labels.yaml", weights, folder + "/a.bmp", "threshold=0.1", "--format", "csv", "-q"});
  EXPECT_NE(both.out.find(",2,1,1,"), std::string::npos) << both.out;
  const Outcome none =
      run("galley-predict", {folder + "/labels.yaml", weights, folder + "/a.bmp", "threshold=0.9", "--format", "csv", "-q"});
  EXPECT_EQ(none.out, "file,rank,index,label,score\n" + folder + "/a.bmp,,,,\n") << "a sample without a label is a result";
  const Outcome tensors = run("galley-predict", {folder + "/labels.yaml", weights, folder + "/a.bmp", "task=null", "-q"});
  EXPECT_EQ(tensors.code, 3);
  for (const char* word : {"has no task", "-o out.safetensors"}) EXPECT_NE(tensors.err.find(word), std::string::npos) << tensors.err;
}

TEST(Tasks, ModelsWithoutALossPredictAndAreTimed) {
  const std::string folder = scratch_folder();
  const std::string recipe = folder + "/plain.yaml";
  write_text(recipe, "recipe: 1\nmodel: {type: layers, input: {shape: [3]}, layers: [{name: fc, type: linear, out_features: 2}]}\n");
  const float values[] = {1, 0, 0, 0, 1, 0, 10, 20, 1, 2, 3, 4, 5, 6};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
  write_text(folder + "/w.safetensors", safetensors_of(R"({"fc.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                                       R"("fc.bias":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}})",
                                                       bytes.substr(0, 32)));
  write_text(folder + "/in.safetensors",
             safetensors_of(R"({"input":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", bytes.substr(32)));
  const Outcome predicted = run("galley-predict", {recipe, "weights=" + folder + "/w.safetensors", "--tensors", folder + "/in.safetensors",
                                                   "-o", folder + "/out.safetensors", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  float got[4];
  const std::string out = tensor_bytes(folder + "/out.safetensors", "output");
  ASSERT_EQ(out.size(), sizeof got);
  std::memcpy(got, out.data(), sizeof got);
  EXPECT_EQ((std::vector<float>(got, got + 4)), (std::vector<float>{11, 22, 14, 25}));
  EXPECT_EQ(run("galley-recipes", {"validate", recipe}).code, 0);
  EXPECT_EQ(run("galley-benchmark", {recipe, "stop.min_runs=3", "stop.max_time=200ms", "warmup=1", "-q"}).code, 0);
  EXPECT_EQ(
      run("galley-profile", {recipe, "what=forward", "schedule.skip_first=0", "schedule.active=1", "-o", folder + "/t.json", "-q"}).code,
      0);
  const Outcome trained = run("galley-train", {recipe, "train.duration=1 step", "train.batch=2", "train.optimizer.type=sgd",
                                               "train.optimizer.lr=1", "data.train.source.type=synthetic", "-o", folder + "/run", "-q"});
  EXPECT_EQ(trained.code, 3);
  EXPECT_NE(trained.err.find("has no default loss"), std::string::npos) << trained.err;
}

TEST(Tasks, ModelsOfSeveralInputsBindFieldsByName) {
  const std::string folder = scratch_folder();
  const std::string recipe = folder + "/two.yaml";
  write_text(recipe,
             "recipe: 1\nname: two\nthreads: 1\n"
             "model:\n  type: layers\n  inputs: {left: [3], right: {shape: [3]}}\n  outputs: [fc, both]\n"
             "  layers: [{name: both, type: add, inputs: [left, right]}, {name: fc, type: linear, out_features: 2}]\n"
             "loss: mse\n"
             "data: {root: " +
                 folder +
                 ", train: {source: {type: tensors, path: data.safetensors}}, val: {from: train}}\n"
                 "train: {duration: 600 steps, batch: 4, optimizer: {type: sgd, lr: 0.2}, validate: null}\ncheckpoint: null\n");
  // target = [l0 + r0, l1 + r1].
  const float left[] = {1, 2, 0, 0, 1, 1, 2, -1, 0, -1, 0, 2}, right[] = {0, 1, 1, 1, 1, 0, -2, 0, 1, 1, 2, 1};
  std::string target;
  for (int n = 0; n < 4; ++n) {
    for (int i = 0; i < 2; ++i) {
      const float value = left[3 * n + i] + right[3 * n + i];
      target.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  const std::string inputs =
      std::string(reinterpret_cast<const char*>(left), sizeof left) + std::string(reinterpret_cast<const char*>(right), sizeof right);
  const std::string header =
      R"("left":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]},"right":{"dtype":"F32","shape":[4,3],"data_offsets":[48,96]})";
  write_text(folder + "/data.safetensors",
             safetensors_of("{" + header + R"(,"target":{"dtype":"F32","shape":[4,2],"data_offsets":[96,128]}})", inputs + target));
  write_text(folder + "/in.safetensors", safetensors_of("{" + header + "}", inputs));
  const Outcome trained = run("galley-train", {recipe, "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_LT(Json::parse(trained.out)["metrics"]["loss"].get<double>(), 5e-3) << "a linear model learns a sum";
  const Outcome predicted =
      run("galley-predict", {folder + "/run", "--tensors", folder + "/in.safetensors", "-o", folder + "/out.safetensors", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(tensor_bytes(folder + "/out.safetensors", "fc").size(), 32u);
  float both[12];
  std::memcpy(both, tensor_bytes(folder + "/out.safetensors", "both").data(), sizeof both);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(both[i], left[i] + right[i]);
  const Outcome dumped = run("galley-train", {recipe, "--dump-recipe=full"});
  write_text(folder + "/again.yaml", dumped.out);
  EXPECT_EQ(run("galley-train", {folder + "/again.yaml", "--dump-recipe=full"}).out, dumped.out);
  const Outcome changed = run("galley-train", {recipe, "model.inputs.left.dtype=i64", "model.inputs.right.shape=4", "--dump-recipe"});
  EXPECT_NE(changed.out.find("dtype: i64"), std::string::npos) << changed.out << changed.err;
  EXPECT_EQ(run("galley-train", {recipe, "model.inputs.left.size=3", "--dump-recipe"}).code, 3);
  const Outcome missing = run("galley-train", {recipe, "data.train.pipeline=rename", "data.train.pipeline.rename.from=left",
                                               "data.train.pipeline.rename.to=first", "-o", folder + "/x", "-q"});
  EXPECT_EQ(missing.code, 3);
  for (const char* word : {"input `left`", "first", "right", "target", "rename"})
    EXPECT_NE(missing.err.find(word), std::string::npos) << missing.err;
}

TEST(Fields, ItemsThatDoNotFitAreErrorsWithTheirPlace) {
  const std::string folder = scratch_folder();
  const std::string recipe = folder + "/flip.yaml";
  write_text(
      recipe,
      "recipe: 1\nmodel: {type: mlp, num_classes: 3}\n"
      "data:\n  train:\n    source: {type: synthetic, samples: 8, shape: [5]}\n    pipeline:\n      - {type: random_horizontal_flip}\n"
      "train: {duration: 1 step, batch: 2, optimizer: {type: sgd, lr: 0.1}}\n");
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run", "-q"});
  EXPECT_EQ(outcome.code, 3);
  for (const char* word : {"flip.yaml:7:", "item 0: random_horizontal_flip needs an image", "values `input` f32 [5]"})
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
  const Outcome json = run("galley-train", {recipe, "-o", folder + "/run", "-q", "--format", "json"});
  EXPECT_EQ(Json::parse(json.err)["error"]["key"], "data.train.pipeline.0") << json.err;
}

}  // namespace
}  // namespace galley::testing_cli
