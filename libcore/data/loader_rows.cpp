// The fields of a batch, and how a sample becomes a row of them.
#include <algorithm>
#include <cstring>

#include "libcore/base/under_key.h"
#include "libcore/data/loader_state.h"

namespace galley {
namespace {

/// The elements of a jagged field.
Tensor jagged_rows(const FieldValue& value) {
  if (const auto* boxes = std::get_if<Boxes>(&value)) return boxes->corners;
  if (const auto* keypoints = std::get_if<Keypoints>(&value)) return keypoints->points;
  const auto* objects = std::get_if<ObjectMasks>(&value);
  if (objects == nullptr) return std::get<Tensor>(value);
  Tensor rows(DType::kU8, {std::ssize(objects->masks), objects->height, objects->width});
  auto* to = rows.data_as<uint8_t>();
  for (const Image& mask : objects->masks) to = std::copy_n(mask.as<uint8_t>(), mask.values(), to);
  return rows;
}

}  // namespace

/// Maps the declared fields through the pipeline and the batch transforms. All batch transforms change the fields in the same way.
void DataLoader::State::find_types() {
  types_ = pipeline_.fields(source_->fields());
  const std::vector<FieldType> samples = types_;
  for (size_t i = 0; i < batch_transforms_.size(); ++i) {
    const auto& transform = dynamic_cast<const BatchTransform&>(*batch_transforms_[i]);
    types_ = under_key(cat("batch_transforms.", i), [&] { return transform.fields(samples, options_.classes); });
  }
  find_bytes();
}

/// Finds the images that batches hold in bytes, or the reason why they do not.
void DataLoader::State::find_bytes() {
  if (!options_.bytes) return;
  for (const auto& [name, conversion] : pipeline_.bytes(source_->fields())) {
    FieldType* type = find_field(types_, name);
    GALLEY_ASSERT(type != nullptr, "no field ", name);
    if (!batch_transforms_.empty()) {
      float_reason_ = "batch_transforms mix numbers";
    } else if (DataLoader::is_sized(*type)) {
      float_reason_ = cat("`", name, "` is padded, with zeros for the model, which no byte is");
    } else if (options_.zero_rows && options_.order.last_batch == LastBatchRule::kKeep) {
      float_reason_ = "last_batch: keep leaves rows of zeros in batches";
    } else {
      type->dtype = DType::kU8;
      pixels_.emplace(name, conversion);
    }
  }
  if (!pixels_.empty()) return;
  const auto image = std::find_if(types_.begin(), types_.end(), [](const FieldType& type) { return type.kind == FieldKind::kImage; });
  if (image != types_.end() && float_reason_.empty())
    float_reason_ = "images are not bytes of 1 or 3 channels before the last item of the pipeline";
}

/// The memory format of a field's tensor: that of the options for images [N,C,H,W] and clips [N,C,T,H,W].
MemoryFormat DataLoader::State::format_of(const FieldType& type, int rank) const {
  if (type.kind != FieldKind::kImage || rank < 4) return {};
  return options_.format.is_channels_last() ? MemoryFormat::channels_last_for_rank(rank) : options_.format;
}

void DataLoader::State::make_buffers() {
  int64_t index = 0;
  const Sample sample = first_sample(index);
  for (FieldType& type : types_) {
    const FieldValue* value = sample.find(type.name);
    GALLEY_ASSERT(value != nullptr, source_->describe(), " declares ", type, " but does not set it");
    const Shape shape = Pipeline::shape_of(*value);
    GALLEY_ASSERT(type.layout == FieldLayout::kJagged || shape.rank() == static_cast<int>(type.sample.size()) ||
                      std::holds_alternative<int64_t>(*value),
                  source_->describe(), " declares ", type, " but returns ", shape);
    for (int axis = 0; axis < shape.rank() && type.open(); ++axis) {
      int64_t& size = type.sample[static_cast<size_t>(axis)];
      if (size == kOpenSize) size = shape[axis];
    }
    check_value(type, *value, index);
  }
  slots_.resize(static_cast<size_t>((options_.workers == 0 ? 0 : std::max<int64_t>(1, options_.prefetch)) + options_.held));
  for (Slot& slot : slots_) {
    slot.batch.types = types_;
    for (const FieldType& type : types_) {
      for (const FieldTensor& tensor : tensors_of(type, part_rows())) {
        slot.batch.fields.emplace(tensor.name, Tensor(tensor.dtype, tensor.shape, format_of(type, tensor.shape.rank())));
      }
    }
    slot.full = slot.batch.fields;
  }
}

int64_t DataLoader::State::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const auto& [name, tensor] : slot.full) bytes += tensor.bytes();
  // Images before they are put on the canvas of their batch.
  for (const FieldType& type : types_) {
    if (DataLoader::is_sized(type) && type.layout == FieldLayout::kDense)
      bytes += std::ssize(slots_) * slots_.front().full.at(type.name).bytes();
  }
  return bytes;
}

/// Throws Error (kInput) if a sample's value does not match the field type of the batch.
void DataLoader::State::check_value(const FieldType& type, const FieldValue& value, int64_t index) const {
  const auto* number = std::get_if<int64_t>(&value);
  if (number != nullptr && type.dtype == DType::kF32) {
    GALLEY_CHECK_FILE(*number >= 0 && *number < options_.classes, source_->sample_name(index), "label ", *number, ", but the model has ",
                      options_.classes, " classes");
    return;
  }
  const Shape shape = Pipeline::shape_of(value);
  const DType dtype = pixels_.contains(type.name) ? DType::kU8 : Pipeline::dtype_of(value);
  const bool dense = type.layout == FieldLayout::kDense, jagged = type.layout == FieldLayout::kJagged;
  const std::span<const int64_t> fixed = dense ? shape.sizes() : shape.sizes().subspan(std::min<size_t>(1, shape.sizes().size()));
  const std::span<const int64_t> expected = std::span(type.sample).subspan(dense || jagged ? 0 : 1);
  const bool sized = DataLoader::is_sized(type) && fixed.size() == expected.size();
  const auto same = [&](int64_t own, int64_t most) { return own == most || (sized && own < most); };
  const bool fits = dtype == type.dtype && std::equal(fixed.begin(), fixed.end(), expected.begin(), expected.end(), same);
  const auto field = [&] { return type.name == "input" ? std::string() : cat("`", type.name, "` "); };
  GALLEY_CHECK_FILE(fits && (dense || shape.rank() > 0), source_->sample_name(index), field(), dtype, " ", shape,
                    " after the pipeline, but the batch has ", type,
                    "; add resize or a crop to the pipeline (pad_to for detection), so that all samples have the same size");
  if (dense) return;
  const int64_t most = jagged ? type.capacity : type.sample[0];
  GALLEY_CHECK_FILE(shape[0] <= most, source_->sample_name(index), field(), "has ", shape[0], " elements; the source declares at most ",
                    most);
}

/// Writes one field of a sample into its row.
void DataLoader::State::fill_field(Slot& slot, const FieldType& type, const Sample& sample, int64_t row, int64_t index) const {
  const FieldValue* value = sample.find(type.name);
  GALLEY_CHECK_FILE(value != nullptr, source_->sample_name(index), "field `", type.name, "` is missing, but the first sample has it");
  check_value(type, *value, index);
  if (type.layout == FieldLayout::kJagged) {
    slot.jagged.at(type.name)[static_cast<size_t>(row)] = jagged_rows(*value).to(type.dtype);
    return;
  }
  Tensor& tensor = slot.batch.fields.at(type.name);
  if (DataLoader::is_sized(type)) {
    Tensor& image = slot.sized.at(type.name)[static_cast<size_t>(row)];
    image = Tensor(type.dtype, Pipeline::shape_of(*value));
    return pipeline_.write(sample, type.name, tensor.format().is_channels_last(), options_.pad_label, image.data());
  }
  const auto row_bytes = static_cast<size_t>(tensor.bytes() / part_rows());
  std::byte* to = static_cast<std::byte*>(tensor.data()) + static_cast<size_t>(row) * row_bytes;
  const auto* number = std::get_if<int64_t>(value);
  if (number != nullptr && type.dtype == DType::kF32) {
    std::memset(to, 0, row_bytes);
    reinterpret_cast<float*>(to)[*number] = 1.0f;
    return;
  }
  if (type.layout == FieldLayout::kPadded) {
    const auto& array = std::get<Tensor>(*value);
    const auto used = static_cast<size_t>(array.elements() * dtype_size(type.dtype));
    if (type.kind == FieldKind::kClass && type.dtype == DType::kI64) {
      std::fill(reinterpret_cast<int64_t*>(to + used), reinterpret_cast<int64_t*>(to + row_bytes), options_.pad_label);
    } else {
      std::memset(to + used, 0, row_bytes - used);
    }
    slot.batch.fields.at(type.name + ".length").data_as<int64_t>()[row] = array.shape()[0];
  }
  if (pixels_.contains(type.name)) return pipeline_.write_bytes(sample, type.name, tensor.format().is_channels_last(), to);
  pipeline_.write(sample, type.name, tensor.format().is_channels_last(), options_.pad_label, to);
}

void DataLoader::State::fill_row(Slot& slot, int64_t row, Findings& findings) const {
  int64_t index = 0;
  const Sample sample = read_prepared(slot.batch.first + row, findings, row, index);
  slot.batch.indices[static_cast<size_t>(row)] = index;
  for (const FieldType& type : types_) fill_field(slot, type, sample, row, index);
}

/// Sets a row to zeros, or to no elements for a jagged field.
void DataLoader::State::clear_row(Slot& slot, const FieldType& type, int64_t row) const {
  if (type.layout == FieldLayout::kJagged) {
    slot.jagged.at(type.name)[static_cast<size_t>(row)] = Tensor(type.dtype, Shape{0});
    return;
  }
  if (DataLoader::is_sized(type)) {
    slot.sized.at(type.name)[static_cast<size_t>(row)] = Tensor(type.dtype, Shape{0});
    return;
  }
  for (const FieldTensor& part : tensors_of(type, part_rows())) {
    Tensor& tensor = slot.batch.fields.at(part.name);
    const auto row_bytes = static_cast<size_t>(tensor.bytes() / part_rows());
    std::memset(static_cast<std::byte*>(tensor.data()) + static_cast<size_t>(row) * row_bytes, 0, row_bytes);
  }
}

/// Clears the rows after the valid ones.
void DataLoader::State::clear_padding(Batch& batch, const FieldType& type) const {
  const int64_t empty = part_rows() - batch.valid;
  for (const FieldTensor& part : tensors_of(type, part_rows())) {
    Tensor& tensor = batch.fields.at(part.name);
    const int64_t row_bytes = tensor.bytes() / part_rows();
    std::memset(static_cast<std::byte*>(tensor.data()) + batch.valid * row_bytes, 0, static_cast<size_t>(empty * row_bytes));
  }
  const bool classes = type.kind == FieldKind::kClass || type.kind == FieldKind::kMask;
  if (!classes || type.dtype != DType::kI64) return;
  Tensor& tensor = batch.fields.at(type.name);
  const int64_t row = tensor.elements() / part_rows();
  std::fill_n(tensor.data_as<int64_t>() + batch.valid * row, empty * row, options_.pad_label);
}

}  // namespace galley
