// Fields whose length or size differs between batches: which samples come together, and the shortest or smallest that holds them.
#include <algorithm>
#include <cstring>

#include "libcore/data/box_transforms.h"
#include "libcore/data/loader_state.h"
#include "libcore/data/objects.h"

namespace galley {
namespace {

/// Copies planes [planes, rows, columns] of pixels of `bytes` to the top left of larger ones.
void place_planes(const std::byte* from, std::byte* to, int64_t planes, std::array<int64_t, 2> own, std::array<int64_t, 2> canvas,
                  int64_t bytes) {
  for (int64_t line = 0; line < planes * own[0]; ++line) {
    const int64_t at = line / own[0] * canvas[0] + line % own[0];
    std::memcpy(to + at * canvas[1] * bytes, from + line * own[1] * bytes, static_cast<size_t>(own[1] * bytes));
  }
}

/// A tensor of that shape in the memory of one that is at least as large.
Tensor reshaped(const Tensor& whole, const Shape& shape) { return Tensor(whole.dtype(), shape, whole.format(), whole.storage()); }

}  // namespace

/// The order in which samples of similar length come together.
void DataLoader::State::group_samples() {
  if (const auto* objects = dynamic_cast<const ObjectSource*>(source_.get()); objects != nullptr && sizes_.size() > 1) {
    auto groups = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(source_->size()));
    for (int64_t i = 0; i < source_->size(); ++i) {
      const ObjectImage& image = objects->image(i);
      const std::optional<PixelGrid> grid = this->grid(image.height, image.width, i);  // in the first epoch
      if (grid) (*groups)[static_cast<size_t>(i)] = static_cast<uint8_t>(smallest(grid->height, grid->width));
    }
    options_.order.groups = std::move(groups);
    order_ = SampleOrder(source_->size(), options_.order);
    return;
  }
  for (const FieldType& type : types_) {
    if (type.layout == FieldLayout::kPadded && !type.lengths.empty()) lengths_ = type.lengths;
  }
  if (lengths_.size() < 2 || source_->length(0) < 0) return;
  auto groups = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(source_->size()));
  for (int64_t i = 0; i < source_->size(); ++i) {
    const auto found = std::lower_bound(lengths_.begin(), lengths_.end() - 1, source_->length(i));
    (*groups)[static_cast<size_t>(i)] = static_cast<uint8_t>(found - lengths_.begin());
  }
  options_.order.groups = std::move(groups);
  order_ = SampleOrder(source_->size(), options_.order);
}

/// The number of the smallest canvas that holds so many rows and columns.
size_t DataLoader::State::smallest(int64_t rows, int64_t columns) const {
  size_t i = 0;
  while (i + 1 < sizes_.size() && (sizes_[i][0] < rows || sizes_[i][1] < columns)) ++i;
  return i;
}

/// The canvas of a batch.
std::array<int64_t, 2> DataLoader::State::canvas_of(const Slot& slot) const {
  int64_t rows = 0, columns = 0;
  for (const auto& [name, images] : slot.sized) {
    for (const Tensor& image : images) {
      if (image.shape().rank() < 2) continue;  // of a sample that could not be read
      rows = std::max(rows, image.shape()[-2]);
      columns = std::max(columns, image.shape()[-1]);
    }
  }
  return sizes_[smallest(rows, columns)];
}

/// Writes the images of different size, and their masks, to the canvas of the batch.
void DataLoader::State::place_images(Slot& slot) const {
  Batch& batch = slot.batch;
  for (const FieldType& type : types_) {
    if (!DataLoader::is_sized(type) || type.layout == FieldLayout::kJagged) continue;
    const std::array<int64_t, 2> canvas = sizes_.empty() ? std::array{type.lengths.end()[-2], type.lengths.end()[-1]} : canvas_of(slot);
    Tensor& tensor = batch.fields.at(type.name);
    Shape shape = tensor.shape();
    shape[-2] = canvas[0];
    shape[-1] = canvas[1];
    tensor = reshaped(tensor, shape);
    const int64_t row_bytes = tensor.bytes() / part_rows();
    const bool channels = tensor.format().is_channels_last();
    auto* to = static_cast<std::byte*>(tensor.data());
    for (int64_t row = 0; row < part_rows(); ++row, to += row_bytes) {
      const bool classes = type.kind == FieldKind::kMask && type.dtype == DType::kI64;
      if (classes) {
        std::fill_n(reinterpret_cast<int64_t*>(to), row_bytes / 8, options_.pad_label);
      } else {
        std::memset(to, 0, static_cast<size_t>(row_bytes));
      }
      const Tensor& image = slot.sized.at(type.name)[static_cast<size_t>(row)];
      if (row >= batch.valid || image.shape().rank() < 2) continue;
      const int64_t planes = image.shape().elements() / (image.shape()[-2] * image.shape()[-1]);
      place_planes(static_cast<const std::byte*>(image.data()), to, channels ? 1 : planes, {image.shape()[-2], image.shape()[-1]}, canvas,
                   dtype_size(image.dtype()) * (channels ? planes : 1));
    }
  }
}

/// Moves the rows of padded fields together, so that they end at the shortest length that holds all of them.
void DataLoader::State::cut(Slot& slot) const {
  Batch& batch = slot.batch;
  int64_t longest = 0;
  for (const FieldType& type : types_) {
    if (type.layout != FieldLayout::kPadded) continue;
    const int64_t* length = batch.fields.at(type.name + ".length").data_as<int64_t>();
    longest = std::max(longest, *std::max_element(length, length + batch.valid));
  }
  const int64_t wanted = *std::lower_bound(lengths_.begin(), lengths_.end() - 1, longest);
  for (const FieldType& type : types_) {
    if (type.layout != FieldLayout::kPadded || type.sample[0] == wanted) continue;
    Tensor& tensor = batch.fields.at(type.name);
    Shape shape = tensor.shape();
    const int64_t rows = shape[0], before = tensor.bytes() / rows, after = before / shape[1] * wanted;
    auto* data = static_cast<std::byte*>(tensor.data());
    for (int64_t row = 1; row < rows; ++row) std::memmove(data + row * after, data + row * before, static_cast<size_t>(after));
    shape[1] = wanted;
    tensor = Tensor(tensor.dtype(), shape, tensor.format(), tensor.storage());
  }
}

/// Concatenates the rows of a jagged field. Rows after the valid ones are empty.
void DataLoader::State::join_jagged(Slot& slot, const FieldType& type) const {
  Tensor& values = slot.batch.fields.at(type.name + ".values");
  int64_t* offsets = slot.batch.fields.at(type.name + ".offsets").data_as<int64_t>();
  auto* to = static_cast<std::byte*>(values.data());
  const std::vector<Tensor>& rows = slot.jagged.at(type.name);
  const bool sized = DataLoader::is_sized(type);
  std::array<int64_t, 2> canvas{};
  if (sized) {
    canvas = sizes_.empty() ? std::array{type.lengths.end()[-2], type.lengths.end()[-1]} : canvas_of(slot);
    values = reshaped(values, {values.shape()[0], canvas[0], canvas[1]});
    std::memset(values.data(), 0, static_cast<size_t>(values.bytes()));
  }
  const int64_t area = canvas[0] * canvas[1] * dtype_size(type.dtype);
  for (int64_t row = 0; row < part_rows(); ++row) {
    const bool valid = row < slot.batch.valid;
    const Tensor& from = rows[static_cast<size_t>(row)];
    if (sized && valid && from.shape().rank() == 3) {
      place_planes(static_cast<const std::byte*>(from.data()), to, from.shape()[0], {from.shape()[1], from.shape()[2]}, canvas,
                   dtype_size(type.dtype));
      for (int64_t i = 0; i < from.shape()[0]; ++i)
        extend_mask(reinterpret_cast<uint8_t*>(to) + i * area, canvas[0], canvas[1], from.shape()[1], from.shape()[2]);
      to += from.shape()[0] * area;
    } else if (valid) {
      to = std::copy_n(static_cast<const std::byte*>(from.data()), from.bytes(), to);
    }
    offsets[row + 1] = offsets[row] + (valid ? from.shape()[0] : 0);
  }
  std::fill(to, static_cast<std::byte*>(values.data()) + values.bytes(), std::byte{0});
}

}  // namespace galley
