// Law: images of different size are on the smallest canvas of pad_to that holds those of their batch, at the top left, with zeros around
// them; so are masks of objects, whose edge is repeated once. In training, images of similar shape come together.
#include <gtest/gtest.h>

#include <set>

#include "libcore/data/box_transforms.h"
#include "libcore/data/loader.h"
#include "libcore/data/objects.h"
#include "tests/data/item.h"

namespace galley {
namespace {

/// Image i has these sizes, all pixels 1 + i, and an object with a mask of ones.
class SizedImages : public ObjectSource {
 public:
  explicit SizedImages(std::vector<std::array<int64_t, 2>> sizes) {
    for (const auto& [rows, columns] : sizes) images_.push_back({.file = "", .id = 0, .height = rows, .width = columns, .objects = {}});
  }
  int64_t size() const override { return std::ssize(images_); }
  std::vector<FieldType> fields() const override {
    return {image_field(3),
            {.name = "masks",
             .kind = FieldKind::kMask,
             .layout = FieldLayout::kJagged,
             .dtype = DType::kU8,
             .sample = {kOpenSize, kOpenSize},
             .capacity = 1}};
  }
  Sample read(int64_t index) const override {
    const ObjectImage& image = images_[static_cast<size_t>(index)];
    Image pixels(DType::kF32, image.height, image.width, 3);
    std::fill_n(pixels.as<float>(), pixels.values(), static_cast<float>(1 + index));
    Image mask(DType::kU8, image.height, image.width, 1);
    std::fill_n(mask.as<uint8_t>(), mask.values(), uint8_t{1});
    ObjectMasks masks;
    masks.height = image.height;
    masks.width = image.width;
    masks.masks.push_back(std::move(mask));
    Sample sample;
    sample.set("input", std::move(pixels));
    sample.set("masks", std::move(masks));
    return sample;
  }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return "image " + std::to_string(index); }
  std::string describe() const override { return "images of different size"; }
  const ObjectImage& image(int64_t index) const override { return images_[static_cast<size_t>(index)]; }

 private:
  std::vector<ObjectImage> images_;
};

std::unique_ptr<DataLoader> loader_of(const std::vector<std::array<int64_t, 2>>& sizes, LoaderOptions options, MemoryFormat format) {
  PadTo pad;
  pad.size = {12, 12};
  pad.sizes = {"12x8", "8x12", "8x8"};
  options.format = format;
  options.passes = 1;
  return std::make_unique<DataLoader>(std::make_shared<SizedImages>(sizes), Pipeline({item("pad_to", pad)}), std::vector<Component>(),
                                      options);
}

TEST(Padding, ABatchGetsTheSmallestCanvas) {
  const std::vector<std::array<int64_t, 2>> images{{5, 7}, {8, 3}, {6, 9}, {2, 2}, {12, 8}, {3, 3}, {12, 5}, {4, 9}, {8, 8}};
  const std::vector<std::array<int64_t, 2>> canvases{{8, 8}, {8, 12}, {12, 8}, {12, 12}, {8, 8}};
  for (const MemoryFormat& format : {MemoryFormat::contiguous(), MemoryFormat::channels_last()}) {
    for (const bool fit : {true, false}) {
      LoaderOptions options;
      options.order.batch = 2;
      options.fit = fit;
      options.workers = fit ? 2 : 0;
      const auto loader = loader_of(images, options, format);
      EXPECT_EQ(loader->sizes().size(), fit ? 4u : 0u);
      EXPECT_EQ(loader->layout().at("input").shape(), (Shape{2, 3, 12, 12}));
      for (size_t b = 0; b < 5; ++b) {
        const Batch* batch = loader->next();
        ASSERT_NE(batch, nullptr);
        const auto [rows, columns] = fit ? canvases[b] : std::array<int64_t, 2>{12, 12};
        const Tensor& input = batch->input();
        ASSERT_EQ(input.shape(), (Shape{2, 3, rows, columns})) << b;
        const std::vector<double> pixels = input.to_doubles(), sizes = batch->at("image_size").to_doubles(),
                                  masks = batch->at("masks.values").to_doubles();
        ASSERT_EQ(batch->at("masks.values").shape(), (Shape{2, rows, columns}));
        for (int64_t i = 0; i < std::ssize(pixels); ++i) {
          const int64_t n = i / (3 * rows * columns), h = i / columns % rows, w = i % columns;
          const size_t image = b * 2 + static_cast<size_t>(n);
          const bool valid = n < batch->valid, inside = valid && h < images[image][0] && w < images[image][1];
          ASSERT_EQ(pixels[static_cast<size_t>(i)], inside ? 1 + static_cast<double>(image) : 0) << b << " " << i;
          if (i / (rows * columns) % 3 > 0) continue;
          const bool near = valid && h <= images[image][0] && w <= images[image][1];
          ASSERT_EQ(masks[static_cast<size_t>((n * rows + h) * columns + w)], near ? 1 : 0) << b << " " << i;
        }
        EXPECT_EQ(sizes[0], static_cast<double>(images[b * 2][0]));
      }
      EXPECT_EQ(loader->next(), nullptr);
    }
  }
}

TEST(Padding, ImagesOfSimilarShapeComeTogetherInTraining) {
  std::vector<std::array<int64_t, 2>> images;
  for (int64_t i = 0; i < 40; ++i) images.push_back(i % 2 == 0 ? std::array<int64_t, 2>{12, 7} : std::array<int64_t, 2>{8, 12});
  LoaderOptions options;
  options.order.batch = 4;
  options.order.shuffle = true;
  options.fit = options.cut = true;
  const auto loader = loader_of(images, options, MemoryFormat::contiguous());
  std::set<int64_t> seen;
  while (const Batch* batch = loader->next()) {
    EXPECT_NE(batch->input().shape(), (Shape{4, 3, 12, 12})) << "no batch mixes shapes";
    seen.insert(batch->indices.begin(), batch->indices.end());
  }
  EXPECT_EQ(seen.size(), 40u);
}

}  // namespace
}  // namespace galley
