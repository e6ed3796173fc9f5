#pragma once
// Batch transforms: mixup and cutmix, applied where a batch is put together. Labels become class probabilities. Where a recipe lists
// several, one of them is drawn for each batch (torchvision's RandomChoice).

#include <cstdint>
#include <memory>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/philox.h"
#include "libcore/tensor/batch.h"

namespace galley {

/// What a batch transform changes: f32 input [N,...] and f32 class probabilities [N,classes], of which the first `rows` are valid.
struct MixedBatch {
  Tensor& input;
  Tensor& probabilities;
  int64_t rows = 0;
};

class BatchTransform : public Options {
 public:
  virtual void check() const = 0;
  /// The fields of a batch after it, of samples of `in`: `label` becomes f32 [classes]. Throws Error (exit 3), naming the field, where it
  /// cannot mix them, or where the model has no classes (0).
  virtual std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const = 0;
  /// `random` belongs to this batch alone.
  virtual void apply(MixedBatch& batch, RandomStream& random) const = 0;
};

/// x = lambda x + (1 - lambda) x', labels likewise, with x' the row before (Zhang et al., "mixup", 2018).
struct Mixup : BatchTransform {
  double alpha = 1.0;
  double p = 1.0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Mixup>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const override;
  void apply(MixedBatch& batch, RandomStream& random) const override;
};

/// A rectangle of the row before is pasted; labels are mixed by its area (Yun et al., "CutMix", 2019). Images only.
struct Cutmix : BatchTransform {
  double alpha = 1.0;
  double p = 1.0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Cutmix>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const override;
  void apply(MixedBatch& batch, RandomStream& random) const override;
};

ComponentKinds data_batch_transforms();

/// A number of the distribution Beta(alpha, alpha), alpha > 0.
double draw_beta(double alpha, RandomStream& random);

}  // namespace galley
