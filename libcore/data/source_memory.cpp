// tensors and synthetic: samples that are arrays already.
#include <cmath>

#include "libcore/base/philox.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

/// Row `index` of [N,...] as an array of its own.
Tensor row_of(const Tensor& table, int64_t index) {
  Shape shape;
  for (int axis = 1; axis < table.shape().rank(); ++axis) shape.push_back(table.shape()[axis]);
  const int64_t bytes = shape.elements() * dtype_size(table.dtype());
  Tensor row(table.dtype(), shape);
  std::memcpy(row.data(), static_cast<const std::byte*>(table.data()) + index * bytes, static_cast<size_t>(bytes));
  return row;
}

/// [C,H,W] of u8 or f32 is an image; all else stays an array.
FieldValue input_value(Tensor row) {
  const bool image = row.shape().rank() == 3 && (row.dtype() == DType::kU8 || row.dtype() == DType::kF32) && row.elements() > 0;
  return image ? FieldValue(Image::from_tensor(row)) : FieldValue(std::move(row));
}

class TensorSource : public Source {
 public:
  /// `labelled`: a file without labels or targets is an error.
  TensorSource(std::map<std::string, Tensor> tensors, std::string name, bool labelled = true) : name_(std::move(name)) {
    for (auto& [key, tensor] : tensors) {
      if (key != "input" && key != "label" && key != "target") continue;
      GALLEY_CHECK_INPUT(tensor.shape().rank() >= 1, name_, ": '", key, "' is a scalar; its first dimension should be the samples");
      tensors_.emplace(key, tensor.to(MemoryFormat::contiguous()));
    }
    GALLEY_CHECK_INPUT(tensors_.contains("input"), name_, ": no tensor `input` [N,...]");
    GALLEY_CHECK_INPUT(!labelled || tensors_.contains("label") || tensors_.contains("target"), name_, ": neither `label` [N] nor `target` [N,...]");
    const Tensor& input = tensors_.at("input");
    size_ = input.shape()[0];
    for (const auto& [key, tensor] : tensors_)
      GALLEY_CHECK_INPUT(tensor.shape()[0] == size_, name_, ": `", key, "` ", tensor.shape(), " and `input` ", input.shape(),
                         " differ in the number of samples");
    if (const auto label = tensors_.find("label"); label != tensors_.end()) {
      const Tensor& table = label->second;
      GALLEY_CHECK_INPUT(table.shape().rank() == 1 && (table.dtype() == DType::kI64 || table.dtype() == DType::kI32), name_,
                         ": `label` is ", table.str(), "; wanted i64 or i32 [N]");
      for (int64_t i = 0; i < size_; ++i)
        labels_.push_back(table.dtype() == DType::kI64 ? table.data_as<int64_t>()[i] : table.data_as<int32_t>()[i]);
    }
    if (const auto target = tensors_.find("target"); target != tensors_.end())
      GALLEY_CHECK_INPUT(target->second.dtype() == DType::kF32, name_, ": `target` is ", target->second.str(), "; wanted f32");
  }

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return labels_.empty() ? -1 : labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override { return cat(name_, "[", index, "]"); }
  std::string describe() const override { return cat("tensors ", name_, ": ", size_, " samples, input ", tensors_.at("input").str()); }
  Sample read(int64_t index) const override {
    Sample sample;
    sample.set("input", input_value(row_of(tensors_.at("input"), index)));
    if (!labels_.empty()) sample.set("label", label(index));
    if (const auto target = tensors_.find("target"); target != tensors_.end()) sample.set("target", row_of(target->second, index));
    return sample;
  }

 private:
  std::string name_;
  std::map<std::string, Tensor> tensors_;
  std::vector<int64_t> labels_;
  int64_t size_ = 0;
};

class SyntheticSource : public Source {
 public:
  SyntheticSource(const Synthetic& options, const SourceContext& context)
      : size_(options.samples), values_(options.values), high_(options.high), seed_(context.seed) {
    shape_ = options.shape.empty() ? context.input_shape : Shape(options.shape);
    classes_ = options.classes > 0 ? options.classes : context.classes;
    GALLEY_CHECK(shape_.rank() > 0, "[synthetic] the model does not say its input shape: give `shape`, e.g. [3, 224, 224]");
    GALLEY_CHECK(values_ != SyntheticKind::kInteger || high_ > 0, "[synthetic] values: integer wants `high`, one above the largest");
    GALLEY_CHECK(values_ != SyntheticKind::kImage || shape_.rank() == 3, "[synthetic] values: image wants a shape [C,H,W], not ", shape_);
  }

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override {
    if (classes_ == 0) return -1;
    return static_cast<int64_t>(
        RandomStream(seed_, "synthetic label", static_cast<uint64_t>(index)).below(static_cast<uint64_t>(classes_)));
  }
  std::string sample_name(int64_t index) const override { return cat("synthetic[", index, "]"); }
  std::string describe() const override { return cat("synthetic: ", size_, " samples of ", shape_, ", ", classes_, " classes"); }
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
    if (classes_ > 0) sample.set("label", label(index));
    return sample;
  }

 private:
  /// Uniform in [-sqrt 3, sqrt 3): variance 1, as normalised images have, at a third of a normal number's cost.
  template <class Words>
  static void fill_uniform(float* to, int64_t count, Words words) {
    constexpr float kHalfWidth = 1.7320508f;
    for (int64_t i = 0; i < count; i += 4) {
      const PhiloxBlock block = words(i / 4);
      for (int64_t j = 0; j < std::min<int64_t>(4, count - i); ++j)
        to[i + j] = (2.0f * uniform_from_bits(block[static_cast<size_t>(j)]) - 1.0f) * kHalfWidth;
    }
  }

  int64_t size_;
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

std::unique_ptr<Source> open_arrays(const Tensor& inputs, const std::string& name) {
  return std::make_unique<TensorSource>(std::map<std::string, Tensor>{{"input", inputs}}, name, /*labelled=*/false);
}

std::unique_ptr<Source> TensorFile::open(const SourceContext& context) const {
  GALLEY_ASSERT(context.load_tensors != nullptr, "the caller of open_source gave no reader of safetensors");
  const std::string full = below_root(context.root, path);
  return source_of_tensors(context.load_tensors(full), full);
}

std::unique_ptr<Source> Synthetic::open(const SourceContext& context) const { return std::make_unique<SyntheticSource>(*this, context); }

}  // namespace galley
