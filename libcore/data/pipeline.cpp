#include "libcore/data/pipeline.h"

#include <algorithm>

#include "libcore/base/under_key.h"
#include "libcore/data/box_transforms.h"

namespace galley {

struct Pipeline::Item {
  std::unique_ptr<Options> options;
  const Transform* transform = nullptr;
  std::string type;
  std::string stream;  // name of the item's random stream
  RandomStream random(const DrawKey& key) const;
};

/// The conversion from a field's pixels to the floats of a batch.
struct Pipeline::Finish {
  bool scale = true;                         // option of the last to_dtype
  std::unique_ptr<Normalize> normalize;      // fused with the conversion, or null
  std::vector<float> gray_table, rgb_table;  // [channels][256]: results for all u8 values, for 1 and 3 channels

  void make_tables();
  void write_image(const Image& image, bool channels_last, float* row) const;
  void write_clip(const Clip& clip, bool channels_last, float* row) const;
  void write_array(const Tensor& array, const std::string& field, void* row) const;
};

namespace {

/// Prefixes a transform's error message with its item.
Error at_item(Error error, size_t number, const std::string& type) {
  Error placed(error.code(), cat("pipeline item ", number, ": ", type, " ", error.message()));
  return placed.key(cat("pipeline.", number)).suggest(error.suggestion());
}

/// Copies the bytes of an image; without channels_last to planes that are `plane` bytes apart.
void copy_bytes(const Image& image, bool channels_last, int64_t plane, uint8_t* to) {
  const uint8_t* from = image.as<uint8_t>();
  const int64_t channels = image.channels(), area = image.area();
  if (channels_last || channels == 1) {
    std::copy_n(from, image.values(), to);
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < area; ++i) to[c * plane + i] = from[i * channels + c];
}

}  // namespace

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Pipeline::Pipeline(const std::vector<Component>& items) : plain_(std::make_unique<Finish>()) {
  for (size_t i = 0; i < items.size(); ++i) {
    Item item{.options = items[i].params->clone(), .type = items[i].type, .stream = "pipeline " + std::to_string(i)};
    item.transform = dynamic_cast<const Transform*>(item.options.get());
    GALLEY_ASSERT(item.transform != nullptr, "not a transform: ", items[i].type);
    under_key(cat("pipeline.", i), [&] {
      item.transform->check();
      const auto* image = dynamic_cast<const ImageTransform*>(item.transform);
      GALLEY_CHECK(image == nullptr || !image->field.empty(), "pipeline item ", i, ": ", item.type,
                   " has an empty `field`; remove the option to change the input");
    });
    const bool again =
        item.transform->joins() && std::any_of(items_.begin(), items_.end(), [](const Item& before) { return before.transform->joins(); });
    GALLEY_CHECK(!again, "pipeline item ", i, ": ", item.type, " joins samples, as an item before does; one is possible");
    items_.push_back(std::move(item));
  }
  // A trailing to_dtype and normalize run while the batch is written.
  if (!items_.empty()) {
    if (const auto* last = dynamic_cast<const Normalize*>(items_.back().transform)) {
      finishes_[last->field].normalize = std::make_unique<Normalize>(*last);
      items_.pop_back();
    }
  }
  if (!items_.empty()) {
    const auto* last = dynamic_cast<const ToDtype*>(items_.back().transform);
    const bool fits = last != nullptr && last->dtype == PixelType::kF32 && (finishes_.empty() || finishes_.contains(last->field));
    if (fits) {
      finishes_[last->field].scale = last->scale;
      items_.pop_back();
    }
  }
  plain_->make_tables();
  for (auto& [field, finish] : finishes_) finish.make_tables();
}

void Pipeline::Finish::make_tables() {
  const auto table = [&](int64_t channels) {
    if (normalize != nullptr) return normalize->table(channels, scale);
    Normalize identity;
    identity.mean = {0};
    identity.std = {1};
    return identity.table(channels, scale);
  };
  if (normalize == nullptr || normalize->mean.size() == 1) gray_table = table(1);
  if (normalize == nullptr || normalize->mean.size() == 1 || normalize->mean.size() == 3) rgb_table = table(3);
}

const Pipeline::Finish& Pipeline::finish_of(const std::string& field) const {
  auto found = finishes_.find(field);
  // Two images stand for `input`.
  if (found == finishes_.end() && (field == kPair[0] || field == kPair[1])) found = finishes_.find("input");
  return found == finishes_.end() ? *plain_ : found->second;
}

/// Before write().
std::vector<FieldType> Pipeline::fields_after_items(std::vector<FieldType> fields) const {
  for (size_t i = 0; i < items_.size(); ++i) {
    try {
      fields = items_[i].transform->fields(std::move(fields));
    } catch (const Error& error) {
      throw at_item(error, i, items_[i].type);
    }
  }
  return fields;
}

std::vector<FieldType> Pipeline::fields(const std::vector<FieldType>& in) const {
  std::vector<FieldType> fields = fields_after_items(in);
  for (const auto& [field, finish] : finishes_) {
    const FieldType* type = find_field(fields, field);
    // to_dtype is also valid for arrays, which have no image to check.
    if (type != nullptr && finish.normalize == nullptr && type->kind == FieldKind::kValues) continue;
    ToDtype converts;
    converts.field = field;
    const ImageTransform& last = finish.normalize != nullptr ? static_cast<const ImageTransform&>(*finish.normalize) : converts;
    try {
      fields = last.fields(std::move(fields));
    } catch (const Error& error) {
      throw at_item(error, items_.size(), finish.normalize != nullptr ? "normalize" : "to_dtype");
    }
  }
  for (FieldType& type : fields) {
    const bool array = type.kind == FieldKind::kValues || type.kind == FieldKind::kSound || type.kind == FieldKind::kImage;
    if (array && (is_floating(type.dtype) || type.dtype == DType::kU8)) type.dtype = DType::kF32;
  }
  return fields;
}

RandomStream Pipeline::Item::random(const DrawKey& key) const {
  constexpr int kIndexBits = 44;  // 2^44 samples and 2^20 epochs
  return RandomStream(key.seed, stream, (static_cast<uint64_t>(key.epoch) << kIndexBits) | static_cast<uint64_t>(key.index));
}

void Pipeline::apply(Sample& sample, const DrawKey& key, const OtherSamples* others) const {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].transform->joins()) {
      if (others != nullptr) join(sample, i, key, *others);
      continue;
    }
    RandomStream random = items_[i].random(key);
    items_[i].transform->apply_to_sample(sample, random);
  }
}

/// Applies an item that joins samples. Others have random numbers of their own, so that none is equal to itself in its own batch.
void Pipeline::join(Sample& sample, size_t number, const DrawKey& key, const OtherSamples& others) const {
  const Transform& transform = *items_[number].transform;
  RandomStream random = items_[number].random(key);
  std::vector<Sample> read;
  for (int64_t count = transform.others(key.epoch, random); count > 0; --count) {
    DrawKey own{.seed = random.below(~uint64_t{0}), .epoch = key.epoch};
    Sample other = others.read(static_cast<int64_t>(random.below(static_cast<uint64_t>(others.size))), own.index);
    for (size_t i = 0; i < number; ++i) {
      RandomStream before = items_[i].random(own);
      items_[i].transform->apply_to_sample(other, before);
    }
    read.push_back(std::move(other));
  }
  if (!read.empty()) transform.join(sample, std::move(read), random);
}

std::optional<PixelGrid> Pipeline::grid(int64_t height, int64_t width, const DrawKey& key) const {
  PixelGrid grid(height, width);
  std::string field = "input";
  for (const Item& item : items_) {
    if (const auto* rename = dynamic_cast<const Rename*>(item.transform)) {
      if (rename->from == field) field = rename->to;
      continue;
    }
    const auto* image = dynamic_cast<const ImageTransform*>(item.transform);
    if (image == nullptr || image->field != field) continue;
    if (image->motion() == Motion::kDistorts) return std::nullopt;
    RandomStream random = item.random(key);
    image->map_grid(grid, random);
  }
  return grid;
}

Shape Pipeline::shape_of(const FieldValue& value) {
  if (const auto* image = std::get_if<Image>(&value)) return {image->channels(), image->height(), image->width()};
  if (const auto* mask = std::get_if<Mask>(&value)) return {mask->classes.height(), mask->classes.width()};
  if (const auto* boxes = std::get_if<Boxes>(&value)) return boxes->corners.shape();
  if (const auto* clip = std::get_if<Clip>(&value)) {
    const Image& first = clip->frames.front();
    return {first.channels(), std::ssize(clip->frames), first.height(), first.width()};
  }
  if (const auto* masks = std::get_if<ObjectMasks>(&value)) return {std::ssize(masks->masks), masks->height, masks->width};
  if (const auto* keypoints = std::get_if<Keypoints>(&value)) return keypoints->points.shape();
  if (const auto* flow = std::get_if<Flow>(&value)) return {flow->vectors.channels(), flow->vectors.height(), flow->vectors.width()};
  const auto* tensor = std::get_if<Tensor>(&value);
  return tensor == nullptr ? Shape() : tensor->shape();
}

DType Pipeline::dtype_of(const FieldValue& value) {
  if (std::holds_alternative<Image>(value) || std::holds_alternative<Boxes>(value) || std::holds_alternative<Flow>(value) ||
      std::holds_alternative<Clip>(value) || std::holds_alternative<Keypoints>(value))
    return DType::kF32;
  if (std::holds_alternative<ObjectMasks>(value)) return DType::kU8;
  const auto* tensor = std::get_if<Tensor>(&value);
  if (tensor == nullptr) return DType::kI64;
  return is_floating(tensor->dtype()) || tensor->dtype() == DType::kU8 ? DType::kF32 : tensor->dtype();
}

void Pipeline::Finish::write_image(const Image& image, bool channels_last, float* row) const {
  const int64_t channels = image.channels(), area = image.area();
  if (image.dtype() == DType::kU8 && (channels == 3 || channels == 1)) {
    const std::vector<float>& table = channels == 3 ? rgb_table : gray_table;
    GALLEY_CHECK(!table.empty(), "[normalize] `mean` has ", normalize->mean.size(),
                 " values; it needs one, or one per channel of the image ", image.str());
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
  Image floats = image.to(DType::kF32, scale);
  if (normalize != nullptr) {
    RandomStream unused(0, "");
    normalize->apply(floats, unused);
  }
  const float* from = floats.as<float>();
  if (channels_last || channels == 1) {
    std::copy_n(from, floats.values(), row);
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < area; ++i) *row++ = from[i * channels + c];
}

/// [T,H,W,C] with channels last, else [C,T,H,W].
void Pipeline::Finish::write_clip(const Clip& clip, bool channels_last, float* row) const {
  const Image& first = clip.frames.front();
  const int64_t channels = first.channels(), area = first.area(), frames = static_cast<int64_t>(clip.frames.size());
  std::vector<float> planes(channels_last ? 0 : static_cast<size_t>(first.values()));
  for (int64_t t = 0; t < frames; ++t) {
    const Image& frame = clip.frames[static_cast<size_t>(t)];
    if (channels_last) {
      write_image(frame, true, row + t * first.values());
      continue;
    }
    write_image(frame, false, planes.data());
    for (int64_t c = 0; c < channels; ++c) std::copy_n(planes.data() + c * area, area, row + (c * frames + t) * area);
  }
}

void Pipeline::Finish::write_array(const Tensor& array, const std::string& field, void* row) const {
  GALLEY_CHECK(normalize == nullptr, "pipeline item normalize needs an image [C,H,W]; the field '", field, "' is ", array.str());
  if (array.dtype() == DType::kU8) {
    const uint8_t* from = array.data_as<uint8_t>();
    float* to = static_cast<float*>(row);
    for (int64_t i = 0; i < array.elements(); ++i) to[i] = scale ? static_cast<float>(from[i]) / 255.0f : static_cast<float>(from[i]);
    return;
  }
  const Tensor converted = is_floating(array.dtype()) ? array.to(DType::kF32) : array;
  std::memcpy(row, converted.data(), static_cast<size_t>(converted.bytes()));
}

void Pipeline::write(const Sample& sample, const std::string& field, bool channels_last, int64_t no_class, void* row) const {
  const FieldValue* value = sample.find(field);
  GALLEY_ASSERT(value != nullptr, "no field ", field);
  if (const auto* image = std::get_if<Image>(value)) {
    finish_of(field).write_image(*image, channels_last, static_cast<float*>(row));
  } else if (const auto* clip = std::get_if<Clip>(value)) {
    finish_of(field).write_clip(*clip, channels_last, static_cast<float*>(row));
  } else if (const auto* mask = std::get_if<Mask>(value)) {
    const uint8_t* from = mask->classes.as<uint8_t>();
    int64_t* to = static_cast<int64_t*>(row);
    for (int64_t i = 0; i < mask->classes.area(); ++i) to[i] = from[i] == Mask::kNoClass ? no_class : from[i];
  } else if (const auto* flow = std::get_if<Flow>(value)) {
    plain_->write_image(flow->vectors, channels_last, static_cast<float*>(row));
  } else if (const auto* array = std::get_if<Tensor>(value)) {
    finish_of(field).write_array(*array, field, row);
  } else {
    std::memcpy(row, &std::get<int64_t>(*value), sizeof(int64_t));
  }
}

PixelConversions Pipeline::bytes(const std::vector<FieldType>& in) const {
  PixelConversions found;
  for (const FieldType& type : fields_after_items(in)) {
    if (type.kind != FieldKind::kImage || type.dtype != DType::kU8 || (type.sample.front() != 1 && type.sample.front() != 3)) continue;
    const Finish& finish = finish_of(type.name);
    PixelConversion& conversion = found[type.name];
    conversion.scale = finish.scale;
    if (finish.normalize == nullptr) continue;
    conversion.mean = finish.normalize->mean;
    conversion.std = finish.normalize->std;
  }
  return found;
}

void Pipeline::write_bytes(const Sample& sample, const std::string& field, bool channels_last, void* row) const {
  const FieldValue* value = sample.find(field);
  GALLEY_ASSERT(value != nullptr, "no field ", field);
  auto* to = static_cast<uint8_t*>(row);
  if (const auto* image = std::get_if<Image>(value)) {
    GALLEY_CHECK_INPUT(image->dtype() == DType::kU8, "the image `", field, "` is ", image->str(), ", but others are u8");
    copy_bytes(*image, channels_last, image->area(), to);
    return;
  }
  const Clip& clip = std::get<Clip>(*value);
  const auto frames = std::ssize(clip.frames);
  for (int64_t t = 0; t < frames; ++t) {
    const Image& frame = clip.frames[static_cast<size_t>(t)];
    GALLEY_CHECK_INPUT(frame.dtype() == DType::kU8, "a frame of `", field, "` is ", frame.str(), ", but others are u8");
    copy_bytes(frame, channels_last, frames * frame.area(), to + t * (channels_last ? frame.values() : frame.area()));
  }
}

Tensor Pipeline::run(Sample sample, const DrawKey& key) const {
  apply(sample, key);
  const FieldValue* input = sample.find("input");
  GALLEY_ASSERT(input != nullptr);
  Tensor result(dtype_of(*input), shape_of(*input));
  write(sample, "input", false, 0, result.data());
  return result;
}

std::vector<Component> items_for(const std::vector<Component>& items, std::vector<FieldType> fields) {
  std::vector<Component> kept;
  const bool boxes = std::any_of(fields.begin(), fields.end(), [](const FieldType& type) { return type.kind == FieldKind::kBoxes; });
  for (const Component& item : items) {
    if (!boxes && (item.as<RandomIouCrop>() != nullptr || item.as<SanitizeBoundingBoxes>() != nullptr)) continue;
    if (const auto* transform = item.as<Transform>(); transform != nullptr && transform->joins()) continue;
    const auto* image = item.as<ImageTransform>();
    const auto* rename = item.as<Rename>();
    const std::string& changed = image != nullptr ? image->field : rename != nullptr ? rename->from : std::string();
    const bool pair = changed == "input" && find_field(fields, kPair[0]) != nullptr;
    if (!changed.empty() && !pair && find_field(fields, changed) == nullptr) continue;
    if (rename != nullptr) find_field(fields, rename->from)->name = rename->to;
    kept.push_back(item);
  }
  return kept;
}

}  // namespace galley
