// Conventions of all tools that scripts rely on: dry runs write nothing, dumps load back, help, completion, only JSON on stdout, pipes.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kTools{"galley-train",     "galley-evaluate", "galley-predict",        "galley-calibrate", "galley-recipes",
                                      "galley-benchmark", "galley-profile",  "galley-convert-layout", "galley-quantize",  "galley-weights"};

TEST(Conventions, ADryRunWritesNothing) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run", "--dry-run", "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = Json::parse(outcome.out);
  EXPECT_EQ(plan["steps"], 6);
  EXPECT_EQ(plan["params"], 784 * 8 + 8 + 8 * 4 + 4);
  EXPECT_GT(plan["planned_peak_bytes"], 0);
  EXPECT_EQ(plan["provenance"]["recipe_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(shell("ls " + folder).out, "tiny.yaml\n");
  // A dry run reports mistakes.
  EXPECT_EQ(run("galley-train", {recipe, "--dry-run", "weights=nowhere.safetensors"}).code, 4);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "--format", "json", "-q"}).code, 0);
  const Outcome fits = run("galley-evaluate", {folder + "/run", "--dry-run", "--format", "json"});
  ASSERT_EQ(fits.code, 0) << fits.err;
  EXPECT_TRUE(Json::parse(fits.out)["fits"].get<bool>());
}

TEST(Conventions, VerboseTellsWhatEachPassDid) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--dry-run", "--verbose=passes"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line :
       {"pass training: fuse: ", "pass training: differentiate: ", "pass training: updates: ", "pass compile: assign_layout: "}) {
    EXPECT_NE(outcome.err.find(line), std::string::npos) << line << " is not in\n" << outcome.err;
  }
  // --verbose=compile prints its lines with -q too. A warning depends on the machine: with AVX2, products of this model run on slow
  // kernels.
  const Outcome quiet = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--dry-run", "--verbose=compile", "-q"});
  EXPECT_EQ(quiet.code, 0);
  std::istringstream quiet_lines(quiet.err);
  int compiled = 0;
  for (std::string line; std::getline(quiet_lines, line);) {
    if (line.starts_with("warning: ")) continue;
    EXPECT_TRUE(line.starts_with("compiled ")) << line;
    ++compiled;
  }
  EXPECT_EQ(compiled, 2) << quiet.err;
  const Outcome unknown = run("galley-train", {tiny_recipe(folder), "--dry-run", "--verbose=weather"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("it must be ops, compile or passes"), std::string::npos) << unknown.err;
}

class Dump : public testing::TestWithParam<std::string> {};

TEST_P(Dump, LoadsBackToTheSameRecipe) {
  const std::string folder = scratch_folder();
  const std::vector<std::string> words{"fashion_mnist_cnn",     "--seed",         "7",       "optimizer.lr=0.5",
                                       "data.root=/some$where", "train.ema=0.99", GetParam()};
  const Outcome first = run("galley-train", words);
  ASSERT_EQ(first.code, 0) << first.err;
  write_text(folder + "/dumped.yaml", first.out);
  const Outcome again = run("galley-train", {folder + "/dumped.yaml", GetParam()});
  ASSERT_EQ(again.code, 0) << again.err;
  if (GetParam() != "--dump-recipe=origin") {
    EXPECT_EQ(again.out, first.out);
  }
  EXPECT_EQ(run("galley-train", {folder + "/dumped.yaml", "--dump-recipe=full"}).out,
            run("galley-train",
                {"fashion_mnist_cnn", "--seed", "7", "optimizer.lr=0.5", "data.root=/some$where", "train.ema=0.99", "--dump-recipe=full"})
                .out);
}

INSTANTIATE_TEST_SUITE_P(All, Dump, testing::Values("--dump-recipe", "--dump-recipe=full", "--dump-recipe=origin"),
                         [](const auto& info) { return "Form" + std::to_string(info.index); });

TEST(Conventions, ARunFromADumpDumpsTheSameAndTrainsTheSame) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome dump = run("galley-train", {recipe, "optimizer.lr=0.02", "--dump-recipe"});
  write_text(folder + "/dumped.yaml", dump.out);
  ASSERT_EQ(run("galley-train", {recipe, "optimizer.lr=0.02", "-o", folder + "/a", "--format", "json", "-q"}).code, 0);
  ASSERT_EQ(run("galley-train", {folder + "/dumped.yaml", "-o", folder + "/b", "--format", "json", "-q"}).code, 0);
  EXPECT_EQ(read_text(folder + "/a/recipe.yaml"), read_text(folder + "/b/recipe.yaml"));
  EXPECT_EQ(read_text(folder + "/a/weights.safetensors"), read_text(folder + "/b/weights.safetensors"));
  EXPECT_EQ(run("galley-train", {folder + "/a", "--dump-recipe"}).out, run("galley-train", {folder + "/b", "--dump-recipe"}).out);
}

TEST(Conventions, ADumpAsJsonHasTypesAndLoadsBack) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome text = run("galley-train", {recipe, "data.root=/some$where", "--dump-recipe"});
  const Outcome dump = run("galley-train", {recipe, "data.root=/some$where", "--dump-recipe", "--format", "json"});
  ASSERT_EQ(dump.code, 0) << dump.err;
  const nlohmann::json json = nlohmann::json::parse(dump.out);
  EXPECT_EQ(json["recipe"]["recipe"], 1);
  EXPECT_TRUE(json["recipe"]["train"]["optimizer"]["lr"].is_number()) << dump.out;
  EXPECT_EQ(json["recipe"]["data"]["root"], "/some$where");
  EXPECT_EQ(json["provenance"]["tool"], "galley-train");
  // JSON is YAML, except that a recipe's text doubles the dollar sign.
  nlohmann::json back = json["recipe"];
  back["data"]["root"] = "/some$$where";
  write_text(folder + "/back.yaml", back.dump());
  EXPECT_EQ(run("galley-train", {folder + "/back.yaml", "--dump-recipe"}).out, text.out);
  EXPECT_EQ(run("galley-train", {recipe, "--dump-recipe=origin", "--format", "json"}).code, 2);
  EXPECT_EQ(nlohmann::json::parse(run("galley-recipes", {"show", "fashion_mnist_cnn", "--format", "json"}).out)["recipe"]["recipe"], 1);
}

TEST(Conventions, ExplainShowsTheChainOfAValue) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  write_text(folder + "/more.yaml", "train: {optimizer: {lr: 0.3}}\n");
  const Outcome outcome = run("galley-train", {recipe, "--with", folder + "/more.yaml", "optimizer.lr=0.4", "--explain", "optimizer.lr"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> parts{"train.optimizer.lr = 0.4", "default", "tiny.yaml:11", "0.3", "more.yaml:1", "command line"};
  size_t at = 0;
  for (const std::string& part : parts) {
    const size_t found = outcome.out.find(part, at);
    ASSERT_NE(found, std::string::npos) << "no '" << part << "', or not in this order, in\n" << outcome.out;
    at = found;
  }
  const Outcome unknown = run("galley-train", {recipe, "--explain", "train.optimiser.lr"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_NE(unknown.err.find("did you mean"), std::string::npos) << unknown.err;
}

TEST(Conventions, CompletionIsAScriptThatTheShellTakes) {
  for (const std::string& tool : kTools) {
    const Outcome bash = shell(tool + " --completion bash | bash -n && " + tool + " --completion bash | grep -c 'complete .*" + tool + "'");
    EXPECT_EQ(bash.code, 0) << bash.err;
    EXPECT_NE(run(tool, {"--completion", "zsh"}).out.find("#compdef " + tool), std::string::npos);
    EXPECT_NE(run(tool, {"--completion", "fish"}).out.find("complete -c " + tool), std::string::npos);
    EXPECT_EQ(run(tool, {"--completion", "tcsh"}).code, 2);
  }
  // The call that the completion script makes.
  EXPECT_EQ(run("galley-train", {"--complete-words", "fashion_mn"}).out, "fashion_mnist_cnn\n");
  EXPECT_NE(run("galley-train", {"--complete-words", "fashion_mnist_cnn", "optimizer.l"}).out.find("optimizer.lr="), std::string::npos);
  EXPECT_EQ(shell("source <(galley-train --completion bash); COMP_WORDS=(galley-train fashion_mn); COMP_CWORD=1; _galley 2>/dev/null; echo "
                  "${COMPREPLY[0]}")
                .out,
            "fashion_mnist_cnn\n");
}

/// What a user gets who types the line and presses the tab key where it says so, in an interactive bash that splits the words itself.
std::string typed(const std::string& completion, const std::string& line) {
  return shell("printf '%s\\n" + line + "\\nexit\\n' '" + completion + "' | TERM=dumb bash --norc --noprofile -i 2>/dev/null").out;
}

TEST(Conventions, BashCompletesValuesAfterTheEqualsSign) {
  for (const auto& [completion, command] : {std::pair<std::string, std::string>{"source <(galley-train --completion bash)", "galley-train"},
                                            {"source <(galley --completion bash)", "galley train"}}) {
    const std::string start = command + " fashion_mnist_cnn --explain ";
    EXPECT_NE(typed(completion, start + "memory_format memory_format=cont\\t").find("memory_format = contiguous"), std::string::npos);
    // A value that no completion knows is a file name: the shell completes it.
    const std::string folder = scratch_folder();
    write_text(folder + "/numbers.txt", "");
    EXPECT_NE(typed(completion, start + "data.root data.root=" + folder + "/numb\\t").find("data.root = " + folder + "/numbers.txt"),
              std::string::npos)
        << command;
    // Names of keys end with = and no blank: the value follows.
    EXPECT_NE(typed(completion, start + "memory_format memory_for\\tcont\\t").find("memory_format = contiguous"), std::string::npos);
  }
}

TEST(Conventions, HelpAndVersionAreOnStdoutAndComplete) {
  for (const std::string& tool : kTools) {
    const Outcome help = run(tool, {"--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    for (const char* part : {"examples:", "exit codes:", "--format", "--completion", "--progress", "--quiet"})
      EXPECT_NE(help.out.find(part), std::string::npos) << tool << " --help has no " << part;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 160u) << tool << ": " << line;
    const Outcome version = run(tool, {"--version"});
    EXPECT_EQ(version.code, 0);
    EXPECT_EQ(version.out.substr(0, tool.size() + 1), tool + " ");
  }
  for (const std::string& tool : {std::string("galley-train"), std::string("galley-evaluate")}) {
    const std::string help = run(tool, {"--help"}).out;
    for (const char* part : {"--dry-run", "--dump-recipe", "--explain", "--with", "--unset", "--threads", "--device", "--seed"})
      EXPECT_NE(help.find(part), std::string::npos) << part;
  }
}

TEST(Conventions, JsonIsOnStdoutAloneAndEveryLineOfStderrIsJsonToo) {
  const std::string folder = scratch_folder();
  const Outcome train = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--format", "json"});
  ASSERT_EQ(train.code, 0) << train.err;
  const std::vector<Outcome> outcomes{train,
                                      run("galley-train", {folder + "/run", "--format", "json"}),
                                      run("galley-evaluate", {folder + "/run", "--format", "json"}),
                                      run("galley-recipes", {"ls", "--format", "json"}),
                                      run("galley-recipes", {"validate", folder + "/run", "--format", "json"}),
                                      run("galley-recipes", {"schema", "--format", "json"})};
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << outcome.out;
    EXPECT_TRUE(json.contains("provenance") || json.contains("$schema")) << outcome.out.substr(0, 200);
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) EXPECT_TRUE(Json::accept(line)) << line;
  }
  const Json provenance = Json::parse(train.out)["provenance"];
  for (const char* key : {"tool", "version", "commit", "time", "host", "isa", "threads", "recipe_sha256", "overrides", "seed"})
    EXPECT_TRUE(provenance.contains(key)) << key;
  // The digest is that of the recipe in the RUN folder.
  EXPECT_EQ(shell("sha256sum < " + folder + "/run/recipe.yaml | cut -d' ' -f1").out, provenance["recipe_sha256"].get<std::string>() + "\n");
}

TEST(Conventions, QuietSaysNothingButTheResult) {
  const std::string folder = scratch_folder();
  const Outcome loud = run("galley-train", {tiny_recipe(folder), "-o", folder + "/loud"});
  EXPECT_EQ(loud.code, 0);
  EXPECT_NE(loud.err.find("step 1/6"), std::string::npos) << loud.err;
  EXPECT_EQ(loud.err.find('\r'), std::string::npos) << "a progress bar without a terminal";
  const Outcome quiet = run("galley-train", {tiny_recipe(folder), "-o", folder + "/quiet", "-q"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.err.find("step 1"), std::string::npos) << quiet.err;
  EXPECT_NE(quiet.out.find("weights"), std::string::npos);
  EXPECT_LT(quiet.err.size(), 400u) << quiet.err;  // at most a warning
}

TEST(Conventions, CopiesOfTheResultGoToFiles) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "-q", "--format", "csv", "--save",
                                               "json:" + folder + "/r.json", "--save", "md:" + folder + "/r.md"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.substr(0, 7), "result,");
  EXPECT_EQ(Json::parse(read_text(folder + "/r.json"))["steps"], 6);
  EXPECT_EQ(read_text(folder + "/r.md").substr(0, 2), "| ");
}

TEST(Conventions, AClosedPipeIsNoCrash) {
  // After the reader closes the pipe, the tool ends by SIGPIPE without a message, as filters do.
  const Outcome outcome =
      shell("galley-recipes schema | head -1; echo ${PIPESTATUS[0]}; for i in 1 2 3; do galley-recipes ls | true; done");
  EXPECT_EQ(outcome.err, "");
  const std::string status = outcome.out.substr(outcome.out.find('\n') + 1);
  EXPECT_TRUE(status == "0\n" || status == "141\n") << status;
  // A closed stderr must not end training.
  const std::string folder = scratch_folder();
  const Outcome train = shell("galley-train " + tiny_recipe(folder) + " -o " + folder +
                              "/run --format json --progress json 2> >(exec true) | cat > " + folder + "/out; echo ${PIPESTATUS[0]}");
  EXPECT_EQ(train.out, "0\n") << train.err;
  EXPECT_EQ(Json::parse(read_text(folder + "/out"))["steps"], 6);
}

TEST(Conventions, ARecipeMayComeFromStandardInput) {
  const std::string folder = scratch_folder();
  const std::string text = read_text(tiny_recipe(folder));
  const Outcome outcome = run("galley-train", {"-", "-o", folder + "/run", "--format", "json", "-q"}, text);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome wrong = run("galley-train", {"-", "-q"}, text + "colour: red\n");
  EXPECT_EQ(wrong.code, 3);
  EXPECT_NE(wrong.err.find("standard input:14:1"), std::string::npos) << wrong.err;
}

TEST(Galley, ExecsItsVerbsAndKnowsNearOnes) {
  const Outcome outcome = run("galley", {"recipes", "show", "fashion_mnist_cnn"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, run("galley-recipes", {"show", "fashion_mnist_cnn"}).out);
  const Outcome near = run("galley", {"trian"});
  EXPECT_EQ(near.code, 2);
  EXPECT_NE(near.err.find("did you mean 'train'?"), std::string::npos) << near.err;
  const Outcome far = run("galley", {"nothing"});
  EXPECT_EQ(far.code, 2);
  EXPECT_NE(far.err.find("known: "), std::string::npos) << far.err;
}

TEST(Galley, SaysOneLineAboutEachTool) {
  const Outcome bare = run("galley", {});
  EXPECT_EQ(bare.code, 0);
  EXPECT_EQ(bare.out, run("galley", {"--help"}).out);
  for (const std::string verb :
       {"benchmark", "calibrate", "convert-layout", "evaluate", "predict", "profile", "quantize", "recipes", "train", "weights"}) {
    const std::string help = run("galley-" + verb, {"--help"}).out, line = help.substr(0, help.find('\n'));
    EXPECT_GT(line.size(), 20u) << verb;
    const size_t at = bare.out.find("\n  " + verb + " ");
    ASSERT_NE(at, std::string::npos) << bare.out;
    EXPECT_NE(bare.out.substr(at + 1, bare.out.find('\n', at + 1) - at - 1).find("  " + line), std::string::npos) << bare.out;
  }
}

/// Built-in recipes with overrides that make their tiny form faster: small images if the model accepts any size.
class BuiltInTiny : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BuiltInTiny, Trains) {
  const std::string folder = scratch_folder();
  const auto [name, size] = GetParam();
  std::vector<std::string> words{
      name,   "--with", "data/tiny_synthetic", "-o", folder + "/run", "checkpoint=null", "log.tensorboard=false", "threads=1", "--format",
      "json", "-q"};
  if (*size != '\0')
    words.insert(words.end(), {std::string("data.train.source.shape=") + size, std::string("data.val.source.shape=") + size});
  const Outcome outcome = run("galley-train", words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["steps"], 2);
  EXPECT_EQ(result["samples"], 8);
  const bool segments = std::string(name) == "camvid_segmentation";
  EXPECT_TRUE(result["metrics"].contains(segments ? "miou" : "top1"));
}

INSTANTIATE_TEST_SUITE_P(All, BuiltInTiny,
                         testing::Values(std::pair{"fashion_mnist_cnn", ""}, std::pair{"cifar10_resnet20", ""},
                                         std::pair{"cifar10_resnet56", ""}, std::pair{"cifar10_resnet18", "3,64,64"},
                                         std::pair{"cifar10_mobilenet_v2", ""}, std::pair{"imagenet_resnet50", "3,64,64"},
                                         std::pair{"imagenet_mobilenet_v3_large", "3,64,64"}, std::pair{"camvid_segmentation", ""}),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace galley::testing_cli
