// The JSON examples of docs/tools.md, each marked "<!-- example: NAME -->", have the keys that the tools write.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// The example of that name. An invalid text fails the test.
Json example(const std::string& name) {
  const std::string page = read_text(GALLEY_SOURCE_DIR "/docs/tools.md"), mark = "<!-- example: " + name + " -->\n```json\n";
  const size_t begin = page.find(mark);
  if (begin == std::string::npos) {
    ADD_FAILURE() << "docs/tools.md has no example of " << name;
    return {};
  }
  const size_t text = begin + mark.size();
  const Json json = Json::parse(page.substr(text, page.find("\n```", text) - text), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << name << " is not JSON";
  return json;
}

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

/// Keys and kinds of values are the same. `null` and an empty list or object stand for any value. A list has items of one form.
void expect_same_form(const Json& page, const Json& written, const std::string& path) {
  if (page.is_null() || written.is_null() || path == ".provenance") return;
  if (page.is_number() && written.is_number()) return;
  ASSERT_EQ(std::string(page.type_name()), written.type_name()) << path;
  if (page.empty() || written.empty()) return;
  if (page.is_object()) {
    EXPECT_EQ(keys_of(page), keys_of(written)) << path;
    for (const auto& [key, value] : page.items()) {
      if (written.contains(key)) expect_same_form(value, written[key], path + "." + key);
    }
  } else if (page.is_array()) {
    for (const Json& item : page) expect_same_form(item, written.front(), path + "[]");
    for (const Json& item : written) expect_same_form(page.front(), item, path + "[]");
  }
}

class JsonExamples : public testing::Test {
 protected:
  Json result(const std::string& tool, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--format", "json", "-q"});
    const Outcome outcome = run(tool, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  }
  void compare(const std::string& name, const std::string& tool, const std::vector<std::string>& arguments) {
    expect_same_form(example(name), result(tool, arguments), "");
  }
  std::string trained(const std::string& name, const std::string& seed) {
    result("galley-train", {recipe_, "-o", folder_ + "/" + name, "seed=" + seed});
    return folder_ + "/" + name;
  }

  const std::string folder_ = scratch_folder(), recipe_ = tiny_recipe(folder_);
};

TEST_F(JsonExamples, OfEvaluate) {
  const std::string run = trained("run", "0"), other = trained("other", "3");
  compare("evaluate", "galley-evaluate", {run});
  compare("evaluate --against", "galley-evaluate", {run, "--against", other});
}

TEST_F(JsonExamples, OfBenchmark) {
  const std::vector<std::string> words{recipe_, "what=forward", "batch=1", "stop.max_time=1s"};
  compare("benchmark", "galley-benchmark", words);
  std::vector<std::string> two = words;
  two.insert(two.end(), {"--compare", "seed=0", "seed=1"});
  // Other programs may make it slower (6) or uncertain (9).
  two.insert(two.end(), {"--format", "json", "-q"});
  const Outcome outcome = run("galley-benchmark", two);
  EXPECT_TRUE(outcome.code == 0 || outcome.code == 6 || outcome.code == 9) << outcome.err;
  expect_same_form(example("benchmark --compare"), Json::parse(outcome.out, nullptr, false), "");
}

TEST_F(JsonExamples, OfCalibrateAndQuantize) {
  const std::string run = trained("run", "0"), statistics = folder_ + "/stats.calib";
  compare("calibrate", "galley-calibrate", {run, "-o", statistics});
  const std::vector<std::string> words{run, "--calibration", statistics};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  compare("quantize", "galley-quantize", with({"--evaluate", "-o", folder_ + "/q.int8.safetensors"}));
  compare("quantize --sensitivity", "galley-quantize", with({"--sensitivity", "--evaluate"}));
  const Json page = example("quantize with a goal"),
             written = result("galley-quantize", with({"goal={metric: top1, max_drop: 50}", "-o", folder_ + "/g.int8.safetensors"}));
  for (const char* key : {"goal", "trials"}) expect_same_form(page[key], written[key], key);
}

}  // namespace
}  // namespace galley::testing_cli
