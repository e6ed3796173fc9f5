// Laws of the loader: bit-identical batches for any number of workers and any start, each sample once, exact counts of damaged samples.
#include "libcore/data/loader.h"

#include <algorithm>
#include <set>

#include "libcore/data/mosaic.h"
#include "libcore/data/sources.h"
#include "tests/data/files.h"
#include "tests/data/golden.h"
#include "tests/data/loader_runs.h"

namespace galley {
namespace {

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

}  // namespace
}  // namespace galley
