// tensors and synthetic: samples that are arrays already.
#include <algorithm>
#include <cmath>

#include "libcore/base/philox.h"
#include "libcore/data/objects.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// Copies row `index` of a table [N,...].
Tensor row_of(const Tensor& table, int64_t index) {
  Shape shape;
  for (int axis = 1; axis < table.shape().rank(); ++axis) shape.push_back(table.shape()[axis]);
  const int64_t bytes = shape.elements() * dtype_size(table.dtype());
  Tensor row(table.dtype(), shape);
  std::memcpy(row.data(), static_cast<const std::byte*>(table.data()) + index * bytes, static_cast<size_t>(bytes));
  return row;
}

/// The type of `input`: u8 or f32 samples [C,H,W] are images, integers are tokens, all others are values.
FieldType input_field(DType dtype, const Shape& sample) {
  FieldType type{.name = "input", .dtype = dtype, .sample = {sample.begin(), sample.end()}};
  const bool pixels = dtype == DType::kU8 || dtype == DType::kF32;
  if (pixels && sample.rank() == 3 && sample.elements() > 0) {
    type.kind = FieldKind::kImage;
  } else if (!is_floating(dtype) && dtype != DType::kU8) {
    type.kind = FieldKind::kTokens;
  }
  return type;
}

Shape sample_shape(const Tensor& table) { return Shape(table.shape().sizes().subspan(1)); }

/// Converts pixel classes [H,W] to a mask. `place` starts the error message.
Mask mask_of(const Tensor& classes, const std::string& place) {
  Mask mask{Image(DType::kU8, classes.shape()[0], classes.shape()[1], 1)};
  const std::vector<double> values = classes.to_doubles();
  for (size_t i = 0; i < values.size(); ++i) {
    GALLEY_CHECK_FILE(values[i] < Mask::kNoClass, place, "`label` holds the class ", values[i], "; masks accept 0 to ", Mask::kNoClass - 1,
                      ", and -100 for pixels without a class");
    mask.classes.as<uint8_t>()[i] = values[i] < 0 ? Mask::kNoClass : static_cast<uint8_t>(values[i]);
  }
  return mask;
}

class TensorSource : public Source {
 public:
  /// If `labeled`, a file without label and target is an error.
  TensorSource(std::map<std::string, Tensor> tensors, std::string name, bool labeled = true) : name_(std::move(name)) {
    // Tensors whose number of samples differs from that of `input` are not fields.
    const auto main = tensors.find("input");
    const int64_t samples = main == tensors.end() || main->second.shape().rank() == 0 ? -1 : main->second.shape()[0];
    for (auto& [key, tensor] : tensors) {
      const bool target = key == "label" || key == "target";
      const bool rows = samples < 0 || (tensor.shape().rank() > 0 && tensor.shape()[0] == samples);
      if (target ? !labeled : key != "input" && !rows) continue;
      if (!target) inputs_.push_back(key);
      GALLEY_CHECK_FILE(tensor.shape().rank() >= 1, name_, "'", key, "' is a scalar; its first dimension must be the number of samples");
      tensors_.emplace(key, tensor.to(MemoryFormat::contiguous()));
    }
    GALLEY_CHECK_FILE(!inputs_.empty(), name_, "no tensor `input` [N,...]");
    GALLEY_CHECK_FILE(!labeled || tensors_.contains("label") || tensors_.contains("target"), name_,
                      "neither `label` [N] nor `target` [N,...]");
    const Tensor& input = tensors_.at(inputs_.front());
    size_ = input.shape()[0];
    for (const auto& [key, tensor] : tensors_)
      GALLEY_CHECK_FILE(tensor.shape()[0] == size_, name_, "`", key, "` ", tensor.shape(), " and `", inputs_.front(), "` ", input.shape(),
                        " differ in the number of samples");
    if (const auto label = tensors_.find("label"); label != tensors_.end()) {
      const Tensor& table = label->second;
      const int rank = table.shape().rank();
      const bool integers = table.dtype() == DType::kI64 || table.dtype() == DType::kI32 || (rank == 3 && table.dtype() == DType::kU8);
      GALLEY_CHECK_FILE(rank <= 3 && integers, name_, "`label` is ", table.str(),
                        "; expected i64 or i32 [N], [N,T] (positions) or [N,H,W] (pixels, also u8)");
      for (int64_t i = 0; rank == 1 && i < size_; ++i)
        labels_.push_back(table.dtype() == DType::kI64 ? table.data_as<int64_t>()[i] : table.data_as<int32_t>()[i]);
      for (const double value : rank > 1 ? table.to_doubles() : std::vector<double>())
        classes_ = std::max(classes_, static_cast<int64_t>(value) + 1);
    }
    if (const auto target = tensors_.find("target"); target != tensors_.end())
      GALLEY_CHECK_FILE(target->second.dtype() == DType::kF32, name_, "`target` is ", target->second.str(), "; expected f32");
  }

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return labels_.empty() ? -1 : labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return cat(name_, "[", index, "]"); }
  std::string describe() const override {
    return cat("tensors ", name_, ": ", size_, " samples, ", inputs_.front(), " ", tensors_.at(inputs_.front()).str());
  }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields;
    for (const std::string& name : inputs_) {
      fields.push_back(input_field(tensors_.at(name).dtype(), sample_shape(tensors_.at(name))));
      fields.back().name = name;
    }
    if (const auto label = tensors_.find("label"); label != tensors_.end()) {
      const Shape sample = sample_shape(label->second);
      fields.push_back({.name = "label",
                        .kind = sample.rank() == 2 ? FieldKind::kMask : FieldKind::kClass,
                        .dtype = DType::kI64,
                        .sample = {sample.begin(), sample.end()},
                        .classes = classes_});
    }
    if (const auto target = tensors_.find("target"); target != tensors_.end()) {
      const Shape sample = sample_shape(target->second);
      fields.push_back({.name = "target", .sample = {sample.begin(), sample.end()}});
    }
    return fields;
  }
  Sample read(int64_t index) const override {
    Sample sample;
    for (const std::string& name : inputs_) {
      Tensor input = row_of(tensors_.at(name), index);
      if (input_field(input.dtype(), input.shape()).kind == FieldKind::kImage) {
        sample.set(name, Image::from_tensor(input));
      } else {
        sample.set(name, std::move(input));
      }
    }
    if (!labels_.empty()) {
      sample.set("label", label(index));
    } else if (const auto found = tensors_.find("label"); found != tensors_.end()) {
      const Tensor row = row_of(found->second, index);
      if (row.shape().rank() == 2) {
        sample.set("label", mask_of(row, sample_name(index)));
      } else {
        sample.set("label", row.to(DType::kI64));
      }
    }
    if (const auto target = tensors_.find("target"); target != tensors_.end()) sample.set("target", row_of(target->second, index));
    return sample;
  }

 private:
  std::string name_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> inputs_;  // names
  std::vector<int64_t> labels_;
  int64_t classes_ = 0;  // one more than the largest label of a position or pixel
  int64_t size_ = 0;
};

class SyntheticSource : public Source {
 public:
  SyntheticSource(const Synthetic& options, const SourceContext& context)
      : size_(options.samples), values_(options.values), high_(options.high), seed_(context.seed) {
    shape_ = options.shape.empty() ? context.input_shape : Shape(options.shape);
    classes_ = options.classes > 0 ? options.classes : context.classes;
    targets_ = context.targets;
    std::erase_if(targets_, [](const FieldType& type) { return type.kind == FieldKind::kClass && type.sample.empty(); });
    for (FieldType& type : targets_) {
      if (type.kind == FieldKind::kMask && shape_.rank() == 3) type.sample = {shape_[1], shape_[2]};
    }
    has_label_ = classes_ > 0 && find_field(std::span<const FieldType>(targets_), "label") == nullptr;
    GALLEY_CHECK(shape_.rank() > 0, "[synthetic] the input shape of the model is unknown: set `shape`, e.g. [3, 224, 224]");
    GALLEY_CHECK(values_ != SyntheticKind::kInteger || high_ > 0, "[synthetic] values: integer needs `high`, one above the largest value");
    GALLEY_CHECK(values_ != SyntheticKind::kImage || shape_.rank() == 3, "[synthetic] values: image needs a shape [C,H,W], not ", shape_);
  }

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override {
    if (!has_label_) return -1;
    return static_cast<int64_t>(
        RandomStream(seed_, "synthetic label", static_cast<uint64_t>(index)).below(static_cast<uint64_t>(classes_)));
  }
  std::string sample_name(int64_t index) const override { return cat("synthetic[", index, "]"); }
  std::string describe() const override { return cat("synthetic: ", size_, " samples of ", shape_, ", ", classes_, " classes"); }
  std::vector<FieldType> fields() const override {
    const DType dtype = values_ == SyntheticKind::kInteger ? DType::kI64 : values_ == SyntheticKind::kImage ? DType::kU8 : DType::kF32;
    std::vector<FieldType> fields{input_field(dtype, shape_)};
    if (values_ == SyntheticKind::kInteger) fields.front().classes = high_;
    if (has_label_) fields.push_back(label_field(classes_));
    fields.insert(fields.end(), targets_.begin(), targets_.end());
    return fields;
  }
  Sample read(int64_t index) const override {
    const uint64_t key = stream_key(seed_, "synthetic input");
    const auto words = [&](int64_t block) { return philox(key, static_cast<uint64_t>(block), static_cast<uint64_t>(index)); };
    const int64_t count = shape_.elements();
    Sample sample;
    if (values_ == SyntheticKind::kInteger) {
      RandomStream stream(seed_, "synthetic input", static_cast<uint64_t>(index));
      Tensor tensor(DType::kI64, shape_);
      for (int64_t i = 0; i < count; ++i) tensor.data_as<int64_t>()[i] = static_cast<int64_t>(stream.below(static_cast<uint64_t>(high_)));
      sample.set("input", std::move(tensor));
    } else if (values_ == SyntheticKind::kImage) {
      Image image(DType::kU8, shape_[1], shape_[2], shape_[0]);
      for (int64_t i = 0; i < count; i += 16) {
        const PhiloxBlock block = words(i / 16);
        std::memcpy(image.data() + i, block.data(), static_cast<size_t>(std::min<int64_t>(16, count - i)));
      }
      sample.set("input", std::move(image));
    } else if (shape_.rank() == 3) {
      Image image(DType::kF32, shape_[1], shape_[2], shape_[0]);
      fill_uniform(image.as<float>(), count, words);
      sample.set("input", std::move(image));
    } else {
      Tensor tensor(DType::kF32, shape_);
      fill_uniform(tensor.data_as<float>(), count, words);
      sample.set("input", std::move(tensor));
    }
    if (has_label_) sample.set("label", label(index));
    for (const FieldType& type : targets_) sample.set(type.name, target(type, index));
    return sample;
  }

 private:
  /// Uniform in [-sqrt 3, sqrt 3): variance 1, as normalized images have. Costs a third of normally distributed numbers.
  template <class Words>
  static void fill_uniform(float* to, int64_t count, Words words) {
    constexpr float kHalfWidth = 1.7320508f;
    for (int64_t i = 0; i < count; i += 4) {
      const PhiloxBlock block = words(i / 4);
      for (int64_t j = 0; j < std::min<int64_t>(4, count - i); ++j)
        to[i + j] = (2.0f * uniform_from_bits(block[static_cast<size_t>(j)]) - 1.0f) * kHalfWidth;
    }
  }

  /// A target other than one label per sample: classes of positions or pixels, or numbers in 0..1.
  FieldValue target(const FieldType& type, int64_t index) const {
    RandomStream stream(seed_, "synthetic " + type.name, static_cast<uint64_t>(index));
    const auto draw = [&] { return stream.below(static_cast<uint64_t>(std::max<int64_t>(1, type.classes))); };
    if (type.kind == FieldKind::kMask) {
      Mask mask{Image(DType::kU8, type.sample[0], type.sample[1], 1)};
      for (int64_t i = 0; i < mask.classes.area(); ++i)
        mask.classes.as<uint8_t>()[i] = static_cast<uint8_t>(std::min<uint64_t>(draw(), Mask::kNoClass - 1));
      return mask;
    }
    Tensor tensor(type.dtype, Shape(type.sample));
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      if (type.dtype == DType::kI64) {
        tensor.data_as<int64_t>()[i] = static_cast<int64_t>(draw());
      } else {
        tensor.data_as<float>()[i] = static_cast<float>(stream.uniform());
      }
    }
    return tensor;
  }

  int64_t size_;
  std::vector<FieldType> targets_;  // targets other than one label per sample
  bool has_label_ = false;
  SyntheticKind values_;
  int64_t high_;
  uint64_t seed_;
  Shape shape_;
  int64_t classes_ = 0;
};

}  // namespace

std::unique_ptr<Source> source_of_tensors(std::map<std::string, Tensor> tensors, const std::string& name) {
  return std::make_unique<TensorSource>(std::move(tensors), name);
}

std::unique_ptr<Source> open_arrays(std::map<std::string, Tensor> inputs, const std::string& name) {
  return std::make_unique<TensorSource>(std::move(inputs), name, /*labeled=*/false);
}

std::unique_ptr<Source> TensorFile::open(const SourceContext& context) const {
  GALLEY_ASSERT(context.load_tensors != nullptr, "SourceContext::load_tensors is not set");
  const std::string full = below_root(context.root, path);
  return source_of_tensors(context.load_tensors(full), full);
}

std::unique_ptr<Source> Synthetic::open(const SourceContext& context) const {
  const auto boxes =
      std::find_if(context.targets.begin(), context.targets.end(), [](const auto& type) { return type.kind == FieldKind::kBoxes; });
  if (boxes == context.targets.end()) return std::make_unique<SyntheticSource>(*this, context);
  SourceContext images = context;
  images.targets.clear();
  images.classes = 0;
  const Shape sample = shape.empty() ? context.input_shape : Shape(shape);
  GALLEY_CHECK(sample.rank() == 3, "[synthetic] boxes need a shape [C,H,W], not ", sample);
  return with_random_objects(std::make_unique<SyntheticSource>(*this, images), context.targets, sample, context.seed);
}

}  // namespace galley
