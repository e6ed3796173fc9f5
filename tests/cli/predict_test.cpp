// galley-predict and galley-evaluate --against as a user runs them. The model is one matrix, so that the tests can compute its results from
// the weights file.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <vector>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
constexpr int kPixels = 28 * 28, kClasses = 4;

const char kMatrix[] =
    "recipe: 1\n"
    "name: matrix\n"
    "model: {type: mlp, num_classes: 4, hidden: []}\n"
    "data:\n"
    "  train: {source: {type: synthetic, samples: 24}}\n"
    "  val: {source: {type: synthetic, samples: 10}, batch: 4}\n"
    "train: {duration: 2 steps, batch: 8, optimizer: {type: sgd, lr: 0.05}}\n";

/// f32 tensors of a safetensors file, by name.
std::map<std::string, std::vector<float>> read_floats(const std::string& path) {
  const std::string file = read_text(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const Json header = Json::parse(file.substr(8, length));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || entry["dtype"] != "F32") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::vector<float>& values = tensors[name];
    values.resize((end - begin) / 4);
    std::memcpy(values.data(), file.data() + 8 + length + begin, end - begin);
  }
  return tensors;
}

void write_inputs(const std::string& path, const std::vector<float>& values) {
  const size_t rows = values.size() / kPixels;
  Json entry{{"dtype", "F32"}, {"shape", {rows, 1, 28, 28}}, {"data_offsets", {0, values.size() * 4}}};
  std::string header = Json{{"input", entry}}.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  write_text(path, file);
}

/// A 28 x 28 gray image as a 24-bit BMP: rows from the bottom.
std::string bmp(const std::vector<uint8_t>& pixels) {
  std::string file(54, '\0');
  const auto put = [&](size_t at, uint32_t value) { std::memcpy(&file[at], &value, 4); };
  file[0] = 'B', file[1] = 'M';
  put(2, 54 + 28 * 84), put(10, 54), put(14, 40), put(18, 28), put(22, 28);
  file[26] = 1, file[28] = 24;
  for (int y = 27; y >= 0; --y)
    for (int x = 0; x < 28; ++x) file.append(3, static_cast<char>(pixels[static_cast<size_t>(y * 28 + x)]));
  return file;
}

std::vector<uint8_t> picture(int number) {
  std::vector<uint8_t> pixels(kPixels);
  for (int i = 0; i < kPixels; ++i) pixels[static_cast<size_t>(i)] = static_cast<uint8_t>((i * (7 + number) + number * 31) % 256);
  return pixels;
}

class Predict : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    write_text(folder + "/matrix.yaml", kMatrix);
    const Outcome trained = run("galley-train", {folder + "/matrix.yaml", "-o", folder + "/run", "-q"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    weights = read_floats(folder + "/run/weights.safetensors");
    ASSERT_EQ(weights.at("fc1.weight").size(), static_cast<size_t>(kClasses * kPixels));
  }
  /// W x + b in double.
  std::vector<double> logits(const float* input) const {
    std::vector<double> result;
    for (int c = 0; c < kClasses; ++c) {
      double sum = static_cast<double>(weights.at("fc1.bias")[static_cast<size_t>(c)]);
      for (int i = 0; i < kPixels; ++i)
        sum += static_cast<double>(weights.at("fc1.weight")[static_cast<size_t>(c * kPixels + i)]) * static_cast<double>(input[i]);
      result.push_back(sum);
    }
    return result;
  }

  std::string folder;
  std::map<std::string, std::vector<float>> weights;
};

TEST_F(Predict, TensorsBecomeWhatTheMatrixMakesOfThem) {
  std::vector<float> inputs(7 * kPixels);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  write_inputs(folder + "/in.safetensors", inputs);
  for (const std::vector<std::string>& options : {std::vector<std::string>{}, {"--batch", "2"}, {"--batch", "2", "--replicas", "2"}}) {
    std::vector<std::string> command{folder + "/run", "--tensors", folder + "/in.safetensors", "-o", folder + "/out.safetensors",
                                     "--capture",     "fc*"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome outcome = run("galley-predict", command);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto outputs = read_floats(folder + "/out.safetensors");
    ASSERT_EQ(outputs.at("output").size(), size_t{7 * kClasses});
    EXPECT_EQ(outputs.at("fc1"), outputs.at("output"));
    for (size_t row = 0; row < 7; ++row) {
      const std::vector<double> expected = logits(inputs.data() + row * kPixels);
      for (size_t c = 0; c < kClasses; ++c) {
        // 784 products of size at most 0.1 each, in f32: about 784 * 2^-24 * 0.1.
        EXPECT_TRUE(std::abs(static_cast<double>(outputs.at("output")[row * kClasses + c]) - expected[c]) <= 2e-5)
            << "row " << row << " class " << c;
      }
    }
  }
}

TEST_F(Predict, ImagesAreRankedBySoftmax) {
  std::filesystem::create_directories(folder + "/images/inner");
  write_text(folder + "/images/a.bmp", bmp(picture(1)));
  write_text(folder + "/images/inner/b.bmp", bmp(picture(2)));
  const Outcome outcome =
      run("galley-predict", {folder + "/run", folder + "/images", "top=4", "--format", "json", "--draw", folder + "/drawn"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    ++number;
    EXPECT_EQ(json["file"], folder + (number == 1 ? "/images/a.bmp" : "/images/inner/b.bmp"));
    EXPECT_EQ(json["provenance"]["tool"], "galley-predict");
    std::vector<float> pixels;
    for (const uint8_t value : picture(number)) pixels.push_back(static_cast<float>(value) / 255.0f);
    const std::vector<double> expected = logits(pixels.data());
    double total = 0, last = 2;
    for (const double value : expected) total += std::exp(value);
    for (const Json& item : json["top"]) {
      const double score = item["score"];
      EXPECT_TRUE(std::abs(score - std::exp(expected[item["index"].get<size_t>()]) / total) <= 1e-5);  // f32 logits
      EXPECT_LE(score, last);
      last = score;
    }
    EXPECT_EQ(json["top"].size(), size_t{kClasses});
  }
  EXPECT_EQ(number, 2);
  EXPECT_EQ(read_text(folder + "/drawn/a.png").substr(1, 3), "PNG");
  const Outcome few = run("galley-predict", {folder + "/run", folder + "/images/a.bmp", "top=1", "--format", "csv"});
  EXPECT_EQ(std::count(few.out.begin(), few.out.end(), '\n'), 2) << few.out;
}

TEST_F(Predict, AnUnreadableFileIsReportedInItsLineAndTheOthersArePredicted) {
  std::filesystem::create_directories(folder + "/images");
  for (int i = 0; i < 6; ++i) write_text(folder + "/images/" + std::to_string(i) + ".bmp", bmp(picture(i)));
  const std::vector<std::string> command{folder + "/run", folder + "/images", "top=2", "--format", "json"};
  const auto lines_of = [](const Outcome& outcome) {
    std::vector<Json> lines;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  };
  const std::vector<Json> intact = lines_of(run("galley-predict", command));
  ASSERT_EQ(intact.size(), 6u);
  // The first, two in a row, and one that is not an image at all.
  for (const char* name : {"0.bmp", "2.bmp", "3.bmp"}) write_text(folder + "/images/" + name, bmp(picture(1)).substr(0, 900));
  write_text(folder + "/images/5.bmp", "no image");
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--batch", "1"}, {"--batch", "2", "--replicas", "2"}, {"--on-error", "report"}}) {
    std::vector<std::string> with = command;
    with.insert(with.end(), how.begin(), how.end());
    const Outcome outcome = run("galley-predict", with);
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    const std::vector<Json> lines = lines_of(outcome);
    ASSERT_EQ(lines.size(), 6u) << outcome.out;
    for (size_t i = 0; i < 6; ++i) {
      const std::string file = folder + "/images/" + std::to_string(i) + ".bmp";
      EXPECT_EQ(lines[i]["file"], file);
      EXPECT_EQ(lines[i]["provenance"]["tool"], "galley-predict");
      if (i == 1 || i == 4) {
        EXPECT_EQ(lines[i]["top"], intact[i]["top"]);
        EXPECT_FALSE(lines[i].contains("error"));
      } else {
        EXPECT_EQ(lines[i]["error"]["code"], 4);
        EXPECT_NE(lines[i]["error"]["message"].get<std::string>().find(file), std::string::npos) << lines[i].dump();
        EXPECT_FALSE(lines[i].contains("top"));
      }
    }
    EXPECT_NE(outcome.err.find("4 of 6 files could not be read"), std::string::npos) << outcome.err;
  }
  // The table and CSV have a column for errors; the output file has rows only for files that were read.
  const Outcome csv =
      run("galley-predict", {folder + "/run", folder + "/images", "top=1", "--format", "csv", "-o", folder + "/out.safetensors"});
  EXPECT_EQ(csv.code, 4) << csv.err;
  EXPECT_TRUE(csv.out.starts_with("file,rank,index,label,score,error\n")) << csv.out;
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 7) << csv.out;
  EXPECT_EQ(read_floats(folder + "/out.safetensors").at("output").size(), size_t{2 * kClasses});
  const Outcome text = run("galley-predict", {folder + "/run", folder + "/images"});
  EXPECT_EQ(text.code, 4);
  EXPECT_NE(text.out.find("2.bmp: "), std::string::npos) << text.out;
  // The same if no file can be read.
  const Outcome none = run("galley-predict", {folder + "/run", folder + "/images/0.bmp", folder + "/images/5.bmp", "--format", "json"});
  EXPECT_EQ(none.code, 4) << none.err;
  ASSERT_EQ(lines_of(none).size(), 2u) << none.out;
  EXPECT_EQ(lines_of(none)[1]["error"]["code"], 4);
}

TEST_F(Predict, APathThatCannotBeOpenedIsReportedInItsPlace) {
  std::filesystem::create_directories(folder + "/empty");
  write_text(folder + "/a.bmp", bmp(picture(1)));
  write_text(folder + "/b.bmp", bmp(picture(2)));
  write_text(folder + "/broken.tar", "no archive");
  const std::vector<std::string> paths{folder + "/none.jpg", folder + "/a.bmp", folder + "/broken.tar", folder + "/empty",
                                       folder + "/b.bmp"};
  const auto predict = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{folder + "/run", "top=1"};
    words.insert(words.end(), paths.begin(), paths.end());
    words.insert(words.end(), more.begin(), more.end());
    return run("galley-predict", words);
  };
  const Outcome outcome = predict({"--format", "json"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  std::istringstream lines(outcome.out);
  for (size_t i = 0; i < paths.size(); ++i) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << outcome.out;
    const Json json = Json::parse(line);
    EXPECT_EQ(json["file"], paths[i]);
    EXPECT_EQ(json.contains("top"), i == 1 || i == 4) << line;
    if (i == 1 || i == 4) continue;
    EXPECT_EQ(json["error"]["code"], 4);
    EXPECT_NE(json["error"]["message"].get<std::string>().find(paths[i]), std::string::npos) << line;
  }
  EXPECT_NE(outcome.err.find("3 of 5 files could not be read"), std::string::npos) << outcome.err;
  const Outcome failed = predict({"--on-error", "fail"});
  EXPECT_EQ(failed.code, 4);
  EXPECT_EQ(failed.out, "");
  EXPECT_NE(failed.err.find("none.jpg"), std::string::npos) << failed.err;
  EXPECT_EQ(predict({"--on-error", "skip"}).code, 0);
  EXPECT_EQ(predict({"--dry-run"}).code, 4) << "a dry run finds what is missing";
}

TEST_F(Predict, OnErrorFailStopsAtTheFirstAndSkipLeavesOut) {
  std::filesystem::create_directories(folder + "/images");
  write_text(folder + "/images/a.bmp", bmp(picture(1)));
  write_text(folder + "/images/b.bmp", bmp(picture(1)).substr(0, 900));
  write_text(folder + "/images/c.bmp", bmp(picture(2)));
  const Outcome failed = run("galley-predict", {folder + "/run", folder + "/images", "--on-error", "fail"});
  EXPECT_EQ(failed.code, 4);
  EXPECT_EQ(failed.out, "");
  EXPECT_NE(failed.err.find("b.bmp"), std::string::npos) << failed.err;
  const Outcome json = run("galley-predict", {folder + "/run", folder + "/images", "--on-error", "fail", "--format", "json", "-q"});
  EXPECT_EQ(json.code, 4);
  EXPECT_EQ(json.out, "");
  const Json error = Json::parse(json.err)["error"];
  EXPECT_EQ(error["code"], 4);
  EXPECT_NE(error["message"].get<std::string>().find("b.bmp"), std::string::npos) << json.err;
  const Outcome skipped = run("galley-predict", {folder + "/run", folder + "/images", "--on-error", "skip", "top=1", "--format", "csv"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_TRUE(skipped.out.starts_with("file,rank,index,label,score\n")) << skipped.out;
  EXPECT_EQ(skipped.out.find("b.bmp"), std::string::npos) << skipped.out;
  EXPECT_NE(skipped.out.find("c.bmp"), std::string::npos) << skipped.out;
  EXPECT_NE(skipped.err.find("1 skipped"), std::string::npos) << skipped.err;
}

TEST_F(Predict, MistakesAreNamed) {
  const auto expect = [&](int code, const std::string& text, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), folder + "/run");
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  std::vector<float> pixels(kPixels);
  pixels.back() = NAN;
  write_inputs(folder + "/nan.safetensors", pixels);
  expect(4, "the tensor 'input' has nan at [0,", {"--tensors", folder + "/nan.safetensors", "-o", folder + "/x"});
  write_inputs(folder + "/in.safetensors", std::vector<float>(kPixels));
  expect(2, "would replace the input of --tensors", {"--tensors", folder + "/in.safetensors", "-o", folder + "/in.safetensors"});
  expect(2, "nothing to predict", {});
  expect(4, "nowhere.jpg", {folder + "/nowhere.jpg", "--on-error", "fail"});
  write_text(folder + "/x.bmp", bmp(picture(1)));
  expect(7, "--draw", {folder + "/x.bmp", "--draw", "/proc/galley"});
  expect(2, "-o out.safetensors", {"--tensors", folder + "/in.safetensors"});
  expect(2, "did you mean 'fc1'", {"--tensors", folder + "/in.safetensors", "-o", folder + "/x", "--capture", "fc2"});
  const Outcome untrained = run("galley-predict", {folder + "/matrix.yaml", folder + "/x.bmp"});
  EXPECT_EQ(untrained.code, 3);
  EXPECT_NE(untrained.err.find("weights=FILE"), std::string::npos) << untrained.err;
}

TEST_F(Predict, EvaluateAgainstOtherWeightsAgreesWithEachAlone) {
  const Outcome other = run("galley-train", {folder + "/matrix.yaml", "-o", folder + "/other", "-q", "seed=5"});
  ASSERT_EQ(other.code, 0) << other.err;
  const auto alone = [&](const std::string& weights_of) {
    const Outcome outcome = run("galley-evaluate", {folder + "/matrix.yaml", "weights=" + folder + weights_of, "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["metrics"];
  };
  const auto both = [&](const std::string& against) {
    const Outcome outcome =
        run("galley-evaluate", {folder + "/matrix.yaml", "weights=" + folder + "/run", "--against", folder + against, "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json different = both("/other"), same = both("/run");
  EXPECT_EQ(different["metrics"], alone("/run"));
  EXPECT_EQ(different["against"], alone("/other"));
  EXPECT_GT(different["outputs"]["max_abs"].get<double>(), 0);
  // Samples with equal predictions are not listed as changed, and all others are.
  EXPECT_TRUE(std::abs(different["outputs"]["top1_agree"].get<double>() / 10 + static_cast<double>(different["changed"].size()) - 10) <=
              1e-9)
      << different.dump();
  EXPECT_EQ(same["outputs"]["max_abs"], 0.0);
  EXPECT_EQ(same["outputs"]["sqnr_db"], "inf");
  EXPECT_EQ(same["outputs"]["top1_agree"], 100.0);
  EXPECT_EQ(same["layers"][0]["module"], "fc1");
  EXPECT_TRUE(same["changed"].empty());
}

}  // namespace
}  // namespace galley::testing_cli
