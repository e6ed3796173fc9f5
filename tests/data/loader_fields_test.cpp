// Fields of batches: types of tables, samples of different lengths, and transforms of whole batches.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/data/sources.h"
#include "tests/data/loader_runs.h"

namespace galley {
namespace {

TEST(DataLoader, TablesKeepTheirTypes) {
  std::map<std::string, Tensor> tensors;
  Tensor tokens(DType::kI64, {4, 3});
  tokens.from_doubles({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  tensors.emplace("input", tokens);
  tensors.emplace("target", Tensor(DType::kF32, {4, 2}));
  LoaderOptions options;
  options.order.batch = 2;
  DataLoader loader(source_of_tensors(tensors, "t"), Pipeline({}), {}, options);
  loader.next();
  const Batch* batch = loader.next();
  EXPECT_EQ(batch->input().str(), "i64 [2,3] contiguous");
  EXPECT_EQ(batch->input().to_doubles(), (std::vector<double>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batch->fields.at("target").str(), "f32 [2,2] contiguous");
  EXPECT_FALSE(batch->has("label"));
  tensors["input"] = Tensor(DType::kU8, {4, 3});
  tensors["input"].from_doubles({0, 51, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  DataLoader scaled(source_of_tensors(tensors, "t"), Pipeline({}), {}, options);
  EXPECT_EQ(scaled.next()->input().data_as<float>()[1], 0.2f);
}

TEST(DataLoader, TablesOfPositionsAndPixelsKeepTheirLabels) {
  std::map<std::string, Tensor> tensors;
  tensors.emplace("input", Tensor(DType::kF32, {3, 1, 2, 2}));
  Tensor pixels(DType::kI32, {3, 2, 2});
  pixels.from_doubles({0, 1, 2, -100, 4, 5, 6, 7, 8, 9, 10, 254});
  tensors.emplace("label", pixels);
  LoaderOptions options;
  options.order.batch = 2;
  options.order.last_batch = LastBatchRule::kKeep;
  options.pad_label = -7;
  DataLoader masks(source_of_tensors(tensors, "t"), Pipeline({}), {}, options);
  EXPECT_EQ(masks.types().at(1).kind, FieldKind::kMask);
  EXPECT_EQ(masks.next()->label().to_doubles(), (std::vector<double>{0, 1, 2, -7, 4, 5, 6, 7})) << "a pixel without a class";
  EXPECT_EQ(masks.next()->label().to_doubles(), (std::vector<double>{8, 9, 10, 254, -7, -7, -7, -7})) << "a row past the valid ones";
  tensors["label"].from_doubles({0, 1, 2, 3, 4, 255, 6, 7, 8, 9, 10, 11});
  EXPECT_THROW(DataLoader(source_of_tensors(tensors, "t"), Pipeline({}), {}, options).next(), Error);
  tensors["input"] = Tensor(DType::kI64, {3, 4});
  tensors["label"] = Tensor(DType::kI64, {3, 4});
  tensors["label"].from_doubles({1, 2, 3, -100, 5, 6, 7, 8, 9, 10, 11, 12});
  DataLoader positions(source_of_tensors(tensors, "t"), Pipeline({}), {}, options);
  EXPECT_EQ(positions.next()->label().to_doubles(), (std::vector<double>{1, 2, 3, -100, 5, 6, 7, 8}));
}

/// Samples of different lengths: sample n has n % 5 boxes and 1 + n % 3 tokens, numbered.
class RaggedSource : public Source {
 public:
  explicit RaggedSource(int64_t capacity = 4) : capacity_(capacity) {}
  int64_t size() const override { return 11; }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return cat("ragged[", index, "]"); }
  std::string describe() const override { return "ragged"; }
  std::vector<FieldType> fields() const override {
    return {{.name = "tokens", .kind = FieldKind::kTokens, .layout = FieldLayout::kPadded, .dtype = DType::kI64, .sample = {3}},
            {.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = capacity_}};
  }
  Sample read(int64_t index) const override {
    Tensor tokens(DType::kI64, {1 + index % 3}), boxes(DType::kF32, {index % 5, 4});
    for (int64_t i = 0; i < tokens.elements(); ++i) tokens.data_as<int64_t>()[i] = 100 * index + i;
    for (int64_t i = 0; i < boxes.elements(); ++i) boxes.data_as<float>()[i] = static_cast<float>(100 * index + i);
    Sample sample;
    sample.set("tokens", std::move(tokens));
    sample.set("boxes", std::move(boxes));
    return sample;
  }

 private:
  int64_t capacity_;
};

TEST(DataLoader, PadsAndJoinsSamplesOfDifferentLengths) {
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options;
    options.order.batch = 4;
    options.order.last_batch = LastBatchRule::kKeep;
    options.workers = workers;
    options.passes = 2;
    DataLoader loader(std::make_shared<RaggedSource>(), Pipeline({}), {}, options);
    int64_t seen = 0;
    while (const Batch* batch = loader.next()) {
      EXPECT_EQ(batch->at("boxes.values").str(), "f32 [16,4] contiguous");
      const int64_t *lengths = batch->at("tokens.length").data_as<int64_t>(), *offsets = batch->at("boxes.offsets").data_as<int64_t>();
      EXPECT_EQ(offsets[0], 0);
      for (int64_t row = 0; row < 4; ++row) {
        const bool valid = row < batch->valid;
        const int64_t index = valid ? batch->indices[static_cast<size_t>(row)] : 0;
        EXPECT_EQ(lengths[row], valid ? 1 + index % 3 : 0);
        for (int64_t i = 0; i < 3; ++i)
          EXPECT_EQ(batch->at("tokens").at({row, i}), i < lengths[row] ? static_cast<double>(100 * index + i) : 0.0);
        ASSERT_EQ(offsets[row + 1] - offsets[row], valid ? index % 5 : 0);
        for (int64_t i = 0; i < 4 * (offsets[row + 1] - offsets[row]); ++i)
          EXPECT_EQ(batch->at("boxes.values").data_as<float>()[4 * offsets[row] + i], static_cast<float>(100 * index + i));
        seen += valid;
      }
      for (int64_t i = 4 * offsets[4]; i < 64; ++i) EXPECT_EQ(batch->at("boxes.values").data_as<float>()[i], 0.0f);
    }
    EXPECT_EQ(seen, 22);
  }
  LoaderOptions options;
  options.order.batch = 4;
  DataLoader overfull(std::make_shared<RaggedSource>(2), Pipeline({}), {}, options);
  try {
    overfull.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    for (const char* word : {"ragged[3]", "`boxes` has 3 elements", "at most 2"})
      EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
  }
  DataLoader loader(std::make_shared<RaggedSource>(), Pipeline({}), {}, options);
  try {
    loader.next()->at("labels");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("no field `labels`; they have boxes.offsets, boxes.values, tokens, tokens.length"), std::string::npos)
        << error.text();
  }
}

TEST(DataLoader, DeclaresWhatItGives) {
  const auto source = std::make_shared<NumberedSource>(16);
  DataLoader loader(source, Pipeline(augmenting_items()), {component("mixup", Mixup())}, options_of(4, LastBatchRule::kWrap, 0));
  EXPECT_EQ(loader.types(), (std::vector<FieldType>{{.name = "input", .kind = FieldKind::kImage, .sample = {3, 8, 8}},
                                                    {.name = "label", .kind = FieldKind::kClass, .sample = {10}, .classes = 10}}));
  const Batch* batch = loader.next();
  for (const FieldType& type : batch->types) EXPECT_EQ(batch->at(type.name).dtype(), type.dtype);
  LoaderOptions options = options_of(4, LastBatchRule::kWrap, 0);
  options.classes = 0;
  EXPECT_THROW(DataLoader(source, Pipeline({}), {component("mixup", Mixup())}, options), Error);
  std::map<std::string, Tensor> tensors{{"input", Tensor(DType::kI64, {4, 3})}, {"label", Tensor(DType::kI64, {4})}};
  EXPECT_THROW(
      DataLoader(source_of_tensors(tensors, "t"), Pipeline({}), {component("mixup", Mixup())}, options_of(4, LastBatchRule::kWrap, 0)),
      Error);
}

TEST(BatchTransforms, RefuseFieldsThatCannotFollow) {
  const FieldType input{.name = "input", .kind = FieldKind::kImage, .sample = {3, 8, 8}};
  const FieldType label{.name = "label", .kind = FieldKind::kClass, .dtype = DType::kI64};
  const FieldType boxes{.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = 10};
  EXPECT_EQ(Mixup().fields({input, label}, 10).back().sample, (std::vector<int64_t>{10}));
  for (const char* type : {"mixup", "cutmix"}) {
    try {
      if (std::string_view(type) == "mixup")
        Mixup().fields({input, label, boxes}, 10);
      else
        Cutmix().fields({input, label, boxes}, 10);
      ADD_FAILURE() << type << " takes boxes";
    } catch (const Error& error) {
      for (const char* word : {type, "cannot mix the boxes of the field 'boxes'"})
        EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
    }
  }
}

TEST(BatchTransforms, MixNeighborsWithTheirLabels) {
  for (const bool cut : {false, true}) {
    Tensor input(DType::kF32, {4, 2, 6, 8}), labels(DType::kF32, {4, 4});
    for (int64_t n = 0; n < 3; ++n) {
      for (int64_t i = 0; i < 96; ++i) input.data_as<float>()[n * 96 + i] = static_cast<float>(n == 0 ? 1 : n == 1 ? 10 : 100);
      labels.data_as<float>()[n * 4 + n] = 1;
    }
    int mixed = 0;
    for (uint64_t draw = 0; draw < 50; ++draw) {
      Tensor x = input.clone(), y = labels.clone();
      MixedBatch batch{x, y, 3};
      RandomStream random(1, "mix", draw);
      if (cut) {
        Cutmix().apply(batch, random);
      } else {
        Mixup().apply(batch, random);
      }
      const double share = y.at({0, 0});
      mixed += share < 1;
      const double values[] = {1, 10, 100};
      for (int64_t n = 0; n < 3; ++n) {
        const int64_t other = (n + 2) % 3;
        EXPECT_NEAR(y.at({n, n}), share, 1e-6);
        EXPECT_NEAR(y.at({n, other}), 1 - share, 1e-6);
        // The mean of the image is mixed with the same share; float sums of 96 values up to 100.
        double mean = 0;
        for (int64_t i = 0; i < 96; ++i) mean += static_cast<double>(x.data_as<float>()[n * 96 + i]) / 96;
        EXPECT_NEAR(mean, share * values[n] + (1 - share) * values[other], 1e-4);
      }
      EXPECT_EQ(x.at({3, 1, 1, 1}), 0) << "a row after the valid ones was changed";
      EXPECT_EQ(y.at({3, 3}), 0);
    }
    EXPECT_GT(mixed, 30);
  }
}

TEST(BatchTransforms, BetaHasItsMoments) {
  for (const double alpha : {0.2, 1.0, 8.0}) {
    RandomStream random(2, "beta");
    double sum = 0, squares = 0;
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) {
      const double x = draw_beta(alpha, random) - 0.5;
      sum += x;
      squares += x * x;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum / kDraws, 0, 5 * std::sqrt(variance / kDraws)) << alpha;                   // five standard errors
    EXPECT_NEAR(squares / kDraws, variance, 5 * variance * 1.5 / std::sqrt(kDraws)) << alpha;  // kurtosis at most 3
  }
}

}  // namespace
}  // namespace galley
