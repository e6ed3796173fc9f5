// Laws of the loader: bit-identical batches for any number of workers and any start, each sample once, exact counts of damaged samples.
#include "libcore/data/loader.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "libcore/data/mosaic.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"
#include "tests/data/golden.h"

namespace galley {
namespace {

template <class T>
Component component(std::string type, T params) {
  Component result;
  result.type = std::move(type);
  result.params = params.clone();
  return result;
}

/// Images whose pixels equal their index; some are damaged.
class NumberedSource : public Source {
 public:
  explicit NumberedSource(int64_t size, std::set<int64_t> bad = {}, int64_t classes = 10, std::set<int64_t> irregular = {})
      : size_(size), bad_(std::move(bad)), irregular_(std::move(irregular)), classes_(classes) {}
  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % classes_; }
  std::string sample_name(int64_t index) const override { return cat("numbered[", index, "]"); }
  std::string describe() const override { return "numbered"; }
  std::vector<FieldType> fields() const override { return {image_field(3, 6, 5), label_field(classes_)}; }
  Sample read(int64_t index) const override {
    ++reads;
    if (bad_.contains(index)) throw BadSample(index % 2 == 0 ? "truncated" : "checksum", sample_name(index), "damaged");
    Image image(DType::kU8, 6, 5, 3);
    std::memset(image.data(), static_cast<int>(index % 256), static_cast<size_t>(image.bytes()));
    Sample sample;
    sample.set("input", std::move(image));
    sample.set("label", label(index));
    if (irregular_.contains(index)) sample.irregularity = {index % 2 == 0 ? "even" : "odd", cat(sample_name(index), ": irregular")};
    return sample;
  }
  mutable std::atomic<int64_t> reads = 0;

 private:
  int64_t size_;
  std::set<int64_t> bad_, irregular_;
  int64_t classes_;
};

std::vector<Component> augmenting_items() {
  RandomResizedCrop crop;
  crop.size = {8};
  ColorJitter jitter;
  jitter.brightness = {0.4};
  jitter.hue = {0.1};
  Normalize normalize;
  normalize.mean = {0.5, 0.4, 0.3};
  normalize.std = {0.2, 0.3, 0.4};
  return {component("random_resized_crop", crop), component("random_horizontal_flip", RandomHorizontalFlip()),
          component("color_jitter", jitter), component("auto_augment", AutoAugment()), component("normalize", normalize)};
}

LoaderOptions options_of(int64_t batch, LastBatchRule last, int64_t workers) {
  LoaderOptions options;
  options.order.batch = batch;
  options.order.shuffle = true;
  options.order.last_batch = last;
  options.order.seed = 3;
  options.workers = workers;
  options.classes = 10;
  return options;
}

struct Delivered {
  std::vector<Tensor> inputs, labels;
  std::vector<int64_t> indices, valid, first;
};

Delivered run(DataLoader& loader, int batches) {
  Delivered result;
  for (int i = 0; i < batches; ++i) {
    const Batch* batch = loader.next();
    if (batch == nullptr) break;
    result.inputs.push_back(batch->input().clone());
    result.labels.push_back(batch->label().clone());
    result.valid.push_back(batch->valid);
    result.first.push_back(batch->first);
    result.indices.insert(result.indices.end(), batch->indices.begin(), batch->indices.end());
  }
  return result;
}

void expect_equal(const Delivered& a, const Delivered& b, size_t skip_of_a, const std::string& what) {
  ASSERT_EQ(a.inputs.size(), b.inputs.size() + skip_of_a) << what;
  for (size_t i = 0; i < b.inputs.size(); ++i) {
    EXPECT_TRUE(bit_equal(a.inputs[i + skip_of_a], b.inputs[i])) << what << ", batch " << i;
    EXPECT_TRUE(bit_equal(a.labels[i + skip_of_a], b.labels[i])) << what << ", batch " << i;
    EXPECT_EQ(a.first[i + skip_of_a], b.first[i]) << what;
  }
}

/// Numbered images with masks.
class MaskedSource : public NumberedSource {
 public:
  using NumberedSource::NumberedSource;
  std::vector<FieldType> fields() const override {
    return {image_field(3, 6, 5), {.name = "label", .kind = FieldKind::kMask, .dtype = DType::kI64, .sample = {6, 5}}};
  }
  Sample read(int64_t index) const override {
    Sample sample = NumberedSource::read(index);
    *sample.find("label") = Mask{sample.image()->with_channels(1)};
    return sample;
  }
};

TEST(DataLoader, JoinsSamplesOfItsSlice) {
  Mosaic mosaic;
  mosaic.size = {6, 5};
  mosaic.fill = {0};
  const auto source = std::make_shared<MaskedSource>(40, std::set<int64_t>{13});
  std::set<double> values;
  std::vector<Delivered> delivered;
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(4, LastBatchRule::kKeep, workers);
    options.order.slice.parse("10..20");
    options.passes = 2;
    options.on_error = OnErrorRule::kSkip;  // sample 13: mosaics with it are skipped
    DataLoader loader(source, Pipeline({component("mosaic", mosaic)}), {}, options);
    delivered.push_back(run(loader, 100));
    EXPECT_GT(loader.skips().skipped, 0);
  }
  expect_equal(delivered[0], delivered[1], 0, "workers");
  ASSERT_EQ(delivered[0].indices.size(), 20u);
  for (const Tensor& labels : delivered[0].labels) {
    ASSERT_EQ(labels.shape()[-1], 10);
    for (const double value : labels.to_doubles()) values.insert(value);
  }
  std::set<double> expected;  // pixels without an image have no class: the loader's pad_label
  for (double i = 10; i < 20; ++i)
    if (i != 13) expected.insert(i);
  values.erase(static_cast<double>(LoaderOptions().pad_label));
  EXPECT_EQ(values, expected);
}

TEST(DataLoader, GivesTheSameBitsForAnyWorkersPrefetchAndStart) {
  const auto source = std::make_shared<NumberedSource>(53);
  for (const bool mix : {false, true}) {
    std::vector<Component> mixing;
    if (mix) mixing = {component("mixup", Mixup()), component("cutmix", Cutmix())};
    for (const LastBatchRule last : {LastBatchRule::kWrap, LastBatchRule::kDrop, LastBatchRule::kKeep}) {
      DataLoader reference(source, Pipeline(augmenting_items()), mixing, options_of(8, last, 0));
      const Delivered want = run(reference, 20);
      ASSERT_EQ(want.inputs.size(), 20u);
      for (const int64_t workers : {1, 2, 5}) {
        LoaderOptions options = options_of(8, last, workers);
        options.prefetch = workers;
        DataLoader loader(source, Pipeline(augmenting_items()), mixing, options);
        expect_equal(want, run(loader, 20), 0, cat(workers, " workers"));
        EXPECT_EQ(loader.position(), reference.position());
      }
      for (const size_t start : {1, 6, 7, 13}) {
        LoaderOptions options = options_of(8, last, 2);
        options.start = want.first[start];
        DataLoader loader(source, Pipeline(augmenting_items()), mixing, options);
        EXPECT_EQ(loader.position(), options.start);
        expect_equal(want, run(loader, 20 - static_cast<int>(start)), start, cat("resumed at batch ", start));
      }
    }
  }
}

TEST(DataLoader, AugmentsDifferentlyInEachEpochAndWithEachSeed) {
  const auto source = std::make_shared<NumberedSource>(8);
  LoaderOptions options = options_of(8, LastBatchRule::kKeep, 0);
  options.order.shuffle = false;
  DataLoader loader(source, Pipeline(augmenting_items()), {}, options);
  const Delivered epochs = run(loader, 2);
  EXPECT_EQ(epochs.indices[0], epochs.indices[8]);
  EXPECT_FALSE(bit_equal(epochs.inputs[0], epochs.inputs[1]));
  options.order.seed = 4;
  DataLoader other(source, Pipeline(augmenting_items()), {}, options);
  EXPECT_FALSE(bit_equal(epochs.inputs[0], run(other, 1).inputs[0]));
}

TEST(DataLoader, OnePassDeliversEachSampleExactlyOnce) {
  const auto source = std::make_shared<NumberedSource>(53);
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(8, LastBatchRule::kKeep, workers);
    options.passes = 1;
    DataLoader loader(source, Pipeline({}), {}, options);
    EXPECT_EQ(loader.total_samples(), 53);
    Delivered all = run(loader, 100);
    EXPECT_EQ(all.inputs.size(), 7u);
    EXPECT_EQ(all.valid.back(), 5);
    // Padding keeps the shape; inputs are zeros, and the loss ignores the labels.
    EXPECT_EQ(all.inputs.back().shape()[0], 8);
    EXPECT_EQ(all.labels.back().data_as<int64_t>()[5], -100);
    EXPECT_EQ(all.inputs.back().data_as<float>()[5 * 90 + 7], 0.0f);
    std::sort(all.indices.begin(), all.indices.end());
    for (int64_t i = 0; i < 53; ++i) EXPECT_EQ(all.indices[static_cast<size_t>(i)], i);
    EXPECT_EQ(loader.next(), nullptr);
  }
  LoaderOptions options = options_of(8, LastBatchRule::kWrap, 2);
  options.max_samples = 12;
  DataLoader loader(source, Pipeline({}), {}, options);
  EXPECT_EQ(run(loader, 100).valid, (std::vector<int64_t>{8, 4}));
}

TEST(DataLoader, RowsAndLabelsBelongTogether) {
  const auto source = std::make_shared<NumberedSource>(53);
  DataLoader loader(source, Pipeline({}), {}, options_of(8, LastBatchRule::kWrap, 2));
  for (int i = 0; i < 10; ++i) {
    const Batch* batch = loader.next();
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t index = batch->indices[static_cast<size_t>(row)];
      EXPECT_EQ(batch->label().data_as<int64_t>()[row], index % 10);
      EXPECT_EQ(batch->input().at({row, 1, 2, 3}), static_cast<double>(static_cast<float>(index) / 255.0f));
    }
  }
}

TEST(DataLoader, FormatsHoldTheSameValues) {
  const auto source = std::make_shared<NumberedSource>(16);
  LoaderOptions options = options_of(4, LastBatchRule::kWrap, 0);
  DataLoader contiguous(source, Pipeline(augmenting_items()), {component("cutmix", Cutmix())}, options);
  options.format = MemoryFormat::channels_last();
  DataLoader channels_last(source, Pipeline(augmenting_items()), {component("cutmix", Cutmix())}, options);
  for (int i = 0; i < 4; ++i) {
    const Batch *a = contiguous.next(), *b = channels_last.next();
    EXPECT_EQ(b->input().format(), MemoryFormat::channels_last());
    EXPECT_TRUE(bit_equal(a->input(), b->input()));
    EXPECT_TRUE(bit_equal(a->label(), b->label()));
  }
}

TEST(Pipeline, FusedNormalizeEqualsTheItemsOneByOne) {
  Sample sample;
  sample.set("input", golden("image").image());
  Normalize normalize;
  normalize.mean = {0.485, 0.456, 0.406};
  normalize.std = {0.229, 0.224, 0.225};
  const Tensor want = golden("normalize").image().to_tensor();
  const Component fused = component("normalize", normalize), to_float = component("to_dtype", ToDtype());
  EXPECT_TRUE(bit_equal(Pipeline({fused}).run(sample, {}), want));
  EXPECT_TRUE(bit_equal(Pipeline({to_float, fused}).run(sample, {}), want));
  RandomErasing nothing;  // forces the float path
  nothing.p = 0;
  EXPECT_TRUE(bit_equal(Pipeline({fused, component("random_erasing", nothing)}).run(sample, {}), want));
  EXPECT_TRUE(bit_equal(Pipeline({}).run(sample, {}), golden("image f32").image().to_tensor()));
  ToDtype unscaled;
  unscaled.scale = false;
  const Tensor raw = Pipeline({component("to_dtype", unscaled)}).run(sample, {});
  EXPECT_EQ(raw.at({1, 2, 3}), golden("image").image().to_tensor().at({1, 2, 3}));
}

TEST(Pipeline, WrongPlacesAreErrors) {
  Normalize normalize;
  normalize.mean = {0.5};
  normalize.std = {0.5};
  const std::vector<FieldType> image{image_field(3)}, table{{.name = "input", .sample = {4}}};
  const auto error_of = [](const std::vector<Component>& items, const std::vector<FieldType>& in) {
    try {
      Pipeline(items).fields(in);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.key() + ": " + error.text();
    }
    return std::string();
  };
  const auto expect_says = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' does not say '" << word << "'";
  };
  expect_says(error_of({component("normalize", normalize), component("auto_augment", AutoAugment())}, image),
              {"pipeline.1: ", "item 1: auto_augment", "u8 pixels", "f32"});
  expect_says(error_of({component("random_horizontal_flip", RandomHorizontalFlip())}, table),
              {"pipeline.0: ", "random_horizontal_flip needs an image", "values `input` f32 [4]", "empty pipeline"});
  expect_says(error_of({component("normalize", normalize)}, table), {"normalize needs an image"});
  normalize.mean = normalize.std = {0.5, 0.5};
  expect_says(error_of({component("normalize", normalize)}, image), {"2 values of `mean`", "3 channels"});
  RandomHorizontalFlip other;
  other.field = "mask";
  expect_says(error_of({component("random_horizontal_flip", other)}, image), {"no field 'mask'", "they have input"});
  Sample sample;
  sample.set("input", golden("image").image());
  EXPECT_THROW(Pipeline({component("normalize", normalize)}).run(sample, {}), Error);
}

TEST(DataLoader, SkipsDamagedSamplesWithExactCounts) {
  const std::set<int64_t> bad{3, 4, 10, 51, 52};
  const auto source = std::make_shared<NumberedSource>(53, bad);
  Delivered first;
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(8, LastBatchRule::kKeep, workers);
    options.on_error = OnErrorRule::kSkip;
    options.passes = 2;
    DataLoader loader(source, Pipeline({}), {}, options);
    const Delivered all = run(loader, 100);
    for (const int64_t index : all.indices) EXPECT_FALSE(bad.contains(index));
    EXPECT_EQ(all.indices.size(), 106u);
    EXPECT_EQ(loader.skips().skipped, 10);  // five an epoch
    EXPECT_EQ(loader.skips().causes.at("truncated").count, 6);
    EXPECT_EQ(loader.skips().causes.at("checksum").count, 4);
    EXPECT_NE(loader.skips().causes.at("checksum").first.find("numbered["), std::string::npos);
    if (workers == 0) {
      first = all;
    } else {
      expect_equal(first, all, 0, "skipping with workers");
    }
  }
}

TEST(DataLoader, ReportsUnreadableAndIrregularSamplesByTheirRow) {
  const std::set<int64_t> bad{0, 1, 9, 10, 52}, irregular{5, 8, 51};
  const auto source = std::make_shared<NumberedSource>(53, bad, 10, irregular);
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(8, LastBatchRule::kKeep, workers);
    options.order.shuffle = false;
    options.on_error = OnErrorRule::kReport;
    options.passes = 2;
    DataLoader loader(source, Pipeline({}), {}, options);
    std::set<int64_t> unreadable, noted;
    int64_t rows = 0;
    while (const Batch* batch = loader.next()) {
      const int64_t row_values = batch->input().elements() / 8;
      for (int64_t row = 0; row < batch->valid; ++row, ++rows) {
        const int64_t index = batch->indices[static_cast<size_t>(row)];
        EXPECT_EQ(index, rows % 53);  // no sample is replaced
        const auto missing = batch->unreadable.find(row), note = batch->irregular.find(row);
        ASSERT_EQ(missing != batch->unreadable.end(), bad.contains(index)) << index;
        ASSERT_EQ(note != batch->irregular.end(), irregular.contains(index)) << index;
        if (note != batch->irregular.end()) {
          EXPECT_EQ(note->second, cat("numbered[", index, "]: irregular"));
        }
        const float value = batch->input().data_as<float>()[row * row_values];
        if (missing == batch->unreadable.end()) {
          EXPECT_EQ(value, static_cast<float>(index) / 255.0f);
        } else {
          EXPECT_EQ(missing->second, cat("numbered[", index, "]: damaged"));
          EXPECT_EQ(value, 0);
        }
      }
    }
    EXPECT_EQ(rows, 106);
    EXPECT_EQ(loader.skips().skipped, 0);
    EXPECT_EQ(loader.irregular().samples, 6);  // three per epoch; the sample that determines the buffers is not counted twice
    EXPECT_EQ(loader.irregular().kinds.at("even").count, 2);
    EXPECT_EQ(loader.irregular().kinds.at("odd").count, 4);
    EXPECT_EQ(loader.irregular().kinds.at("odd").first, "numbered[5]: irregular");
  }
  std::set<int64_t> all;
  for (int64_t i = 0; i < 5; ++i) all.insert(i);
  LoaderOptions options = options_of(2, LastBatchRule::kKeep, 0);
  options.on_error = OnErrorRule::kReport;
  EXPECT_THROW(DataLoader(std::make_shared<NumberedSource>(5, all), Pipeline({}), {}, options), BadSample);
}

TEST(DataLoader, FailsAtTheFirstDamagedSampleAndNamesIt) {
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(8, LastBatchRule::kKeep, workers);
    options.order.shuffle = false;
    DataLoader loader(std::make_shared<NumberedSource>(53, std::set<int64_t>{18, 20, 23}), Pipeline({}), {}, options);
    EXPECT_NE(loader.next(), nullptr);
    EXPECT_NE(loader.next(), nullptr);
    try {
      loader.next();
      ADD_FAILURE();
    } catch (const BadSample& error) {
      EXPECT_NE(error.message().find("numbered[18]"), std::string::npos) << error.message();
      EXPECT_EQ(error.code(), ErrorCode::kInput);
    }
    EXPECT_NE(loader.next(), nullptr);  // a caller that continues gets the next batch
  }
  LoaderOptions options = options_of(8, LastBatchRule::kKeep, 0);
  options.on_error = OnErrorRule::kSkip;
  std::set<int64_t> all;
  for (int64_t i = 0; i < 53; ++i) all.insert(i);
  EXPECT_THROW(DataLoader(std::make_shared<NumberedSource>(53, all), Pipeline({}), {}, options), Error);
}

TEST(DataLoader, DifferentSizesAndWrongLabelsAreErrors) {
  const TestFolder folder;
  folder.write("a/1.bmp", bmp_of(1, 1, 1, 4, 4));
  folder.write("b/2.bmp", bmp_of(1, 1, 1, 5, 4));
  ImageFolder images;
  images.path = {"."};
  const std::shared_ptr<const Source> source = images.open({.root = folder.path()});
  LoaderOptions options = options_of(2, LastBatchRule::kKeep, 0);
  options.order.shuffle = false;
  DataLoader loader(source, Pipeline({}), {}, options);
  try {
    loader.next();
    ADD_FAILURE();
  } catch (const Error& error) {
    for (const char* word : {"2.bmp", "[3,4,5]", "resize"}) EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
  }
  options.classes = 1;
  EXPECT_THROW(DataLoader(source, Pipeline({}), {}, options), Error);
}

/// The number that a model reads of a byte.
float number_of(const PixelConversion& conversion, int64_t channel, uint8_t byte) {
  const size_t c = conversion.mean.size() == 1 ? 0 : static_cast<size_t>(channel);
  const float x = conversion.scale ? static_cast<float>(byte) / 255.0f : static_cast<float>(byte);
  return (x - static_cast<float>(conversion.mean[c])) / static_cast<float>(conversion.std[c]);
}

TEST(DataLoader, BytesBecomeTheNumbersOfBatchesInF32) {
  ToDtype unscaled;
  unscaled.scale = false;
  for (const MemoryFormat& format : {MemoryFormat::contiguous(), MemoryFormat::channels_last()}) {
    for (const auto& items : {augmenting_items(), std::vector<Component>{}, std::vector<Component>{component("to_dtype", unscaled)}}) {
      LoaderOptions options = options_of(7, LastBatchRule::kKeep, 2);
      options.format = format;
      options.passes = 1;
      const auto source = std::make_shared<NumberedSource>(30);
      DataLoader floats(source, Pipeline(items), {}, options);
      options.bytes = true;
      DataLoader bytes(source, Pipeline(items), {}, options);
      EXPECT_EQ(bytes.float_reason(), "");
      const PixelConversion& conversion = bytes.pixels().at("input");
      while (const Batch* batch = bytes.next()) {
        const Batch* want = floats.next();
        ASSERT_EQ(batch->indices, want->indices);
        const Tensor& image = batch->input();
        ASSERT_EQ(image.dtype(), DType::kU8);
        ASSERT_EQ(image.format(), want->input().format());
        const int64_t sample = image.elements() / image.shape()[0], area = sample / 3;
        for (int64_t i = 0; i < batch->valid * sample; ++i) {
          const int64_t channel = format.is_channels_last() ? i % 3 : i / area % 3;
          ASSERT_EQ(number_of(conversion, channel, image.data_as<uint8_t>()[i]), want->input().data_as<float>()[i]) << i;
        }
      }
    }
  }
}

TEST(DataLoader, SaysWhyImagesAreNotInBytes) {
  LoaderOptions options = options_of(7, LastBatchRule::kKeep, 0);
  options.bytes = options.zero_rows = true;
  const auto source = std::make_shared<NumberedSource>(30);
  const auto reason = [&](const std::vector<Component>& items, const LoaderOptions& with) {
    const DataLoader loader(source, Pipeline(items), {}, with);
    EXPECT_TRUE(loader.pixels().empty());
    EXPECT_EQ(loader.layout().at("input").dtype(), DType::kF32);
    return loader.float_reason();
  };
  EXPECT_EQ(reason({}, options), "last_batch: keep leaves rows of zeros in batches");
  options.zero_rows = false;
  EXPECT_EQ(reason({component("random_erasing", RandomErasing())}, options),
            "images are not bytes of 1 or 3 channels before the last item of the pipeline");
  options.bytes = false;
  EXPECT_EQ(reason({}, options), "");
}

TEST(DataLoader, HeldBatchesStayAsTheyAre) {
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options = options_of(5, LastBatchRule::kWrap, workers);
    options.held = 2;
    const auto source = std::make_shared<NumberedSource>(100);
    DataLoader loader(source, Pipeline({}), {}, options);
    const Batch* before = loader.next();
    for (int i = 0; i < 20; ++i) {
      const Tensor copy = before->input().clone();
      const Batch* next = loader.next();
      EXPECT_TRUE(bit_equal(before->input(), copy)) << i;
      EXPECT_NE(next, before);
      before = next;
    }
  }
}

TEST(DataLoader, StopsCleanlyWithBatchesUnderWay) {
  for (int i = 0; i < 20; ++i) {
    DataLoader loader(std::make_shared<NumberedSource>(1000), Pipeline(augmenting_items()), {}, options_of(16, LastBatchRule::kWrap, 4));
    if (i % 2 == 0) loader.next();
  }
}

TEST(DataLoader, ReadsAheadNoFurtherThanPrefetch) {
  const auto source = std::make_shared<NumberedSource>(1000);
  LoaderOptions options = options_of(10, LastBatchRule::kWrap, 2);
  options.prefetch = 3;
  DataLoader loader(source, Pipeline({}), {}, options);
  for (int i = 0; i < 5; ++i) loader.next();
  // Five delivered (one still held), three prefetched, and the first sample again to determine the shape.
  EXPECT_LE(source->reads, (5 + 3) * 10 + 1);
  EXPECT_EQ(loader.buffer_bytes(), 4 * (10 * 90 * 4 + 10 * 8));
}

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
