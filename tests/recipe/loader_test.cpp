// Laws of the recipe language: includes, merging, overrides, references, precedence.

#include "libcore/recipe/loader.h"

#include <gtest/gtest.h>

#include "libcore/base/file.h"
#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

const Sgd& sgd(const LoadedRecipe& loaded) { return *loaded.recipe.train.optimizer.algorithm.as<Sgd>(); }

TEST(Loader, SmallRecipeHasDefaults) {
  const LoadedRecipe loaded = load(kSmall);
  const Recipe& recipe = loaded.recipe;
  EXPECT_EQ(recipe.model.type, "resnet18");
  EXPECT_EQ(recipe.model.as<Resnet>()->num_classes, 1000);
  EXPECT_EQ(recipe.train.batch->global, 256);
  EXPECT_FALSE(recipe.train.batch->micro.count);
  EXPECT_EQ(recipe.train.duration->str(), "90 epochs");
  EXPECT_EQ(sgd(loaded).lr, 0.1);
  EXPECT_TRUE(recipe.data.train.shuffle.enabled);
  EXPECT_EQ(recipe.data.train.last_batch, LastBatch::kWrap);
  ASSERT_EQ(recipe.data.train.pipeline.size(), 3u);
  EXPECT_EQ(recipe.data.train.pipeline[1].type, "random_horizontal_flip");
  EXPECT_FALSE(recipe.data.val);
  EXPECT_EQ(recipe.loss.type, "auto");
  EXPECT_TRUE(recipe.checkpoint);
  const LoadedRecipe with_val = load(kSmall, {"data.val.source=synthetic", "data.val.pipeline=from_weights"});
  ASSERT_TRUE(with_val.recipe.data.val);
  EXPECT_FALSE(with_val.recipe.data.val->shuffle.enabled);
  EXPECT_EQ(with_val.recipe.data.val->last_batch, LastBatch::kKeep);
  EXPECT_TRUE(with_val.recipe.data.val->pipeline_from_weights());
}

TEST(Loader, Shorthands) {
  const LoadedRecipe loaded =
      load(kSmall, {"weights=w.safetensors", "precision=bf16", "clip=0.5", "ema=0.99", "validate=2 epochs", "train.recompute=full",
                    "schedule=cosine", "checkpoint=null", "metrics=top1,top5", "log=10 steps"});
  const Recipe& recipe = loaded.recipe;
  ASSERT_EQ(recipe.weights.load.size(), 1u);
  EXPECT_EQ(recipe.weights.load.at<WeightSource>(0).from, "w.safetensors");
  EXPECT_EQ(recipe.precision.compute, PrecisionName::kBf16);
  EXPECT_EQ(recipe.train.clip->max, 0.5);
  EXPECT_EQ(recipe.train.ema->decay, 0.99);
  EXPECT_EQ(recipe.train.validate->every.str(), "2 epochs");
  EXPECT_EQ(recipe.train.recompute->mode, RecomputeMode::kFull);
  EXPECT_EQ(recipe.train.schedule.at(0).type, "cosine");
  EXPECT_FALSE(recipe.checkpoint);
  EXPECT_EQ(recipe.metrics, (std::vector<std::string>{"top1", "top5"}));
  EXPECT_EQ(recipe.log.every.str(), "10 steps");
  const LoadedRecipe list =
      load(kSmall + "weights:\n  load:\n    - a.safetensors\n    - {from: b.safetensors, ignore: fc, rename: {\"module.\": \"\"}}\n");
  EXPECT_EQ(list.recipe.weights.load.at<WeightSource>(1).ignore, std::vector<std::string>{"fc"});
  EXPECT_EQ(list.recipe.weights.load.at<WeightSource>(1).rename.at(0).first, "module.");
  EXPECT_EQ(load(kSmall + "weights: [a.safetensors, b.safetensors]\n").recipe.weights.load.size(), 2u);
}

TEST(Loader, OverridesOfEveryForm) {
  const LoadedRecipe loaded = load(kSmall, {"batch=64", "batch.micro=32", "duration=10epochs", "optimizer.lr=5e-2", "seed=7",
                                            "data.train.pipeline.random_resized_crop.size=192", "data.train.pipeline.2.std=0.1,0.2,0.3",
                                            "train.schedule+=linear", "schedule+={type: cosine, duration: 10%}", "name=a=b",
                                            "about=[1] no list", "optimizer.groups+={match: fc, lr: 10x}", "threads=auto"});
  const Recipe& recipe = loaded.recipe;
  EXPECT_EQ(recipe.train.batch->global, 64);
  EXPECT_EQ(recipe.train.batch->micro.count, 32);
  EXPECT_EQ(recipe.train.duration->value, 10);
  EXPECT_EQ(sgd(loaded).lr, 0.05);
  EXPECT_EQ(recipe.seed, 7);
  EXPECT_EQ(recipe.data.train.pipeline[0].as<Crop>()->size, 192);
  EXPECT_EQ(recipe.data.train.pipeline[2].as<Normalize>()->std, (std::vector<double>{0.1, 0.2, 0.3}));
  ASSERT_EQ(recipe.train.schedule.size(), 2u);
  EXPECT_EQ(recipe.train.schedule[1].as<Phase>()->duration->str(), "10%");
  EXPECT_EQ(recipe.name, "a=b");
  EXPECT_TRUE(recipe.train.optimizer.groups.at<OptimizerGroup>(0).lr->relative);
}

TEST(Loader, TypesComeFromTheSchema) {
  const LoadedRecipe loaded = load(kSmall, {"name=007", "about=no", "seed=1_000_000", "optimizer.lr=1e-4", "data.train.slice=0%..50%"});
  EXPECT_EQ(loaded.recipe.name, "007");
  EXPECT_EQ(loaded.recipe.about, "no");
  EXPECT_EQ(loaded.recipe.seed, 1'000'000);
  EXPECT_EQ(sgd(loaded).lr, 1e-4);
  EXPECT_EQ(loaded.recipe.data.train.slice->of(10), (std::pair<int64_t, int64_t>{0, 5}));
}

TEST(Loader, TypeRules) {
  // A map or word with another type replaces the whole component; `.type=` changes only that key.
  const LoadedRecipe adam = load(kSmall, {"optimizer=adam"});
  ASSERT_EQ(adam.recipe.train.optimizer.algorithm.type, "adam");
  EXPECT_EQ(adam.recipe.train.optimizer.algorithm.as<Adam>()->lr, 1e-3);
  EXPECT_EQ(sgd(load(kSmall, {"optimizer={type: sgd, lr: 3}"})).momentum, 0.9);
  const Error error = error_of([] { load(kSmall, {"optimizer.type=adam"}); });
  EXPECT_EQ(error.message(), "unknown key 'train.optimizer.momentum' (type adam)");
  EXPECT_EQ(error.place().line, 10);
}

TEST(Loader, OverrideMistakes) {
  const auto fails = [](const std::string& argument) { return error_of([&] { load(kSmall, {argument}); }); };
  EXPECT_EQ(fails("optimzer.lr=1").text(),
            "command line:1:1: error: unknown key 'optimzer.lr'\n 1 | optimzer.lr=1\n   | ^~~~~~~~  did you mean 'optimizer'?");
  EXPECT_EQ(fails("optimizer.lrr=1").text(),
            "command line:1:1: error: unknown key 'train.optimizer.lrr' (type sgd)\n 1 | optimizer.lrr=1\n"
            "   | ^~~~~~~~~~~~~  did you mean 'lr'?");
  EXPECT_EQ(fails("batch_size=3").suggestion(), "did you mean 'train.batch.global'?");
  EXPECT_EQ(fails("data.train.pipeline.resized_crop.size=3").code(), ErrorCode::kRecipe);
  EXPECT_NE(fails("data.train.pipeline.normalise.mean=3").suggestion().find("'normalize'"), std::string::npos);
  EXPECT_NE(fails("data.train.pipeline.7.size=3").message().find("3 items"), std::string::npos);
  EXPECT_EQ(fails("duration=90").message().substr(0, 50), "'train.duration': duration '90' has no unit: write");
  EXPECT_EQ(fails("seed+=3").code(), ErrorCode::kRecipe);
  EXPECT_EQ(fails("=3").code(), ErrorCode::kUsage);
  EXPECT_EQ(fails("include=x").code(), ErrorCode::kRecipe);
  EXPECT_EQ(fails("model={type: x").place().str(), "command line:1:7");
  EXPECT_TRUE(is_override("a.b+=v"));
  EXPECT_TRUE(is_override("a.0.b=c=d"));
  EXPECT_FALSE(is_override("./a=b.jpg"));
  EXPECT_FALSE(is_override("dir/a=b"));
  EXPECT_FALSE(is_override("recipe.yaml"));
  const LoadedRecipe twice = load(kSmall, {"data.train.pipeline+={type: normalize, name: second}", "data.train.pipeline.second.mean=1"});
  EXPECT_EQ(twice.recipe.data.train.pipeline[3].as<Normalize>()->mean, std::vector<double>{1});
  EXPECT_NE(
      error_of([] { load(kSmall, {"data.train.pipeline+=normalize", "data.train.pipeline.normalize.mean=1"}); }).message().find("2 items"),
      std::string::npos);
}

TEST(Loader, Unset) {
  LoadOptions options;
  options.unset = {"optimizer.momentum", "data.train.pipeline"};
  const LoadedRecipe loaded = load_with(kSmall, options);
  EXPECT_EQ(sgd(loaded).momentum, 0);
  EXPECT_TRUE(loaded.recipe.data.train.pipeline.empty());
  options.unset = {"optimizer.momentumm"};
  EXPECT_EQ(error_of([&] { load_with(kSmall, options); }).code(), ErrorCode::kRecipe);
}

TEST(Loader, References) {
  LoadOptions options;
  options.environment = [](const std::string& name) { return name == "ROOT" ? std::optional<std::string>("/d") : std::nullopt; };
  const std::string text = kSmall +
                           "vars: {classes: 12, who: \"${vars.x}\", x: me, groups: [{match: fc, lr: 2x}]}\nname: "
                           "\"r_${vars.classes}_$$x_${train.batch.global}\"\n"
                           "about: \"${vars.who} ${env:NONE:-at home} ${seed}\"\n";
  options.overrides = {"model.num_classes=${vars.classes}", "data.root=${env:ROOT:-x}/imagenet", "vars.classes=13",
                       "optimizer.groups=${vars.groups}"};
  const LoadedRecipe loaded = load_with(text, options);
  EXPECT_EQ(loaded.recipe.model.as<Resnet>()->num_classes, 13);
  EXPECT_EQ(loaded.recipe.name, "r_13_$x_256");
  EXPECT_EQ(loaded.recipe.about, "me at home 0");
  EXPECT_EQ(loaded.recipe.data.root, "/d/imagenet");
  EXPECT_EQ(loaded.recipe.train.optimizer.groups.size(), 1u);
  EXPECT_EQ(loaded.source.environment, (std::map<std::string, std::string>{{"NONE", "at home"}, {"ROOT", "/d"}}));
  const auto message = [](const std::string& more) { return error_of([&] { load(kSmall + more); }).message(); };
  EXPECT_EQ(message("name: \"${vars.a}\"\nvars: {a: \"${vars.b}\", b: \"${vars.a}\"}\n").substr(0, 23), "references form a cycle");
  EXPECT_NE(message("name: \"${env:NOPE}\"\n").find("NOPE is not set"), std::string::npos);
  EXPECT_EQ(error_of([] { load(kSmall + "name: \"${vars.clases}\"\nvars: {classes: 1}\n"); }).text(),
            "standard input:11:7: error: '${vars.clases}': there is no 'vars.clases'\n 11 | name: \"${vars.clases}\"\n    |       "
            "^~~~~~~~~~~~~~~~  did you mean '${vars.classes}'?");
  EXPECT_NE(message("name: \"a${vars\"\n").find("not closed"), std::string::npos);
  std::string bomb = "vars: {v0: xxxxxxxxxx";
  for (int i = 1; i < 30; ++i) bomb += cat(", v", i, ": \"${vars.v", i - 1, "}${vars.v", i - 1, "}\"");
  EXPECT_NE(message(bomb + "}\n"), "");
}

TEST(Loader, IncludesInOrderAndCycles) {
  TemporaryFolder folder;
  make_folders(folder / "built/data");
  make_folders(folder / "built/train");
  write_file(folder / "built/data/one.yaml", "data: {root: /one, train: {source: synthetic, workers: 1}}\nseed: 1\n");
  write_file(folder / "built/train/full.yaml", "include: data/one\n" + kSmall);
  write_file(folder / "two.yaml", "include: [data/one]\ndata: {root: /two}\nseed: 2\n");
  write_file(folder / "main.yaml", "include: [data/one, ./two.yaml]\nrecipe: 1\nmodel: {type: resnet18, num_classes: 5}\nseed: 3\n");
  write_file(folder / "more.yaml", "seed: 4\nmodel: {type: resnet50}\n");
  LoadOptions options;
  options.recipes_folder = folder / "built";
  const LoadedRecipe loaded = load_recipe(folder / "main.yaml", kRegistry, options);
  EXPECT_EQ(loaded.recipe.data.root, "/two");
  EXPECT_EQ(loaded.recipe.data.train.workers.count, 1);
  EXPECT_EQ(loaded.recipe.seed, 3);
  options.with = {folder / "more.yaml"};
  const LoadedRecipe with = load_recipe(folder / "main.yaml", kRegistry, options);
  EXPECT_EQ(with.recipe.seed, 4);
  EXPECT_EQ(with.recipe.model.as<Resnet>()->num_classes, 1000) << "another type replaces the whole map";
  options.overrides = {"seed=5"};
  const LoadedRecipe over = load_recipe(folder / "main.yaml", kRegistry, options);
  EXPECT_EQ(over.recipe.seed, 5);
  const std::string chain = explain(over.source, recipe_schema(kRegistry), "seed", options);
  std::vector<size_t> at;
  for (const char* line : {"seed = 5", "default   0", "include   1", "built/data/one.yaml:2", "include   2", "two.yaml:3", "recipe    3",
                           "main.yaml:4", "with      4", "more.yaml:1", "override  5"}) {
    at.push_back(chain.find(line, at.empty() ? 0 : at.back()));
    EXPECT_NE(at.back(), std::string::npos) << line << "\nin\n" << chain;
  }
  EXPECT_EQ(load_recipe("full", kRegistry, {.recipes_folder = folder / "built"}).recipe.seed, 1);
  EXPECT_EQ(load_recipe("train/full", kRegistry, {.recipes_folder = folder / "built"}).recipe.seed, 1);
  EXPECT_EQ(list_recipes(folder / "built"), (std::vector<std::string>{"data/one", "train/full"}));
  EXPECT_EQ(error_of([&] { load_recipe("ful", kRegistry, {.recipes_folder = folder / "built"}); }).suggestion(), "did you mean 'full'?");
  EXPECT_EQ(error_of([&] { load_recipe(folder / "nope.yaml", kRegistry, {}); }).code(), ErrorCode::kRecipe);
  write_file(folder / "a.yaml", "x-a: 1\ninclude: ./b.yaml\n");
  write_file(folder / "b.yaml", "include: ./a.yaml\n");
  const Error cycle = error_of([&] { load_recipe(folder / "a.yaml", kRegistry, {}); });
  EXPECT_NE(cycle.message().find("cycle"), std::string::npos);
  EXPECT_EQ(cycle.place().file, folder / "b.yaml");
  EXPECT_EQ(cycle.place().line, 1);
  write_file(folder / "c.yaml", "include: [data/on]\n");
  EXPECT_EQ(error_of([&] { load_recipe(folder / "c.yaml", kRegistry, {.recipes_folder = folder / "built"}); }).suggestion(),
            "did you mean 'data/one'?");
  // A RUN folder stands for its recipe.yaml.
  make_folders(folder / "run");
  write_file(folder / "run/recipe.yaml", kSmall);
  EXPECT_EQ(load_recipe(folder / "run", kRegistry, {}).source.run_folder, folder / "run");
}

TEST(Loader, WhatIsDumpedLoadsBackOrIsRefusedFirst) {
  for (const char* escapes : {"a\\_b", "\\N", "\\a\\b\\t\\n\\v\\f\\r\\e\\ \\\"\\/\\\\\\L\\P\\x9f\\ufeff\\U0001F600$$"}) {
    const LoadedRecipe loaded = load(kSmall + cat("name: \"", escapes, "\"\nvars: {\"k", escapes, "\": \"", escapes, "\"}\n"));
    for (const DumpKind kind : {DumpKind::kMin, DumpKind::kFull, DumpKind::kOrigin}) {
      const std::string text = dump_recipe(loaded, kind);
      const LoadedRecipe again = load(text);
      EXPECT_EQ(again.recipe.name, loaded.recipe.name) << text;
      EXPECT_EQ(dump_recipe(again, DumpKind::kFull), dump_recipe(loaded, DumpKind::kFull)) << text;
    }
  }
  EXPECT_EQ(load(kSmall, {"name=\"a\\_b\""}).recipe.name,
            "a\xC2\xA0"
            "b");
  const Error argument = error_of([] { load(kSmall, {"name=a\xA0"}); });
  EXPECT_EQ(argument.code(), ErrorCode::kRecipe);
  EXPECT_EQ(argument.place().str(), "command line:1:6");
  EXPECT_NE(argument.message().find("the value of 'name' has a byte that is not UTF-8"), std::string::npos) << argument.message();
  LoadOptions options;
  options.environment = [](const std::string&) { return "/\xFF"; };
  const Error environment = error_of([&] { load_with(kSmall + "name: \"${env:PLACE}\"\n", options); });
  EXPECT_EQ(environment.place().str(), "standard input:11:7");
  EXPECT_NE(environment.message().find("the environment variable PLACE"), std::string::npos) << environment.message();
}

TEST(Loader, MergingReplacesListsAndKeepsMaps) {
  TemporaryFolder folder;
  write_file(folder / "base.yaml", kSmall);
  write_file(
      folder / "main.yaml",
      "include: ./base.yaml\ntrain: {batch: {micro: 64}, optimizer: {lr: 2}}\ndata: {train: {pipeline: [random_horizontal_flip]}}\n");
  const LoadedRecipe loaded = load_recipe(folder / "main.yaml", kRegistry, {});
  EXPECT_EQ(loaded.recipe.train.batch->global, 256);
  EXPECT_EQ(loaded.recipe.train.batch->micro.count, 64);
  EXPECT_EQ(sgd(loaded).lr, 2);
  EXPECT_EQ(sgd(loaded).momentum, 0.9);
  EXPECT_EQ(loaded.recipe.data.train.pipeline.size(), 1u);
}

}  // namespace
}  // namespace galley::recipe_test
