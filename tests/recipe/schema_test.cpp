// Laws: all mistakes of a file are reported together with key, place and suggestion; dumps load back to the same recipe; help and JSON
// Schema contain every key.

#include "libcore/recipe/schema.h"

#include <gtest/gtest.h>

#include "libcore/base/file.h"
#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

// All errors of a text, as "line:col key | suggestion".
std::vector<std::string> mistakes(const std::string& text) {
  const Error error = error_of([&] { load(text); });
  std::vector<std::string> out;
  const auto add = [&](const Error& e) {
    out.push_back(cat(e.place().line, ":", e.place().column, " ", e.key(), e.suggestion().empty() ? "" : " | " + e.suggestion()));
  };
  if (error.message().empty()) return out;
  add(error);
  for (const Error& other : error.others()) add(other);
  return out;
}

TEST(Schema, AllErrorsOfAFileAtOnce) {
  const std::string text =
      "recipe: 1\nmodel: {type: resnet18, num_clases: 10}\nepochs: 90\nlearning_rate: 0.1\nx-free: [1]\nseed: -1\nfp16: true\n"
      "data: {train: {source: {type: image_foldr, path: x}, shuffle: maybe, prefetch: 1.5}}\n"
      "train:\n  batch_size: 32\n  duration: 90\n  optimizer: {type: sgd, learning_rate: 0.1}\n  clip: {max: [1]}\n  early_stop: "
      "{patience: 3 epochs}\n"
      "memory_format: nhwc\nlog: {tensorboard: yes}\nname: [a]\n";
  EXPECT_EQ(mistakes(text), (std::vector<std::string>{
                                "2:25 model.num_clases | did you mean 'num_classes'?",
                                "3:1 epochs | did you mean 'train.duration'?",
                                "4:1 learning_rate | did you mean 'train.optimizer.lr'?",
                                "6:7 seed",
                                "7:1 fp16 | did you mean 'precision'?",
                                "8:31 data.train.source.type | did you mean 'image_folder'?",
                                "8:63 data.train.shuffle.enabled",
                                "8:80 data.train.prefetch",
                                "10:3 train.batch_size | did you mean 'batch.global'?",
                                "11:13 train.duration",
                                "12:14 train.optimizer.lr | add it: learning rate",
                                "12:26 train.optimizer.learning_rate | did you mean 'lr'?",
                                "13:15 train.clip.max",
                                "14:15 train.early_stop.metric | add it: validation metric that must improve; ema/NAME: of averages",
                                "15:16 memory_format | did you mean 'channels_last'?",
                                "16:20 log.tensorboard",
                                "17:7 name",
                            }));
}

TEST(Schema, TextOfAnErrorIsExact) {
  const Error error = error_of([] { load(kSmall + "seed: -3\ncheckpoint: {evry: 1 epoch}\n"); });
  EXPECT_EQ(error.text(),
            "standard input:11:7: error: 'seed' is -3; it must be at least 0\n 11 | seed: -3\n    |       ^~\n"
            "standard input:12:14: error: unknown key 'checkpoint.evry'\n 12 | checkpoint: {evry: 1 epoch}\n    |              ^~~~  did "
            "you mean 'every'?");
  EXPECT_EQ(error.code(), ErrorCode::kRecipe);
}

TEST(Schema, MissingAndNull) {
  EXPECT_EQ(mistakes("recipe: 1\n"),
            std::vector<std::string>{"1:1 model | add it: a model and its parameters, or type `layers` with a list of layers"});
  EXPECT_EQ(mistakes("model: resnet18\n"), std::vector<std::string>{"1:1 recipe | add it: version of the recipe language"});
  EXPECT_EQ(mistakes("recipe: 2\nmodel: resnet18\n"), std::vector<std::string>{"1:9 recipe"});
  EXPECT_EQ(mistakes("recipe: 1\nmodel: {num_classes: 3}\n"),
            std::vector<std::string>{"2:8 model.type | write one of: resnet18, resnet50, layers"});
  EXPECT_EQ(mistakes("recipe: 1\nmodel: resnet18\nseed: null\nlog: null\n"),
            (std::vector<std::string>{"3:7 seed", "4:6 log | write its keys, or remove it"}));
  EXPECT_TRUE(
      mistakes("recipe: 1\nmodel: resnet18\ntrain: {clip: null, validate: null}\ncheckpoint: null\ndata: {train: {pipeline: null}}\n")
          .empty());
}

TEST(Schema, MeaningsOfSeveralKeys) {
  EXPECT_TRUE(mistakes(kSmall + "deterministic: true\n").empty());
  EXPECT_EQ(load(kSmall, {"deterministic=true"}).recipe.deterministic.replicas, 8);
  EXPECT_EQ(load(kSmall, {"deterministic=5"}).recipe.deterministic.replicas, 5);
  EXPECT_EQ(mistakes(kSmall + "deterministic: 0\n").size(), 1u);
  const Error batch = error_of([] { load(kSmall, {"batch.micro=48"}); });
  EXPECT_EQ(batch.message(), "train.batch: global 256 is not a multiple of micro 48 (256 = 5 * 48 + 16)");
  EXPECT_EQ(batch.suggestion(), "global 240 or 288 would be valid");
  EXPECT_EQ(batch.place().file, "command line") << "the cause, not the section";
  BatchSection section;
  section.global = 256;
  section.micro = AutoCount(32);
  EXPECT_EQ(plan_batch(section, 2).accumulation, 4);
  EXPECT_EQ(plan_batch(section, 2).micro, 32);
  EXPECT_EQ(plan_replicas(section, 8, 3).micro, 32);  // whatever `micro` and the ranks
  EXPECT_EQ(plan_replicas(section, 10, 3).micro, 26);
  EXPECT_EQ(error_of([&] { plan_replicas(section, 257); }).suggestion(), "write deterministic: 256, or a larger batch");
  EXPECT_EQ(error_of([&] { plan_replicas(section, 8, 9); }).message(), "deterministic has 8 logical replicas, which 9 ranks cannot divide");
  section.micro = AutoCount();
  EXPECT_EQ(plan_batch(section, 4).micro, 64);
  EXPECT_NE(error_of([&] { plan_batch(section, 3); }).message(), "");
  EXPECT_EQ(mistakes(kSmall + "evaluate: {data: vall}\n"), std::vector<std::string>{"11:18 evaluate.data | did you mean 'val'?"});
}

const std::string kLayersRecipe =
    "recipe: 1\nmodel:\n  type: layers\n  layers:\n    - {name: conv1, type: conv2d, out_channels: 16, kernel_size: 3, bias: false}\n"
    "    - {name: layer1, repeat: 3, layers: [{name: conv1, type: conv2d, out_channels: 16, kernel_size: [3, 1]}, relu, {type: add, "
    "inputs: [relu, in]}]}\n";

TEST(Schema, LayersWrittenOut) {
  const LoadedRecipe loaded =
      load(kLayersRecipe, {"model.layers.conv1.out_channels=8", "model.layers.layer1.layers.add.inputs=relu,conv1"});
  const LayersModel& model = *loaded.recipe.model.as<LayersModel>();
  ASSERT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.layers.at<Layer>(0).layer.as<Conv>()->out_channels, 8);
  EXPECT_FALSE(model.layers.at<Layer>(0).layer.as<Conv>()->bias);
  const Layer& group = model.layers.at<Layer>(1);
  EXPECT_EQ(group.repeat, 3);
  EXPECT_FALSE(group.layer);
  ASSERT_EQ(group.layers.size(), 3u);
  EXPECT_EQ(group.layers.at<Layer>(1).layer.type, "relu");
  EXPECT_EQ(group.layers.at<Layer>(2).inputs, (std::vector<std::string>{"relu", "conv1"}));
  const Recipe copy = loaded.recipe;
  EXPECT_EQ(copy.model.as<LayersModel>()->layers.at<Layer>(1).layers.size(), 3u);
  EXPECT_EQ(
      mistakes("recipe: 1\nmodel: {type: layers, layers: [{type: conv2d, out_channels: 1, kernel_size: 1, stride: 2}, {type: rel}]}\n"),
      (std::vector<std::string>{
          "2:80 model.layers.0.stride | known keys: name, type, out_channels, kernel_size, bias, inputs, repeat, layers",
          "2:99 model.layers.1.type | did you mean 'relu'?"}));
}

// Every kind of value in a dump, in unusual forms.
const std::string kOdd =
    "name: \"a $$x {b}\"\nabout: 'no: #1'\nseed: 9007199254740993\nthreads: 3\nmemory_format: channels_last\nprecision: {compute: bf16, "
    "loss_scale: 0.1, keep_f32: []}\n"
    "weights: [a.safetensors, {from: b, rename: {\"module.\": \"\", \"$$a\": 'x y'}, strict: false}]\nloss: {type: cross_entropy, "
    "label_smoothing: 0.1}\n"
    "metrics: [top1, top5]\ncheckpoint: {every: 20min, keep: {last: 1, best: top1}}\nlog: {every: 1e6 samples, tensorboard: false}\n";

std::string same(const Recipe& recipe) { return dump_recipe(recipe, DumpKind::kFull); }

TEST(Schema, DumpsLoadBackToTheSameRecipe) {
  const std::vector<LoadedRecipe> recipes{
      load(kSmall), load(kLayersRecipe), load(kSmall + kOdd),
      load(kSmall, {"data.val.source=synthetic", "data.val.pipeline=from_weights", "data.test.from=val", "checkpoint=null",
                    "clip.type=value", "ema={}", "train.recompute.match=a,b", "train.freeze+={match: '*', except: fc}",
                    "optimizer.groups+={match: ['type:norm', '*.bias'], weight_decay: 0}",
                    "schedule+={type: linear, from: 0.01x, duration: 5 epochs}", "schedule+=cosine", "data.train.pipeline.0.size=100",
                    "data.train.slice=10..90%", "data.train.shuffle.buffer=100", "device=cuda:1", "early_stop=top1", "validate=1 epoch"})};
  for (const LoadedRecipe& loaded : recipes) {
    for (const DumpKind kind : {DumpKind::kMin, DumpKind::kFull, DumpKind::kOrigin}) {
      const std::string text = dump_recipe(loaded, kind);
      SCOPED_TRACE(text);
      EXPECT_EQ(same(load(text).recipe), same(loaded.recipe));
    }
  }
  EXPECT_EQ(recipes[2].recipe.name, "a $x {b}");
  EXPECT_EQ(recipes[2].recipe.seed, 9007199254740993);
}

TEST(Schema, MinimalDumpHasNoDefaults) {
  EXPECT_EQ(dump_recipe(load(kSmall, {"seed=0", "clip=1"}), DumpKind::kMin),
            "recipe: 1\nmodel: {type: resnet18}\ndata:\n  train:\n    source: {type: image_folder, path: [train]}\n    pipeline:\n"
            "      - {type: random_resized_crop, size: 224}\n      - {type: random_horizontal_flip}\n      - {type: normalize, mean: "
            "[0.5], std: [0.2]}\n"
            "train:\n  duration: 90 epochs\n  batch:\n    global: 256\n  optimizer: {type: sgd, lr: 0.1, momentum: 0.9}\n  clip: {}\n");
  const std::string origin = dump_recipe(load(kSmall, {"seed=4"}), DumpKind::kOrigin);
  EXPECT_NE(origin.find("# standard input:8\n"), std::string::npos) << origin;
  EXPECT_NE(origin.find("seed: 4" + std::string(43, ' ') + "# command line:1\n"), std::string::npos) << origin;
}

TEST(Schema, HelpDocsAndCompletion) {
  const Schema schema = recipe_schema(kRegistry);
  const std::string docs = schema_markdown(schema);
  for (const char* key : {"`train.optimizer.groups.N.match`", "`data.val.source`", "### random_resized_crop", "### sgd",
                          "`checkpoint.keep.best.metric`", "at least 1"}) {
    EXPECT_NE(docs.find(key), std::string::npos) << key;
  }
  EXPECT_EQ(complete_key(schema, "train.op", "train"), std::vector<std::string>{"train.optimizer."});
  EXPECT_EQ(complete_key(schema, "memory_format=ch", "train"),
            (std::vector<std::string>{"memory_format=channels_last", "memory_format=channels_last_3d"}));
  EXPECT_EQ(complete_key(schema, "optimizer=", "train"), (std::vector<std::string>{"optimizer=sgd", "optimizer=adam"}));
  EXPECT_EQ(complete_key(schema, "model.t", "train"), std::vector<std::string>{"model.type="});
  EXPECT_EQ(complete_key(schema, "dur", "train"), std::vector<std::string>{"duration="});
  // The keys of an optimizer are known if the recipe gives its type.
  YamlNode tree = YamlNode::map_of();
  tree.at("train").at("optimizer").at("type") = YamlNode::scalar_of("sgd");
  EXPECT_EQ(complete_key(schema, "optimizer.mo", "train", tree), std::vector<std::string>{"optimizer.momentum="});
  EXPECT_TRUE(complete_key(schema, "optimizer.mo", "train").empty());
  EXPECT_NE(describe_key(schema, "batch.micro", "train").find("train.batch.micro: samples per pass of one rank"), std::string::npos);
  EXPECT_NE(schema_json(schema).find("\"label_smoothing\""), std::string::npos);
  // JSON is YAML, so it must parse and contain the keys at their places.
  const YamlNode json =
      parse_yaml(std::make_shared<TextSource>(TextSource{"schema.json", schema_json(schema)}), {.depth = 1000, .nodes = 1'000'000});
  EXPECT_TRUE(json.find("properties") && json.find("properties")->find("train"));
}

TEST(Schema, ForeignNamesLeadToKeysThatExist) {
  const Schema schema = recipe_schema(kRegistry);
  YamlNode tree = load(kSmall, {"data.val.source=synthetic", "loss=cross_entropy"}).source.tree;
  for (const std::string& name : foreign_names()) {
    const std::string key(foreign_key(name));
    EXPECT_NO_THROW(explain({tree, {}, {}, "", ""}, schema, key, {})) << name << " -> " << key;
  }
}

}  // namespace
}  // namespace galley::recipe_test
