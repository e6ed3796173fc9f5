#pragma once
// Batch transforms: mixup and cutmix. They run when a batch is complete and turn labels into class probabilities. If a recipe lists
// several, one is drawn at random for each batch (as torchvision's RandomChoice).

#include <cstdint>
#include <memory>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/philox.h"
#include "libcore/tensor/batch.h"

namespace galley {

/// The tensors that a batch transform changes: f32 input [N,...] and f32 class probabilities [N,classes]. The first `rows` rows are valid.
struct MixedBatch {
  Tensor& input;
  Tensor& probabilities;
  int64_t rows = 0;
};

/// Base of the option structs of all batch transforms.
class BatchTransform : public Options {
 public:
  /// Throws Error (exit 3) if an option is out of range.
  virtual void check() const = 0;
  /// The fields of a batch after the transform, given the fields `in` of the samples: `label` becomes f32 [classes]. Throws Error (exit 3),
  /// naming the field, if the fields cannot be mixed or the model has no classes (`classes` is 0).
  virtual std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const = 0;
  /// Mixes the valid rows. `random` is the stream of this batch.
  virtual void apply(MixedBatch& batch, RandomStream& random) const = 0;
};

/// x = lambda x + (1 - lambda) x', and the same for labels; x' is the previous row (Zhang et al., "mixup: Beyond empirical risk
/// minimization", 2018).
struct Mixup : BatchTransform {
  double alpha = 1.0;
  double p = 1.0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Mixup>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const override;
  void apply(MixedBatch& batch, RandomStream& random) const override;
};

/// Pastes a rectangle of the previous row and mixes labels by its area (Yun et al., "CutMix", 2019). Images only.
struct Cutmix : BatchTransform {
  double alpha = 1.0;
  double p = 1.0;
  void options(OptionVisitor& visitor) override;
  std::unique_ptr<Options> clone() const override { return std::make_unique<Cutmix>(*this); }
  void check() const override;
  std::vector<FieldType> fields(std::vector<FieldType> in, int64_t classes) const override;
  void apply(MixedBatch& batch, RandomStream& random) const override;
};

/// The batch transforms that a recipe may name.
ComponentKinds data_batch_transforms();

/// Draws a number from the distribution Beta(alpha, alpha), alpha > 0.
double draw_beta(double alpha, RandomStream& random);

}  // namespace galley
