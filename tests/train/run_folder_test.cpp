// Laws: the lines of a run are JSON with the documented keys; lines after a checkpoint are removed; a result reads back.

#include "libcore/train/run_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/train/tensorboard.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

TEST(RunFolder, RemovesLinesPastAStepAndTornOnes) {
  const TemporaryFolder folder;
  RunFolder run(folder.path());
  TrainRow row;
  for (row.step = 1; row.step <= 4; ++row.step) run.append(to_json(row));
  EvalRow eval;
  eval.step = 3;
  run.append(to_json(eval));
  const std::string text = read_file(run.file("metrics.jsonl"));
  write_file(run.file("metrics.jsonl"), text + "{\"kind\":\"train\",\"st");
  run.truncate_after(3);
  const std::string kept = read_file(run.file("metrics.jsonl"));
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 4);
  EXPECT_EQ(kept.find("\"step\":4"), std::string::npos);
  EXPECT_NE(kept.find("\"kind\":\"eval\""), std::string::npos);
}

TEST(RunFolder, WritesNonFiniteNumbersAsStrings) {
  TrainRow row;
  row.loss = NAN;
  row.grad_norm = INFINITY;
  const std::string json = to_json(row);
  EXPECT_NE(json.find("\"loss\":\"nan\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"grad_norm\":\"inf\""), std::string::npos) << json;
}

TEST(RunFolder, WritesThePartsOfALossOfSeveral) {
  TrainRow row;
  EXPECT_EQ(to_json(row).find("losses"), std::string::npos);
  row.losses = {{"output", 0.5}, {"aux1", 1.25}};
  EXPECT_NE(to_json(row).find("\"losses\":{\"output\":0.5,\"aux1\":1.25}"), std::string::npos) << to_json(row);
}

TEST(RunFolder, ResultReadsBack) {
  TrainResult result;
  result.metrics = {{"loss", 0.25}, {"top1", 91.5}};
  result.losses = {{"output", 0.5}, {"aux1", 1.25}};
  result.best = {"top1", 91.75, 40, "weights_best.safetensors"};
  result.steps = 50;
  result.digest = "99aa06d3014798d86001c324468d497f";
  result.planned_peak_bytes = int64_t{5} << 32;
  result.provenance = "{\"tool\":\"galley-train\"}";
  const TrainResult back = parse_result(to_json(result), "result.json");
  EXPECT_EQ(to_json(back), to_json(result));
  EXPECT_THROW(parse_result("{\"metrics\":", "result.json"), Error);
  EXPECT_THROW(parse_result("{}", "result.json"), Error);
}

TEST(RunFolder, ResultOfBeforeDigestsReadsBackWithoutOne) {
  const std::string json = to_json(TrainResult());
  EXPECT_EQ(json.find("digest"), std::string::npos) << json;
  EXPECT_EQ(parse_result(json, "result.json").digest, "");
}

TEST(TensorBoard, Crc32cOfTheStandardCheckString) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

TEST(TensorBoard, RecordsAreFramedAsTfRecords) {
  const TemporaryFolder folder;
  TensorBoardWriter(folder.path()).scalars(7, {{"train/loss", 0.5}});
  const std::string bytes = read_file(folder.path() + "/" + list_folder(folder.path()).at(0).name);
  size_t at = 0;
  int records = 0;
  while (at < bytes.size()) {
    uint64_t length;
    uint32_t crc;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    const uint32_t plain = crc32c(bytes.substr(at + 12, length));
    EXPECT_EQ(crc, ((plain >> 15) | (plain << 17)) + 0xa282ead8u);
    at += 16 + length;
    ++records;
  }
  EXPECT_EQ(at, bytes.size());
  EXPECT_EQ(records, 2);
  EXPECT_NE(bytes.find("train/loss"), std::string::npos);
}

TEST(TensorBoard, AContinuedRunSaysWhereItStarts) {
  const TemporaryFolder folder;
  TensorBoardWriter(folder.path(), 301).scalars(301, {{"train/loss", 0.5}});
  const std::string bytes = read_file(folder.path() + "/" + list_folder(folder.path()).at(0).name);
  // Event {step: 301 (field 2), session_log {status: START = 1} (field 7)}: TensorBoard purges from that step on.
  EXPECT_NE(bytes.find(std::string("\x10\xad\x02\x3a\x02\x08\x01")), std::string::npos);
}

}  // namespace
}  // namespace galley
