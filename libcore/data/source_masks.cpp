// mask_folder: images, and masks of class indices with the same names in another folder.
#include <algorithm>
#include <map>

#include "libcore/base/file.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// The part of a path that an image and its mask share: "root/a/b.jpg" -> "a/b".
class MaskSource : public Source {
 public:
  MaskSource(const MaskFolder& options, const SourceContext& context)
      : num_classes_(options.num_classes), ignored_(options.ignore_index), mode_(options.mode), categories_(options.classes) {
    images_folder_ = below_root(context.root, options.images);
    const std::string masks_folder = below_root(context.root, options.masks);
    for (size_t i = 0; i < categories_.size(); ++i) {
      GALLEY_CHECK(std::find(categories_.begin(), categories_.begin() + static_cast<std::ptrdiff_t>(i), categories_[i]) ==
                       categories_.begin() + static_cast<std::ptrdiff_t>(i),
                   "the class '", categories_[i], "' occurs twice in `classes`");
    }
    GALLEY_CHECK(categories_.empty() || static_cast<int64_t>(categories_.size()) == num_classes_, "[mask_folder] `classes` has ",
                 categories_.size(), " names, but `num_classes` is ", num_classes_);
    std::map<std::string, std::string> masks;
    for (const std::string& folder : {images_folder_, masks_folder}) {
      if (is_folder(folder)) continue;
      throw in_file(folder, "no such folder").key("data.root").suggest("set data.root, or the source's `images` and `masks`");
    }
    for (const std::string& path : image_files(masks_folder)) masks.emplace(stem_below(masks_folder, path), path);
    for (const std::string& path : image_files(images_folder_)) {
      const std::string stem = stem_below(images_folder_, path);
      const auto mask = masks.find(stem);
      if (mask == masks.end() && options.unpaired == Unpaired::kSkip) continue;
      GALLEY_CHECK_FILE(mask != masks.end(), path, "no mask ", masks_folder, "/", stem, ".png; set unpaired: skip to ignore such images");
      pairs_.push_back({path, mask->second});
    }
  }

  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override { return pairs_[static_cast<size_t>(index)].image; }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override {
    return cat("mask_folder ", images_folder_, ": ", size(), " images with masks of ", num_classes_, " classes");
  }
  std::vector<FieldType> fields() const override {
    return {image_field(mode_ == ColorMode::kRgb ? 3 : 1),
            {.name = "label", .kind = FieldKind::kMask, .dtype = DType::kI64, .sample = {kOpenSize, kOpenSize}, .classes = num_classes_}};
  }
  Sample read(int64_t index) const override {
    const Pair& pair = pairs_[static_cast<size_t>(index)];
    const std::string bytes = read_file(pair.image);
    Sample sample;
    Image image = decode_image(std::as_bytes(std::span(bytes)), mode_, pair.image, {}, &sample.irregularity);
    Mask mask = read_mask(pair.mask);
    if (mask.classes.height() != image.height() || mask.classes.width() != image.width()) {
      throw BadSample("size", pair.mask,
                      cat("the mask has ", mask.classes.width(), " x ", mask.classes.height(), " pixels, its image ", pair.image, " has ",
                          image.width(), " x ", image.height()));
    }
    sample.set("input", std::move(image));
    sample.set("label", std::move(mask));
    return sample;
  }

 private:
  struct Pair {
    std::string image, mask;
  };

  Mask read_mask(const std::string& path) const {
    const std::string bytes = read_file(path);
    Mask mask{decode_png_values(std::as_bytes(std::span(bytes)), path)};
    uint8_t* values = mask.classes.as<uint8_t>();
    for (int64_t i = 0; i < mask.classes.area(); ++i) {
      if (ignored_ && values[i] == *ignored_) {
        values[i] = Mask::kNoClass;
      } else if (values[i] >= num_classes_) {
        throw BadSample("class", path,
                        cat("the pixel in column ", i % mask.classes.width(), ", row ", i / mask.classes.width(), " has the class ",
                            static_cast<int>(values[i]), "; num_classes is ", num_classes_, " (0 .. ", num_classes_ - 1, ")",
                            ignored_ ? cat(", ignore_index ", *ignored_) : "; set ignore_index if the value marks pixels without a class"));
      }
    }
    return mask;
  }

  int64_t num_classes_;
  std::optional<int64_t> ignored_;
  ColorMode mode_;
  std::vector<std::string> categories_;
  std::string images_folder_;
  std::vector<Pair> pairs_;
};

}  // namespace

std::unique_ptr<Source> MaskFolder::open(const SourceContext& context) const { return std::make_unique<MaskSource>(*this, context); }

}  // namespace galley
