// Transforms against torchvision's tensor path (golden files), and laws of random transforms.
#include "libcore/data/transform.h"

#include <sstream>

#include "libcore/data/pipeline.h"
#include "libcore/data/source.h"
#include "tests/data/golden.h"

namespace galley {
namespace {

const Image& photo() {
  static const Image image = golden("image").image();
  return image;
}
const Image& float_photo() {
  static const Image image = golden("image f32").image();
  return image;
}

/// The words in the name of a golden image.
std::vector<std::string> words(const std::string& name) {
  std::istringstream in(name);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

template <class Visit>
int for_goldens(const std::string& prefix, Visit visit) {
  int count = 0;
  for (const auto& [name, want] : goldens()) {
    if (!name.starts_with(prefix)) continue;
    visit(words(name), want, name);
    ++count;
  }
  return count;
}

TEST(Resize, EqualsTorchvision) {
  // Both filter in float and round: the order of the sums differs, so a value within 1e-4 of a half may round the other way.
  // Floats: some ten additions of numbers below 1, and positions of 1e-7 relative error there: 4e-6.
  const auto mode_of = [](const std::string& name) {
    for (int i = 0; i < 4; ++i)
      if (kInterpolationNames[i] == name) return static_cast<Interpolation>(i);
    throw std::out_of_range(name);
  };
  int count = 0;
  for (const std::string mode : {"nearest ", "nearest_exact ", "bilinear ", "bicubic "}) {
    count += for_goldens("resize " + mode, [&](const auto& word, const Golden& want, const std::string& name) {
      const bool floats = word.size() == 6;
      const ResizeTo to{std::stoll(word[2]), std::stoll(word[3]), mode_of(word[1]), word[4] == "1", ResizeBackend::kTensor};
      const Image got = resize(floats ? float_photo() : photo(), to);
      expect_near(got, want, floats ? Difference{4e-6, 1} : word[1][0] == 'n' ? Difference{0, 0} : Difference{1, 0.01}, name);
    });
  }
  EXPECT_EQ(count, 36);
}

TEST(Resize, IsOneLevelFromPillow) {
  // Pillow rounds to 8 bits between its two passes, and its weights to 22 bits.
  expect_near(resize(photo(), {12, 15}), golden("resize pillow 12 15"), {1, 0.5}, "pillow");
}

/// Black and white edges, where a cubic filter overshoots and 8 bits between the passes show.
TEST(Resize, EqualsBothOnFullContrast) {
  const Image edges = golden("edges").image();
  const int count = for_goldens("edges b", [&](const auto& word, const Golden& want, const std::string& name) {
    const Interpolation mode = word[1] == "bicubic" ? Interpolation::kBicubic : Interpolation::kBilinear;
    const ResizeBackend backend = word[4] == "pillow" ? ResizeBackend::kPillow : ResizeBackend::kTensor;
    // Pillow rounds between its passes. Many means of two levels are exact halves, which may round either way.
    expect_near(resize(edges, {std::stoll(word[2]), std::stoll(word[3]), mode, true, backend}), want,
                {1, backend == ResizeBackend::kPillow ? 0.25 : 0.03}, name);
  });
  EXPECT_EQ(count, 12);
}

TEST(Resize, OneNumberIsTheShorterEdge) {
  RandomStream unused(0, "");
  Resize item;
  item.size = {16};
  Image image = photo();
  item.apply(image, unused);
  expect_near(image, golden("resize shorter 16"), {1, 0.001}, "shorter edge");
  item.max_size = 18;
  image = photo();
  item.apply(image, unused);
  expect_near(image, golden("resize shorter 16 max 18"), {1, 0.001}, "bounded longer edge");
}

TEST(Resize, OfARegionEqualsCropThenResize) {
  const Region region{3, 5, 21, 17};
  for (const Interpolation mode : {Interpolation::kNearest, Interpolation::kBilinear, Interpolation::kBicubic}) {
    const ResizeTo to{14, 23, mode, true};
    const Image direct = resize_region(photo(), region, to), cropped = resize(crop(photo(), region), to);
    EXPECT_TRUE(bit_equal(direct.to_tensor(), cropped.to_tensor())) << kInterpolationNames[static_cast<int>(mode)];
  }
}

TEST(Resize, KeepsConstantsForAnyNumberOfChannels) {
  for (const int64_t channels : {1, 2, 3, 4, 5}) {
    Image image(DType::kU8, 9, 11, channels);
    for (int64_t i = 0; i < image.values(); ++i) image.as<uint8_t>()[i] = static_cast<uint8_t>(40 * (i % channels) + 7);
    for (const auto& [h, w] : {std::pair{1, 1}, {4, 30}, {20, 3}}) {
      const Image got = resize(image, {h, w, Interpolation::kBicubic});
      for (int64_t i = 0; i < got.values(); ++i) ASSERT_EQ(got.as<uint8_t>()[i], 40 * (i % channels) + 7) << channels << " channels";
    }
  }
}

TEST(Crop, EqualsTorchvision) {
  RandomStream unused(0, "");
  EXPECT_EQ(for_goldens("center_crop ",
                        [&](const auto& word, const Golden& want, const std::string& name) {
                          CenterCrop item;
                          item.size = {std::stoll(word[1]), std::stoll(word[2])};
                          Image image = photo();
                          item.apply(image, unused);
                          expect_same(image, want, name);
                        }),
            3);
}

TEST(Pad, EqualsTorchvision) {
  constexpr std::string_view kModes[] = {"constant", "edge", "reflect", "symmetric"};
  for (int mode = 0; mode < 4; ++mode) {
    Pad item;
    item.padding = {3, 1, 4, 2};
    item.padding_mode = static_cast<PaddingMode>(mode);
    item.fill = {mode == 0 ? 9.0 : 0.0};
    expect_same(pad_image(photo(), item), golden(cat("pad ", kModes[mode])), std::string(kModes[mode]));
  }
}

TEST(Flip, EqualsTorchvision) {
  Image image = photo();
  flip_horizontal(image);
  expect_same(image, golden("hflip"), "hflip");
  image = photo();
  flip_vertical(image);
  expect_same(image, golden("vflip"), "vflip");
}

TEST(Color, EqualsTorchvision) {
  // Same arithmetic in float; where a product lands within rounding of an integer, truncation to u8 may differ by one level.
  // Hue needs about twenty roundings, so 1 % of the values may differ.
  const std::map<std::string, void (*)(Image&, double)> adjust{{"brightness", adjust_brightness},
                                                               {"contrast", adjust_contrast},
                                                               {"saturation", adjust_saturation},
                                                               {"sharpness", adjust_sharpness},
                                                               {"hue", adjust_hue}};
  for (const auto& [operation, function] : adjust) {
    const int count = for_goldens(operation + " ", [&, function = function](const auto& word, const Golden& want, const std::string& name) {
      const bool floats = word.size() == 3;
      Image image = floats ? float_photo() : photo();
      function(image, std::stod(word[1]));
      expect_near(image, want, floats ? Difference{4e-6, 1} : Difference{1, 0.01}, name);
    });
    EXPECT_EQ(count, 4) << operation;
  }
  expect_same(to_grayscale(photo(), 1), golden("grayscale"), "grayscale");
  expect_near(to_grayscale(float_photo(), 1), golden("grayscale f32"), {1e-6, 1}, "grayscale f32");
}

TEST(Normalize, EqualsTorchvisionBitForBit) {
  RandomStream unused(0, "");
  Normalize item;
  item.mean = {0.485, 0.456, 0.406};
  item.std = {0.229, 0.224, 0.225};
  Image image = float_photo();
  item.apply(image, unused);
  expect_same(image, golden("normalize"), "normalize");
  const std::vector<float> table = item.table(3, true);
  for (int64_t i = 0; i < photo().values(); ++i)
    ASSERT_EQ(table[static_cast<size_t>(i % 3 * 256 + photo().as<uint8_t>()[i])], image.as<float>()[i]) << i;
}

TEST(ToDtype, EqualsTorchvision) {
  Image image = float_photo();
  for (int64_t i = 0; i < image.values(); ++i) image.as<float>()[i] *= 0.93f;
  expect_same(image.to(DType::kU8, true), golden("to u8"), "to u8");
  expect_same(photo().to(DType::kF32, true), golden("image f32"), "to f32");
  EXPECT_EQ(photo().to(DType::kF32, false).as<float>()[5], static_cast<float>(photo().as<uint8_t>()[5]));
}

TEST(AutoAugment, OperationsEqualTorchvision) {
  // Geometric items: torchvision computes the grid in float, Galley in double, so a sample on the border between two pixels may use
  // the other one: at most 0.5 % of the pixels. Bilinear: one level if a sum is near a half, which is frequent for a shear by a
  // quarter. Colors: as in Color.
  const int count = for_goldens("augment ", [&](const auto& word, const Golden& want, const std::string& name) {
    Image image = photo();
    const bool moves = word[1].starts_with("Shear") || word[1].starts_with("Translate") || word[1] == "Rotate";
    const bool bilinear = word[3] == "bilinear";
    apply_augmentation(image, word[1], std::stod(word[2]), bilinear ? Interpolation::kBilinear : Interpolation::kNearest,
                       word[3] == "fill" ? std::vector<double>{50, 60, 70} : std::vector<double>{});
    expect_near(image, want, moves && !bilinear ? Difference{255, 0.005} : Difference{1, bilinear ? 0.05 : 0.01}, name);
  });
  EXPECT_EQ(count, 31);
}

TEST(AutoAugment, MagnitudesAndPoliciesEqualTorchvision) {
  const int count = for_goldens("magnitudes ", [&](const auto& word, const Golden& want, const std::string& name) {
    for (int i = 0; i < 10; ++i) {
      bool is_signed = false;
      const double got = augmentation_magnitude(word[1], i, 29, 37, is_signed);
      EXPECT_NEAR(got, static_cast<double>(want.floats()[static_cast<size_t>(i)]), 1e-4)
          << name << " " << i;  // theirs is float: 255 has 2e-5
      EXPECT_EQ(is_signed, word[2] == "1") << name;
    }
  });
  EXPECT_EQ(count, 14);
  constexpr std::string_view kPolicies[] = {"imagenet", "cifar10", "svhn"};
  for (int policy = 0; policy < 3; ++policy) {
    std::ostringstream text;
    for (const auto& steps : auto_augment_policy(static_cast<AutoAugmentPolicy>(policy)))
      for (const AugmentationStep& step : steps) {
        std::string p = cat(step.probability);
        if (p.find('.') == std::string::npos) p += ".0";
        text << step.operation << " " << p << " " << step.magnitude << ";";
      }
    EXPECT_EQ(text.str(), golden(cat("policy ", kPolicies[policy])).text());
  }
}

TEST(RandomResizedCrop, DrawsUniformAreasInsideTheImage) {
  RandomResizedCrop item;
  item.size = {8};
  item.scale = {0.1, 0.3};  // small enough that the first attempt always fits
  item.ratio = {0.8, 1.25};
  double sum = 0, log_ratio = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    RandomStream random(1, "crop", static_cast<uint64_t>(i));
    const Region region = item.draw(400, 500, random);
    ASSERT_TRUE(region.top >= 0 && region.left >= 0 && region.top + region.height <= 400 && region.left + region.width <= 500);
    sum += static_cast<double>(region.height * region.width) / 200000.0;
    log_ratio += std::log(static_cast<double>(region.width) / static_cast<double>(region.height));
  }
  // Uniform in 0.1..0.3 has standard deviation 0.058, log ratio 0.13: five standard errors of 4000 draws.
  EXPECT_NEAR(sum / kDraws, 0.2, 0.0046);
  EXPECT_NEAR(log_ratio / kDraws, 0.0, 0.0102);
}

TEST(RandomResizedCrop, FallsBackToTheMiddle) {
  RandomResizedCrop item;
  item.size = {8};
  item.scale = {1, 1};
  RandomStream random(1, "crop");
  const Region region = item.draw(10, 100, random);
  EXPECT_EQ(region.height, 10);
  EXPECT_EQ(region.width, 13);  // 10 * 4/3
  EXPECT_EQ(region.left, 43);
}

TEST(RandomCrop, WithPaddingEqualsPadThenCropAndCoversAllPlaces) {
  RandomCrop item;
  item.size = {29, 37};
  item.padding = {2};
  Pad pad;
  pad.padding = {2};
  const Image padded = pad_image(photo(), pad);
  std::map<std::string, int> seen;
  for (uint64_t i = 0; i < 500; ++i) {
    RandomStream random(3, "crop", i);
    Image got = photo();
    item.apply(got, random);
    bool found = false;
    for (int64_t top = 0; top <= 4 && !found; ++top)
      for (int64_t left = 0; left <= 4 && !found; ++left)
        if (bit_equal(got.to_tensor(), crop(padded, {top, left, 29, 37}).to_tensor())) {
          found = true;
          ++seen[cat(top, ",", left)];
        }
    ASSERT_TRUE(found) << "draw " << i;
  }
  EXPECT_EQ(seen.size(), 25u);  // 20 a place on average: none stays empty
}

TEST(RandomCrop, PadsSmallImagesOrRefusesThem) {
  RandomCrop item;
  item.size = {40};
  RandomStream random(3, "crop");
  Image image = photo();
  EXPECT_THROW(item.apply(image, random), Error);
  item.pad_if_needed = true;
  item.padding_mode = PaddingMode::kEdge;
  item.apply(image, random);
  EXPECT_EQ(image.str(), "u8 [3,40,40]");
}

TEST(RandomErasing, ErasesOneRectangleOfTheDrawnArea) {
  RandomErasing item;
  item.p = 1;
  item.value = {"7"};
  for (uint64_t i = 0; i < 200; ++i) {
    RandomStream random(5, "erase", i);
    Image image = float_photo();
    item.apply(image, random);
    int64_t erased = 0, top = 99, bottom = -1, left = 99, right = -1;
    for (int64_t y = 0; y < image.height(); ++y)
      for (int64_t x = 0; x < image.width(); ++x) {
        const float* pixel = image.row<float>(y) + 3 * x;
        if (pixel[0] != 7.0f) continue;
        ASSERT_TRUE(pixel[1] == 7.0f && pixel[2] == 7.0f);
        ++erased;
        top = std::min(top, y), bottom = std::max(bottom, y), left = std::min(left, x), right = std::max(right, x);
      }
    ASSERT_GT(erased, 0) << i;
    EXPECT_EQ(erased, (bottom - top + 1) * (right - left + 1)) << i;
    // 0.02..0.33 of 1073 pixels, with edges rounded to whole pixels.
    EXPECT_GE(erased, 8) << i;
    EXPECT_LE(erased, 400) << i;
  }
  item.value = {"random"};
  RandomStream random(5, "erase");
  Image image = float_photo();
  item.apply(image, random);
  EXPECT_FALSE(bit_equal(image.to_tensor(), float_photo().to_tensor()));
}

TEST(ColorJitter, UsesAllFactorsInRandomOrder) {
  ColorJitter item;
  item.brightness = {0.4};
  item.hue = {-0.1, 0.2};
  item.check();
  std::map<std::string, int> seen;
  for (uint64_t i = 0; i < 20; ++i) {
    RandomStream a(5, "jitter", i), b(5, "jitter", i);
    Image x = photo(), y = photo();
    item.apply(x, a);
    item.apply(y, b);
    EXPECT_TRUE(bit_equal(x.to_tensor(), y.to_tensor()));
    EXPECT_FALSE(bit_equal(x.to_tensor(), photo().to_tensor()));
  }
  ColorJitter nothing;
  RandomStream random(5, "jitter");
  Image same = photo();
  nothing.apply(same, random);
  EXPECT_TRUE(bit_equal(same.to_tensor(), photo().to_tensor()));
}

TEST(Options, ContradictionsAreErrors) {
  Normalize normalize;
  normalize.mean = {0.5};
  normalize.std = {0.0};
  EXPECT_THROW(normalize.check(), Error);
  Resize resize;
  resize.size = {1, 2, 3};
  EXPECT_THROW(resize.check(), Error);
  RandomErasing erasing;
  erasing.value = {"red"};
  EXPECT_THROW(erasing.check(), Error);
  ColorJitter jitter;
  jitter.hue = {0.7};
  EXPECT_THROW(jitter.check(), Error);
  AutoAugment augment;
  augment.interpolation = Interpolation::kBicubic;
  EXPECT_THROW(augment.check(), Error);
}

TEST(Field, NamesTheImageThatAnItemChanges) {
  Component flip{};
  flip.type = "random_horizontal_flip";
  auto options = std::make_unique<RandomHorizontalFlip>();
  options->p = 1;
  options->field = "mask";
  flip.params = std::move(options);
  const Pipeline pipeline(std::vector<Component>{flip});
  const auto image_of = [](uint8_t left, uint8_t right) {
    Image image(DType::kU8, 1, 2, 1);
    image.as<uint8_t>()[0] = left;
    image.as<uint8_t>()[1] = right;
    return image;
  };
  Sample sample;
  sample.set("input", image_of(1, 2));
  sample.set("mask", image_of(3, 4));
  sample.set("label", int64_t{0});
  pipeline.apply(sample, {});
  EXPECT_EQ(sample.image()->as<uint8_t>()[0], 1);
  EXPECT_EQ(std::get<Image>(*sample.find("mask")).as<uint8_t>()[0], 4);
  EXPECT_EQ(std::get<Image>(*sample.find("mask")).as<uint8_t>()[1], 3);
  // Samples without the field, or with another kind of field.
  EXPECT_THROW(pipeline.fields({image_field(1), label_field()}), Error);
  EXPECT_THROW(pipeline.fields({image_field(1), {.name = "mask", .kind = FieldKind::kClass, .dtype = DType::kI64}}), Error);
}

}  // namespace
}  // namespace galley
