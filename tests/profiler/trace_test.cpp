// The trace, checked by an independent reader: valid JSON, times in order, events that nest on every thread.

#include "libcore/profiler/trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/unary.h"
#include "tests/profiler/recorded.h"

namespace galley {
namespace {

using Json = nlohmann::json;
using test::RecordedRun;

std::string gunzip(const std::string& packed) {
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string text(size_t{64} << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return text;
}

/// "" for a valid trace: times in order, complete events that nest, tracks with names, a flow that begins and ends.
std::string trouble_of(const Json& trace) {
  std::map<int, std::vector<std::pair<double, double>>> open;  // by thread
  std::map<int, bool> named;
  double last = 0;
  int flow = 0;
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "M") {
      named[event.at("tid").get<int>()] = true;
      continue;
    }
    const double ts = event.at("ts");
    if (ts < last) return "time runs backwards at " + event.dump();
    last = ts;
    if (phase == "s") ++flow;
    if (phase == "f") --flow;
    if (phase == "C") {
      for (const auto& [name, value] : event.at("args").items()) {
        if (!value.is_number() || value.get<double>() < 0) return "counter " + name;
      }
    }
    if (phase != "X") continue;
    const int thread = event.at("tid");
    if (!named[thread]) return "a thread without a name";
    const double duration = event.at("dur");
    if (duration < 0) return "negative duration";
    auto& stack = open[thread];
    // Times are printed to the nanosecond: sums of doubles of microseconds agree to far less than one.
    constexpr double kSlack = 1e-4;
    while (!stack.empty() && stack.back().second <= ts + kSlack) stack.pop_back();
    if (!stack.empty() && ts + duration > stack.back().second + kSlack) return "events overlap without nesting: " + event.dump();
    stack.emplace_back(ts, ts + duration);
  }
  return flow == 0 ? "" : "a flow without end";
}

TEST(Trace, IsValidAndComplete) {
  RecordedRun run;
  test::prepare_training(run);
  for (int64_t k = 1; k <= 3; ++k) {
    run.recorder.begin_step(k);
    const int64_t asked = steady_ns();
    run.recorder.fetched(asked, steady_ns());
    run.execution->run({.observer = &run.recorder});
    run.recorder.end_step(1 << 20);
  }
  const Trace trace = make_trace(run.recorder.recording(), {.machine = {.flops_per_s = 1e11, .bytes_per_s = 1e10}});
  const Json json = Json::parse(trace.json);
  EXPECT_EQ(trouble_of(json), "");
  EXPECT_EQ(trace.dropped, 0);
  EXPECT_EQ(trace.events, static_cast<int64_t>(run.recorder.recording().nodes.size()));
  std::map<std::string, int64_t> categories, names;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "X") ++categories[event["cat"]];
    ++names[event["name"]];
  }
  EXPECT_EQ(categories["step"], 3);
  EXPECT_EQ(categories["data"], 3);
  EXPECT_EQ(categories["forward"] + categories["backward"] + categories["update"], trace.events);
  EXPECT_EQ(names["measured memory"], 3);
  EXPECT_GT(names["planned memory"], 3);
  EXPECT_EQ(names["conv2d conv2"], 3);
}

/// Two sums that run at the same time: each has a lane from its start to the end of its wait.
TEST(Trace, CollectivesHaveLanes) {
  Graph graph;
  const Value x = graph.add_input("x", test::f32({64}), ValueRole::kInput), y = graph.add_input("y", test::f32({64}), ValueRole::kInput);
  const Value first = all_reduce_start(tanh(x), "grads.bucket0"), second = all_reduce_start(tanh(y), "grads.bucket1");
  const Value between = tanh(mul(x, y));
  graph.add_output("first", all_reduce_wait(first, "grads.bucket0"));
  graph.add_output("second", mul(all_reduce_wait(second, "grads.bucket1"), between));
  RecordedRun run;
  test::prepare(run, graph);
  int64_t sum_began = 0;
  for (int64_t k = 1; k <= 2; ++k) {
    run.recorder.begin_step(k);
    run.execution->run({.observer = &run.recorder});
    sum_began = communication_ns();
    run.recorder.communicated("all_reduce loss", sum_began, sum_began + 5000);
    run.recorder.communicated("receive value7 of micro-batch 3", sum_began + 1000, sum_began + 2000);
    run.recorder.end_step();
  }
  const Json json = Json::parse(make_trace(run.recorder.recording()).json);
  EXPECT_EQ(trouble_of(json), "");
  std::map<std::string, std::vector<Json>> named;
  for (const Json& event : json["traceEvents"]) {
    named[event["name"]].push_back(event);
    if (!event.contains("args") || !event["args"].contains("kernel")) continue;
    EXPECT_NE(event["args"]["kernel"].get<std::string>().back(), ' ');
  }
  for (const char* bucket : {"grads.bucket0", "grads.bucket1"}) {
    const auto &whole = named[cat("all_reduce ", bucket)], &starts = named[cat("all_reduce_start ", bucket)],
               &waits = named[cat("all_reduce_wait ", bucket)];
    ASSERT_EQ(whole.size(), 2u) << bucket;
    ASSERT_EQ(starts.size(), 2u) << bucket;
    for (size_t k = 0; k < whole.size(); ++k) {
      EXPECT_EQ(whole[k]["cat"], "collective");
      EXPECT_EQ(whole[k]["ts"], starts[k]["ts"]);
      EXPECT_NEAR(whole[k]["ts"].get<double>() + whole[k]["dur"].get<double>(),
                  waits[k]["ts"].get<double>() + waits[k]["dur"].get<double>(), 0.01);
    }
  }
  EXPECT_NE(named["all_reduce grads.bucket0"][0]["tid"], named["all_reduce grads.bucket1"][0]["tid"]);
  // What runs between programs has lanes too.
  const auto &sums = named["all_reduce loss"], &messages = named["receive value7 of micro-batch 3"];
  ASSERT_EQ(sums.size(), 2u);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(sums[0]["cat"], "collective");
  EXPECT_EQ(sums[1]["dur"], 5.0);
  EXPECT_NE(sums[1]["tid"], messages[1]["tid"]);  // at the same time
  EXPECT_NEAR(messages[1]["ts"].get<double>() - sums[1]["ts"].get<double>(), 1.0, 1e-3);
}

TEST(Trace, TheReaderFindsFaults) {
  const auto event = [](double ts, double dur) { return Json{{"ph", "X"}, {"tid", 1}, {"ts", ts}, {"dur", dur}, {"name", "n"}}; };
  const Json name{{"ph", "M"}, {"tid", 1}};
  EXPECT_EQ(trouble_of({{"traceEvents", {name, event(0, 10), event(2, 8)}}}), "");
  EXPECT_NE(trouble_of({{"traceEvents", {name, event(0, 10), event(5, 10)}}}), "");
  EXPECT_NE(trouble_of({{"traceEvents", {name, event(5, 1), event(0, 1)}}}), "");
  EXPECT_NE(trouble_of({{"traceEvents", {event(0, 1)}}}), "");
}

TEST(Trace, IsThinnedShortestFirst) {
  RecordedRun run;
  test::prepare_training(run);
  for (int64_t k = 1; k <= 8; ++k) run.step(k);
  const Trace whole = make_trace(run.recorder.recording());
  const int64_t bound = static_cast<int64_t>(whole.json.size()) / 2;
  const Trace thin = make_trace(run.recorder.recording(), {.max_bytes = bound});
  EXPECT_LE(static_cast<int64_t>(thin.json.size()), bound);
  EXPECT_GT(static_cast<int64_t>(thin.json.size()), bound / 2) << "the room is used";
  EXPECT_EQ(thin.events + thin.dropped, whole.events);
  EXPECT_GT(thin.dropped, 0);
  const Json json = Json::parse(thin.json);
  EXPECT_EQ(trouble_of(json), "");
  EXPECT_EQ(json["otherData"]["dropped_events"], thin.dropped);
  // After the first step, which is complete, the longest nodes are kept.
  const Recording& recording = run.recorder.recording();
  std::vector<int64_t> later;
  for (size_t e = recording.steps[1].first_node; e < recording.nodes.size(); ++e)
    later.push_back(recording.nodes[e].end_ns - recording.nodes[e].begin_ns);
  std::sort(later.begin(), later.end());
  int64_t shortest = 0;
  for (int64_t d = 0; d < thin.dropped; ++d) shortest += later[static_cast<size_t>(d)];
  EXPECT_NEAR(thin.dropped_s, static_cast<double>(shortest) * 1e-9, 1e-12);
  const Trace tiny = make_trace(run.recorder.recording(), {.max_bytes = 1});
  EXPECT_EQ(tiny.events, 0);
  EXPECT_EQ(trouble_of(Json::parse(tiny.json)), "");
}

TEST(Trace, ZipsAndReadsBack) {
  const std::string text(100000, 'x');
  const std::string packed = gzip(text);
  EXPECT_LT(packed.size(), 1000u);
  EXPECT_EQ(gunzip(packed), text);
  EXPECT_EQ(gunzip(gzip("")), "");
}

TEST(Trace, QuotesWhateverStandsInAName) { EXPECT_EQ(Json::parse(json_string("a\"b\\c\n\xff")).get<std::string>(), "a\"b\\c\n\uFFFD"); }

}  // namespace
}  // namespace galley
