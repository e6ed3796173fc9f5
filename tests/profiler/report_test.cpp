// JSON and HTML page of a profile.

#include "libcore/profiler/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/profiler/recorded.h"

namespace galley {
namespace {

using Json = nlohmann::json;

struct Reported {
  test::RecordedRun run;
  ProfileReport report;
};

void make(Reported& made) {
  test::prepare_training(made.run);
  for (int64_t k = 1; k <= 3; ++k) made.run.step(k, 1 << 20);
  made.report.recipe = "</script><b>odd";
  made.report.what = "train_step";
  made.report.batch = 3;
  made.report.profile = make_profile(made.run.recorder.recording(), {.flops_per_s = 1e11, .bytes_per_s = 1e10, .instruction_set = "avx2"});
  made.report.advice = {{.code = "threads_few", .message = "more", .key = "threads", .value = "auto", .gain_s = 0.001}};
  made.report.advice[0].operators = {{.type = "conv2d",
                                      .phase = "forward",
                                      .module = "conv1",
                                      .bound = "compute",
                                      .remedy = "why",
                                      .key = "threads",
                                      .value = "",
                                      .share = 0.5,
                                      .beyond_s = 0.002,
                                      .reached = 0.04}};
  made.report.compilations = {{"update", "batches of [3,3,8,8]", 0.1, 20, 3}};
}

TEST(Report, JsonSumsToTheWindow) {
  Reported made;
  make(made);
  const Json json = Json::parse(report_json(made.report, made.run.recorder.recording()));
  double self = 0, percent = 0;
  for (const Json& row : json["operators"]) {
    for (const char* key : {"module", "type", "calls", "self_ms", "total_ms", "percent", "flops", "bytes", "shape"})
      ASSERT_TRUE(row.contains(key)) << key << " in " << row;
    self += row["self_ms"].get<double>();
    percent += row["percent"].get<double>();
  }
  const double wall = json["wall_ms"];
  EXPECT_NEAR(self, wall, 1e-6 * wall);
  EXPECT_NEAR(percent, 100, 1e-6);
  EXPECT_EQ(json["memory"]["resident_bytes"], 1 << 20);
  EXPECT_GT(json["memory"]["timeline"].size(), 5u);
  for (const char* category : {"parameters", "gradients", "optimizer_state", "activations", "workspace"})
    EXPECT_TRUE(json["memory"]["peak"].contains(category)) << category;
  EXPECT_EQ(json["advice"][0]["key"], "threads");
  EXPECT_DOUBLE_EQ(json["advice"][0]["gain_ms"], 1.0);
  const Json& item = json["advice"][0]["operators"][0];
  EXPECT_EQ(item["type"], "conv2d");
  EXPECT_EQ(item["bound"], "compute");
  EXPECT_EQ(item["cure"], "why");
  EXPECT_TRUE(item["value"].is_null());
  EXPECT_DOUBLE_EQ(item["share_percent"], 50);
  EXPECT_DOUBLE_EQ(item["beyond_ms"], 2);
  EXPECT_DOUBLE_EQ(item["limit_percent"], 4);
  EXPECT_DOUBLE_EQ(json["limit_percent"].get<double>(), 100 * made.report.profile.work.limit_s / made.report.profile.wall_s);
  EXPECT_EQ(json["compilations"]["cache_hits"], 2);
}

TEST(Report, ThePageBreaksNoWords) {
  Reported made;
  make(made);
  const std::string page = report_html(made.report, made.run.recorder.recording());
  for (const char* rule : {"overflow-wrap: anywhere", "word-break: break-all"}) EXPECT_EQ(page.find(rule), std::string::npos) << rule;
  for (const char* rule : {"tabular-nums", "white-space: nowrap", "prefers-color-scheme: dark"})
    EXPECT_NE(page.find(rule), std::string::npos) << rule;
  // Every table is in a container that scrolls.
  for (size_t at = page.find("<table"); at != std::string::npos; at = page.find("<table", at + 1))
    EXPECT_EQ(page.substr(at - 20, 20), "<div class=\"scroll\">") << page.substr(at, 40);
}

TEST(Report, ThePageStandsAlone) {
  Reported made;
  make(made);
  const std::string page = report_html(made.report, made.run.recorder.recording());
  // The page makes no requests: no address except SVG's namespace, no sources, no links.
  const std::string bare = std::regex_replace(page, std::regex("http://www\\.w3\\.org/2000/svg"), "");
  for (const char* word : {"http://", "https://", " src=", "<link", "@import", "url("})
    EXPECT_EQ(bare.find(word), std::string::npos) << word;
  const size_t begin = page.find("const data = ") + 13, end = page.find(";\nconst byId");
  ASSERT_NE(end, std::string::npos);
  const Json data = Json::parse(page.substr(begin, end - begin));
  EXPECT_EQ(data["recipe"], "</script><b>odd");
  EXPECT_EQ(page.find("</script><b>"), std::string::npos) << "a name must not end the script";
  EXPECT_EQ(data["timeline"].size(), made.run.program->steps().size() - made.run.program->prepare_steps());
}

}  // namespace
}  // namespace galley
