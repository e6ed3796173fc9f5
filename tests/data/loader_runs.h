#pragma once
// A source and options for tests of the loader, and what it delivers.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libcore/data/loader.h"

namespace galley {

template <class T>
Component component(std::string type, T params) {
  Component result;
  result.type = std::move(type);
  result.params = params.clone();
  return result;
}

/// Images whose pixels equal their index; some are damaged.
class NumberedSource : public Source {
 public:
  explicit NumberedSource(int64_t size, std::set<int64_t> bad = {}, int64_t classes = 10, std::set<int64_t> irregular = {})
      : size_(size), bad_(std::move(bad)), irregular_(std::move(irregular)), classes_(classes) {}
  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % classes_; }
  std::string sample_name(int64_t index) const override { return cat("numbered[", index, "]"); }
  std::string describe() const override { return "numbered"; }
  std::vector<FieldType> fields() const override { return {image_field(3, 6, 5), label_field(classes_)}; }
  Sample read(int64_t index) const override {
    ++reads;
    if (bad_.contains(index)) throw BadSample(index % 2 == 0 ? "truncated" : "checksum", sample_name(index), "damaged");
    Image image(DType::kU8, 6, 5, 3);
    std::memset(image.data(), static_cast<int>(index % 256), static_cast<size_t>(image.bytes()));
    Sample sample;
    sample.set("input", std::move(image));
    sample.set("label", label(index));
    if (irregular_.contains(index)) sample.irregularity = {index % 2 == 0 ? "even" : "odd", cat(sample_name(index), ": irregular")};
    return sample;
  }
  mutable std::atomic<int64_t> reads = 0;

 private:
  int64_t size_;
  std::set<int64_t> bad_, irregular_;
  int64_t classes_;
};

inline std::vector<Component> augmenting_items() {
  RandomResizedCrop crop;
  crop.size = {8};
  ColorJitter jitter;
  jitter.brightness = {0.4};
  jitter.hue = {0.1};
  Normalize normalize;
  normalize.mean = {0.5, 0.4, 0.3};
  normalize.std = {0.2, 0.3, 0.4};
  return {component("random_resized_crop", crop), component("random_horizontal_flip", RandomHorizontalFlip()),
          component("color_jitter", jitter), component("auto_augment", AutoAugment()), component("normalize", normalize)};
}

inline LoaderOptions options_of(int64_t batch, LastBatchRule last, int64_t workers) {
  LoaderOptions options;
  options.order.batch = batch;
  options.order.shuffle = true;
  options.order.last_batch = last;
  options.order.seed = 3;
  options.workers = workers;
  options.classes = 10;
  return options;
}

struct Delivered {
  std::vector<Tensor> inputs, labels;
  std::vector<int64_t> indices, valid, first;
};

inline Delivered run(DataLoader& loader, int batches) {
  Delivered result;
  for (int i = 0; i < batches; ++i) {
    const Batch* batch = loader.next();
    if (batch == nullptr) break;
    result.inputs.push_back(batch->input().clone());
    result.labels.push_back(batch->label().clone());
    result.valid.push_back(batch->valid);
    result.first.push_back(batch->first);
    result.indices.insert(result.indices.end(), batch->indices.begin(), batch->indices.end());
  }
  return result;
}

inline void expect_equal(const Delivered& a, const Delivered& b, size_t skip_of_a, const std::string& what) {
  ASSERT_EQ(a.inputs.size(), b.inputs.size() + skip_of_a) << what;
  for (size_t i = 0; i < b.inputs.size(); ++i) {
    EXPECT_TRUE(bit_equal(a.inputs[i + skip_of_a], b.inputs[i])) << what << ", batch " << i;
    EXPECT_TRUE(bit_equal(a.labels[i + skip_of_a], b.labels[i])) << what << ", batch " << i;
    EXPECT_EQ(a.first[i + skip_of_a], b.first[i]) << what;
  }
}

}  // namespace galley
