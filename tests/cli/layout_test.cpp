// The layout check, galley-convert-layout --check, as a user runs it.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"
#include "tests/cli/small_net.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

class LayoutDoctor : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    recipe = folder + "/net.yaml";
    write_text(recipe, kSmallNet + "threads: 1\n");
  }
  Json check(std::vector<std::string> more) {
    std::vector<std::string> arguments{"--check", recipe, "benchmark.batch=2", "--format", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-convert-layout", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  }
  std::string folder, recipe;
};

TEST_F(LayoutDoctor, FindsNoReorderInAResidualNetwork) {
  const Json json = check({"model.type=cifar_resnet20", "--unset", "model.channels", "--apply", folder + "/format.yaml"});
  ASSERT_EQ(json["formats"].size(), 6u);  // three formats of forward and of an update
  for (const Json& row : json["formats"]) {
    EXPECT_GT(row["median_ms"], 0);
    EXPECT_GT(row["planned_bytes"], 0);
  }
  for (const Json& loss : json["losses"]) EXPECT_NE(loss["memory_format"], "auto") << loss.dump();
  EXPECT_EQ(json["interior_reorders"], 0);
  EXPECT_EQ(json["edge_reorders"], 0);
  ASSERT_GT(json["values"].size(), 100u);
  for (const Json& value : json["values"]) {
    // Pooled features have one pixel, for which both formats are the same.
    if (value["shape"][2] != 1) {
      EXPECT_EQ(value["memory_format"], "channels_last") << value.dump();
    }
  }
  EXPECT_NE(read_text(folder + "/format.yaml").find("\nmemory_format: "), std::string::npos);
}

TEST_F(LayoutDoctor, NamesTheFlattenAtTheEdge) {
  // Features of 7 x 7 pixels are flattened in the order of a contiguous array.
  for (const bool dry : {false, true}) {
    const Json json = check(dry ? std::vector<std::string>{"--dry-run"} : std::vector<std::string>{});
    int found = 0;
    for (const Json& loss : json["losses"]) {
      EXPECT_FALSE(loss["interior"].get<bool>()) << loss.dump();
      if (loss["type"] != "reshape" || loss["what"] != "forward" || loss["memory_format"] != "auto") continue;
      ++found;
      EXPECT_EQ(loss["reason"], "reshape needs contiguous values");
      EXPECT_EQ(loss["shape"], Json({2, 8, 7, 7}));
      EXPECT_EQ(loss["from_strides"], Json({392, 1, 56, 8}));
      EXPECT_EQ(loss["to_strides"], Json({392, 49, 7, 1}));
      EXPECT_EQ(loss["bytes"], 2 * 8 * 7 * 7 * 4);
    }
    EXPECT_EQ(found, 1);
    EXPECT_EQ(json["interior_reorders"], 0);
    EXPECT_EQ(json["edge_reorders"], 3) << "forward; of an update the features and their gradient";
    EXPECT_EQ(json.contains("best"), !dry);
    EXPECT_EQ(json["formats"][0].contains("median_ms"), !dry);
  }
}

TEST_F(LayoutDoctor, TellsAnInnerLoss) {
  write_text(recipe,
             "recipe: 1\n"
             "model:\n"
             "  type: layers\n"
             "  input: {shape: [4, 6, 6]}\n"
             "  layers:\n"
             "    - {name: conv1, type: conv2d, out_channels: 4, kernel_size: 3, padding: 1}\n"
             "    - {name: turned, type: permute, dims: [0, 1, 3, 2]}\n"
             "    - {name: conv2, type: conv2d, out_channels: 4, kernel_size: 3, padding: 1}\n"
             "    - {name: mixed, type: channel_shuffle, groups: 2}\n"
             "    - {name: conv3, type: conv2d, out_channels: 4, kernel_size: 3, padding: 1}\n"
             "    - {name: pool, type: adaptive_avg_pool2d, output_size: 1}\n"
             "    - {name: flat, type: flatten}\n"
             "loss: cross_entropy\n");
  const Json json = check({"--dry-run"});
  EXPECT_EQ(json["interior_reorders"], 2);
  for (const Json& loss : json["losses"]) {
    if (loss["to"] == "contiguous") {
      EXPECT_EQ(loss["module"], "turned") << loss.dump();
    }
  }
  const Outcome text = run("galley-convert-layout", {"--check", recipe, "--dry-run", "--values"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* words : {"channels_last is lost inside: 2", "permute needs contiguous values", "interior", "mixed"})
    EXPECT_NE(text.out.find(words), std::string::npos) << words << "\n" << text.out;
}

TEST_F(LayoutDoctor, NamesMistakes) {
  const auto expect = [&](int code, const std::string& text, const std::vector<std::string>& arguments) {
    const Outcome outcome = run("galley-convert-layout", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  expect(2, "--check looks at a recipe's model", {"--check", recipe, "--to", "channels_last"});
  expect(2, "--check looks at a recipe's model", {"--check", recipe, "-o", folder + "/x"});
  expect(2, "--values goes with --check", {folder + "/x.safetensors", "--to", "channels_last", "--values"});
  expect(2, "measures nothing", {"--check", recipe, "--dry-run", "--apply", folder + "/x"});
  expect(2, "'batch=2' is an override", {folder + "/x.safetensors", "batch=2", "--to", "channels_last", "-o", folder + "/y"});
  expect(7, "cannot write", {"--check", recipe, "--apply", folder + "/none/x"});
  expect(3, "'2 epochs' is not a time", {"--check", recipe, "stop.max_time=2 epochs"});
}

}  // namespace
}  // namespace galley::testing_cli
