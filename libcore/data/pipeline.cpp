#include "libcore/data/pipeline.h"

#include <algorithm>
#include <map>

namespace galley {
namespace {
constexpr std::string_view kInput = "input";
}  // namespace

struct Pipeline::Item {
  std::unique_ptr<Options> options;
  const Transform* transform = nullptr;
  std::string type;
  std::string stream;  // name of its random stream
};

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Pipeline::Pipeline(const std::vector<Component>& items) {
  std::map<std::string, bool> made_floats;  // of each field: an item before has made floats of any image
  for (size_t i = 0; i < items.size(); ++i) {
    Item item{.options = items[i].params->clone(), .type = items[i].type, .stream = "pipeline " + std::to_string(i)};
    item.transform = dynamic_cast<const Transform*>(item.options.get());
    GALLEY_ASSERT(item.transform != nullptr, "not a transform: ", items[i].type);
    item.transform->check();
    GALLEY_CHECK(!item.transform->field.empty(), "pipeline item ", i, ": ", item.type, " has an empty `field`; leave it out for the input");
    bool& floats = made_floats[item.transform->field];
    GALLEY_CHECK(item.transform->wants() != PixelsWanted::kU8 || !floats, "pipeline item ", i, ": ", item.type,
                 " works on u8 pixels, but an item before it makes floats; put it before normalize and to_dtype");
    const auto* to_dtype = dynamic_cast<const ToDtype*>(item.transform);
    floats = to_dtype != nullptr ? to_dtype->dtype == PixelType::kF32 : floats || item.transform->wants() == PixelsWanted::kFloat;
    items_.push_back(std::move(item));
  }
  // The last conversion, with or without normalize, is done while the batch is written.
  if (!items_.empty()) {
    if (const auto* last = dynamic_cast<const Normalize*>(items_.back().transform); last != nullptr && last->field == kInput) {
      normalize_ = std::make_unique<Normalize>(*last);
      items_.pop_back();
    }
  }
  if (!items_.empty()) {
    const auto* last = dynamic_cast<const ToDtype*>(items_.back().transform);
    if (last != nullptr && last->dtype == PixelType::kF32 && last->field == kInput) {
      scale_ = last->scale;
      items_.pop_back();
    }
  }
  const auto table = [&](int64_t channels) {
    if (normalize_ != nullptr) return normalize_->table(channels, scale_);
    Normalize identity;
    identity.mean = {0};
    identity.std = {1};
    return identity.table(channels, scale_);
  };
  if (normalize_ == nullptr || normalize_->mean.size() == 1) gray_table_ = table(1);
  if (normalize_ == nullptr || normalize_->mean.size() == 1 || normalize_->mean.size() == 3) rgb_table_ = table(3);
}

/// The image that an item works on.
Image* Pipeline::image_of(Sample& sample, const Item& item) {
  FieldValue* value = sample.find(item.transform->field);
  if (value == nullptr) {
    std::string names;
    for (const auto& [name, unused] : sample.fields()) names += (names.empty() ? "" : ", ") + name;
    fail(ErrorCode::kRecipe, "pipeline item ", item.type, ": the samples have no field '", item.transform->field, "'; they have ", names);
  }
  Image* image = std::get_if<Image>(value);
  if (image == nullptr && item.transform->field == kInput) {
    fail(ErrorCode::kRecipe, "pipeline item ", item.type, " wants an image; the source's samples are arrays, which take an empty pipeline");
  }
  GALLEY_CHECK(image != nullptr, "pipeline item ", item.type, " wants an image; the field '", item.transform->field, "' is none");
  return image;
}

void Pipeline::apply(Sample& sample, const DrawKey& key) const {
  if (items_.empty()) return;
  constexpr int kIndexBits = 44;  // 17 million million samples, a million epochs
  const uint64_t index = (static_cast<uint64_t>(key.epoch) << kIndexBits) | static_cast<uint64_t>(key.index);
  for (const Item& item : items_) {
    Image* image = image_of(sample, item);
    const PixelsWanted wants = item.transform->wants();
    if (wants == PixelsWanted::kFloat && image->dtype() == DType::kU8) *image = image->to(DType::kF32, true);
    GALLEY_CHECK(wants != PixelsWanted::kU8 || image->dtype() == DType::kU8, "pipeline item ", item.type,
                 " works on u8 pixels; the image is ", image->str());
    RandomStream random(key.seed, item.stream, index);
    item.transform->apply(*image, random);
  }
}

Shape Pipeline::input_shape(const Sample& sample) {
  if (const Image* image = sample.image()) return {image->channels(), image->height(), image->width()};
  return std::get<Tensor>(*sample.find("input")).shape();
}

DType Pipeline::input_dtype(const Sample& sample) {
  if (sample.image() != nullptr) return DType::kF32;
  const DType dtype = std::get<Tensor>(*sample.find("input")).dtype();
  return is_floating(dtype) || dtype == DType::kU8 ? DType::kF32 : dtype;
}

void Pipeline::write_image(const Image& image, bool channels_last, float* row) const {
  const int64_t channels = image.channels(), area = image.area();
  if (image.dtype() == DType::kU8 && (channels == 3 || channels == 1)) {
    const std::vector<float>& table = channels == 3 ? rgb_table_ : gray_table_;
    GALLEY_CHECK(!table.empty(), "[normalize] `mean` has ", normalize_->mean.size(), " values, the image is ", image.str());
    const uint8_t* from = image.as<uint8_t>();
    const float *red = table.data(), *green = red + 256, *blue = red + 512;
    if (channels == 1) {
      for (int64_t i = 0; i < area; ++i) row[i] = red[from[i]];
    } else if (channels_last) {
      for (int64_t i = 0; i < area; ++i, from += 3, row += 3) {
        row[0] = red[from[0]];
        row[1] = green[from[1]];
        row[2] = blue[from[2]];
      }
    } else {
      for (int64_t i = 0; i < area; ++i, from += 3) {
        row[i] = red[from[0]];
        row[area + i] = green[from[1]];
        row[2 * area + i] = blue[from[2]];
      }
    }
    return;
  }
  Image floats = image.to(DType::kF32, scale_);
  if (normalize_ != nullptr) {
    RandomStream unused(0, "");
    normalize_->apply(floats, unused);
  }
  const float* from = floats.as<float>();
  if (channels_last || channels == 1) {
    std::copy_n(from, floats.values(), row);
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < area; ++i) *row++ = from[i * channels + c];
}

void Pipeline::write(const Sample& sample, bool channels_last, void* row) const {
  if (const Image* image = sample.image()) {
    write_image(*image, channels_last, static_cast<float*>(row));
    return;
  }
  const Tensor& input = std::get<Tensor>(*sample.find("input"));
  GALLEY_CHECK(normalize_ == nullptr, "pipeline item normalize wants an image [C,H,W]; the source's samples are ", input.str());
  if (input.dtype() == DType::kU8) {
    const uint8_t* from = input.data_as<uint8_t>();
    float* to = static_cast<float*>(row);
    for (int64_t i = 0; i < input.elements(); ++i) to[i] = scale_ ? static_cast<float>(from[i]) / 255.0f : static_cast<float>(from[i]);
    return;
  }
  const Tensor converted = is_floating(input.dtype()) ? input.to(DType::kF32) : input;
  std::memcpy(row, converted.data(), static_cast<size_t>(converted.bytes()));
}

Tensor Pipeline::run(Sample sample, const DrawKey& key) const {
  apply(sample, key);
  Tensor result(input_dtype(sample), input_shape(sample));
  write(sample, false, result.data());
  return result;
}

}  // namespace galley
