// Transforms of images with masks, and the grid that says where a transform puts the pixels of a file.
#include "libcore/data/pipeline.h"
#include "libcore/data/source.h"
#include "libcore/data/transform.h"
#include "tests/data/golden.h"
#include "tests/data/item.h"

namespace galley {
namespace {

constexpr int64_t kSide = 24;

FieldType mask_field() { return {.name = "label", .kind = FieldKind::kMask, .dtype = DType::kI64, .sample = {kSide, kSide}, .classes = 4}; }

/// An image with areas of the values 10, 60, 110 and 160, and the mask of their classes 0..3.
Sample colored_classes() {
  Image image(DType::kU8, kSide, kSide, 1), mask(DType::kU8, kSide, kSide, 1);
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    const int64_t y = i / kSide, x = i % kSide, c = (y / 5 * 3 + x / 7 + (x * y > 200)) % 4;
    mask.as<uint8_t>()[i] = static_cast<uint8_t>(c);
    image.as<uint8_t>()[i] = static_cast<uint8_t>(10 + 50 * c);
  }
  Sample sample;
  sample.set("input", std::move(image));
  sample.set("label", Mask{std::move(mask)});
  return sample;
}

TEST(Masks, FollowTheirImageWithTheSameNumbers) {
  Resize resize;
  resize.size = {31, 17};
  CenterCrop center;
  center.size = {30};
  Pad pad;
  pad.padding = {3, 2, 1, 4};
  RandomCrop crop;
  crop.size = {20};
  crop.padding = {6};
  RandomResizedCrop part;
  part.size = {16};
  part.scale = {0.2, 0.9};
  RandomHorizontalFlip flip;
  RandomVerticalFlip turn;
  for (const Component& component :
       {item("resize", resize), item("center_crop", center), item("pad", pad), item("random_crop", crop), item("random_resized_crop", part),
        item("random_horizontal_flip", flip), item("random_vertical_flip", turn)}) {
    // With nearest-neighbor interpolation, the pixels of the image correspond exactly to the classes of the mask.
    Component nearest = component;
    if (auto* params = dynamic_cast<Resize*>(nearest.params.get())) params->interpolation = Interpolation::kNearest;
    if (auto* params = dynamic_cast<RandomResizedCrop*>(nearest.params.get())) params->interpolation = Interpolation::kNearest;
    const Pipeline exact({nearest}), smooth({component});
    const std::vector<FieldType> types = smooth.fields({image_field(1, kSide, kSide), mask_field()});
    for (int64_t index = 0; index < 20; ++index) {
      Sample sample = colored_classes(), smoothed = colored_classes();
      exact.apply(sample, {7, 1, index});
      smooth.apply(smoothed, {7, 1, index});
      const Image& image = *sample.image();
      const Image& mask = std::get<Mask>(*sample.find("label")).classes;
      EXPECT_EQ(types[1].sample, (std::vector<int64_t>{mask.height(), mask.width()})) << component.type;
      ASSERT_EQ(image.area(), mask.area()) << component.type;
      for (int64_t i = 0; i < mask.area(); ++i) {
        const int pixel = image.as<uint8_t>()[i];  // 0: filled in
        ASSERT_EQ(mask.as<uint8_t>()[i], pixel == 0 ? Mask::kNoClass : (pixel - 10) / 50) << component.type << " pixel " << i;
      }
      EXPECT_TRUE(bit_equal(std::get<Mask>(*smoothed.find("label")).classes.to_tensor(), mask.to_tensor()))
          << component.type << ": interpolation must not reach masks";
    }
  }
}

/// A mask whose pixel (y, x) is 16 y + x, with an image of 12 x 16 pixels.
Sample numbered_pixels() {
  Image image(DType::kU8, 12, 16, 1);
  for (int64_t i = 0; i < image.area(); ++i) image.as<uint8_t>()[i] = static_cast<uint8_t>(i);
  Sample sample;
  sample.set("input", image);
  sample.set("label", Mask{std::move(image)});
  return sample;
}

/// At the position that the pipeline's grid gives a pixel of the original, the transformed mask shows that pixel, or one at most `off` rows
/// and columns away. A pixel without a position is not in the mask.
void expect_grid_follows(const std::vector<Component>& items, double off = 0) {
  const Pipeline pipeline(items);
  for (int64_t index = 0; index < 20; ++index) {
    const DrawKey key{7, 1, index};
    Sample sample = numbered_pixels();
    pipeline.apply(sample, key);
    const std::optional<PixelGrid> grid = pipeline.grid(12, 16, key);
    ASSERT_TRUE(grid);
    const FieldValue* value = sample.find("label");
    const Image& mask = std::get<Mask>(*value).classes;
    ASSERT_EQ(grid->height, mask.height());
    ASSERT_EQ(grid->width, mask.width());
    for (int64_t y = 0; y < 12; ++y) {
      for (int64_t x = 0; x < 16; ++x) {
        const int64_t row = grid->row_at(y), column = grid->column_at(x);
        if (row < 0 || column < 0) {
          const uint8_t* end = mask.as<uint8_t>() + mask.area();
          EXPECT_TRUE(off > 0 || std::find(mask.as<uint8_t>(), end, static_cast<uint8_t>(16 * y + x)) == end) << y << "," << x;
          continue;
        }
        const int shown = mask.row<uint8_t>(row)[column];
        ASSERT_NE(shown, Mask::kNoClass) << items.front().type << " " << index << ": pixel " << y << "," << x;
        EXPECT_TRUE(std::abs(shown / 16 - static_cast<int>(y)) <= off && std::abs(shown % 16 - static_cast<int>(x)) <= off)
            << items.front().type << " " << index << ": pixel " << y << "," << x << " should be at " << row << "," << column
            << ", which shows " << shown / 16 << "," << shown % 16;
      }
    }
  }
}

TEST(PixelGrid, LiesWhereMasksAreMovedTo) {
  Resize twice;
  twice.size = {24, 32};
  CenterCrop center, around;
  center.size = {8, 8};
  around.size = {15, 19};
  Pad pad;
  pad.padding = {3, 2, 1, 4};
  RandomCrop crop;
  crop.size = {10, 9};
  crop.padding = {2};
  RandomCrop whole;
  whole.size = {20, 20};
  whole.pad_if_needed = true;
  whole.padding_mode = PaddingMode::kEdge;
  RandomHorizontalFlip flip;
  RandomVerticalFlip turn;
  const Component resize_item = item("resize", twice), center_item = item("center_crop", center), pad_item = item("pad", pad),
                  crop_item = item("random_crop", crop), flip_item = item("random_horizontal_flip", flip),
                  turn_item = item("random_vertical_flip", turn);
  for (const std::vector<Component>& items : std::vector<std::vector<Component>>{{resize_item},
                                                                                 {center_item},
                                                                                 {item("center_crop", around)},
                                                                                 {pad_item},
                                                                                 {crop_item},
                                                                                 {flip_item},
                                                                                 {turn_item},
                                                                                 {resize_item, center_item, flip_item},
                                                                                 {flip_item, crop_item, turn_item, pad_item, resize_item}})
    expect_grid_follows(items);
  // A reduced mask shows one of the pixels with the same position.
  Resize half;
  half.size = {6, 8};
  expect_grid_follows({item("resize", half)}, 1);
  RandomResizedCrop part;
  part.size = {6};
  part.scale = {0.3, 0.9};
  expect_grid_follows({item("random_resized_crop", part)}, 3);
  // Repeated edges are not part of the image; only the original position counts.
  const std::optional<PixelGrid> grid = Pipeline({item("random_crop", whole)}).grid(12, 16, {});
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->row_at(11) - grid->row_at(0), 11);
  EXPECT_EQ(grid->column_at(15) - grid->column_at(0), 15);
}

TEST(PixelGrid, FollowsTheInputUnderItsNewNameAndNoOtherField) {
  Resize resize;
  resize.size = {6, 8};
  resize.field = "photo";
  Rename rename;
  rename.from = "input";
  rename.to = "photo";
  CenterCrop other;
  other.size = {2};
  other.field = "depth";
  const std::optional<PixelGrid> grid =
      Pipeline({item("rename", rename), item("center_crop", other), item("resize", resize)}).grid(12, 16, {});
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->height, 6);
  EXPECT_EQ(grid->step_y, 2);
  EXPECT_FALSE(Pipeline({item("auto_augment", AutoAugment())}).grid(12, 16, {})) << "its motion is not known";
}

TEST(Masks, KeepTheirValuesUnderColors) {
  ColorJitter jitter;
  jitter.brightness = {0.5};
  RandomErasing erasing;
  erasing.p = 1;
  Normalize normalize;
  normalize.mean = normalize.std = {0.5};
  const Pipeline pipeline({item("color_jitter", jitter), item("normalize", normalize), item("random_erasing", erasing)});
  Sample sample = colored_classes();
  const Tensor before = std::get<Mask>(*sample.find("label")).classes.to_tensor();
  pipeline.apply(sample, {});
  EXPECT_TRUE(bit_equal(std::get<Mask>(*sample.find("label")).classes.to_tensor(), before));
}

TEST(Masks, ItemsThatCannotMoveAFieldRefuseIt) {
  const auto error_of = [](const Component& component, const std::vector<FieldType>& in) {
    try {
      Pipeline({component}).fields(in);
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.key(), "pipeline.0");
      return error.text();
    }
  };
  const auto expect_says = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' does not say '" << word << "'";
  };
  const FieldType boxes{.name = "boxes", .kind = FieldKind::kBoxes, .layout = FieldLayout::kJagged, .sample = {4}, .capacity = 10};
  const FieldType points{.name = "points", .kind = FieldKind::kKeypoints, .layout = FieldLayout::kJagged, .sample = {3}, .capacity = 10};
  Resize resize;
  resize.size = {8};
  EXPECT_EQ(error_of(item("resize", resize), {image_field(3), boxes}), "");
  expect_says(error_of(item("auto_augment", AutoAugment()), {image_field(3), boxes}),
              {"item 0: auto_augment", "cannot move the boxes of the field 'boxes'"});
  EXPECT_EQ(error_of(item("random_horizontal_flip", RandomHorizontalFlip()), {image_field(3), points}), "");
  expect_says(error_of(item("auto_augment", AutoAugment()), {image_field(3), points}), {"cannot move the keypoints of the field 'points'"});
  expect_says(error_of(item("auto_augment", AutoAugment()), {image_field(3), mask_field()}),
              {"auto_augment", "cannot move the mask of the field 'label'"});
  EXPECT_EQ(error_of(item("color_jitter", ColorJitter()), {image_field(3), boxes, mask_field()}), "");
  ColorJitter on_mask;
  on_mask.field = "label";
  expect_says(error_of(item("color_jitter", on_mask), {image_field(3), mask_field()}), {"'label' is a mask of classes"});
  Resize mask_alone = resize;
  mask_alone.size = {8, 8};
  mask_alone.field = "label";
  EXPECT_EQ(Pipeline({item("resize", mask_alone)}).fields({image_field(3), mask_field()}).at(1).sample, (std::vector<int64_t>{8, 8}));
}

TEST(Rename, MovesAFieldAndRefusesNamesThatDoNotFit) {
  Rename rename;
  rename.from = "label";
  rename.to = "mask";
  const Pipeline pipeline({item("rename", rename)});
  EXPECT_EQ(pipeline.fields({image_field(1), mask_field()}).at(1).name, "mask");
  Sample sample = colored_classes();
  pipeline.apply(sample, {});
  EXPECT_NE(sample.find("mask"), nullptr);
  EXPECT_EQ(sample.find("label"), nullptr);
  EXPECT_THROW(pipeline.fields({image_field(1)}), Error);
  rename.to = "input";
  EXPECT_THROW(Pipeline({item("rename", rename)}).fields({image_field(1), mask_field()}), Error);
  // Prediction has only the image; items of other fields are skipped.
  Resize resize;
  resize.size = {8};
  Resize mask_alone = resize;
  mask_alone.field = "label";
  const std::vector<Component> items =
      items_for({item("resize", resize), item("resize", mask_alone), item("rename", rename)}, {image_field(1)});
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].as<Resize>()->field, "input");
}

}  // namespace
}  // namespace galley
