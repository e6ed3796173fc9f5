#include "libcore/data/batch_transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace galley {
namespace {

constexpr OptionInfo kAlpha{.name = "alpha",
                            .doc = "The mixing ratio is drawn from Beta(alpha, alpha); with a small alpha it is close to 0 or 1",
                            .min = 0,
                            .max = 1000,
                            .main = true};
constexpr OptionInfo kMixedFraction{.name = "p", .doc = "Fraction of the batches that are mixed", .min = 0, .max = 1};

/// Draws from Gamma(shape, 1) (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000).
double draw_gamma(double shape, RandomStream& random) {
  if (shape < 1) return draw_gamma(shape + 1, random) * std::pow(1 - random.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3.0, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

/// rows[i] = share * rows[i] + (1 - share) * rows[i - 1]; row 0 is mixed with the last row. All old values are read before they change.
void mix_rows(float* rows, int64_t count, int64_t width, float share) {
  const std::vector<float> last(rows + (count - 1) * width, rows + count * width);
  for (int64_t i = count - 1; i >= 0; --i) {
    float* row = rows + i * width;
    const float* other = i == 0 ? last.data() : row - width;
    for (int64_t j = 0; j < width; ++j) row[j] = share * row[j] + (1.0f - share) * other[j];
  }
}

void check_mix(std::string_view type, double alpha) {
  GALLEY_CHECK(alpha > 0, "[", type, "] `alpha` is ", alpha, "; it must be above 0 (remove the item to turn it off)");
}

/// The fields of a batch after mixing `input` and `label`.
std::vector<FieldType> mixed_fields(std::string_view type, std::vector<FieldType> in, int64_t classes) {
  GALLEY_CHECK(classes > 0, "batch transform ", type, " needs a model with classes");
  const FieldType* input = find_field(std::span<const FieldType>(in), "input");
  FieldType* label = find_field(in, "label");
  GALLEY_CHECK(label != nullptr, "batch transforms mix labels, but the samples have no field `label`; they have ", field_names(in));
  GALLEY_CHECK(label->kind == FieldKind::kClass && label->sample.empty(), "batch transform ", type,
               " needs one class label per sample, not ", *label);
  GALLEY_CHECK(input != nullptr && input->dtype == DType::kF32 && input->layout == FieldLayout::kDense,
               "batch transforms need float inputs, not ", input == nullptr ? "fields " + field_names(in) : input->str());
  for (const FieldType& other : in) {
    const bool places = other.kind == FieldKind::kMask || other.kind == FieldKind::kBoxes || other.kind == FieldKind::kKeypoints;
    GALLEY_CHECK(!places, "batch transform ", type, " cannot mix the ", field_kind_name(other.kind), " of the field '", other.name,
                 "'; remove the transform");
  }
  label->dtype = DType::kF32;
  label->sample = {classes};
  return in;
}

}  // namespace

ComponentKinds data_batch_transforms() {
  static constexpr std::array<ComponentKind, 2> kKinds{{
      {"mixup", "blend each sample with another", make_options<Mixup>},
      {"cutmix", "paste a rectangle of another sample", make_options<Cutmix>},
  }};
  return kKinds;
}

double draw_beta(double alpha, RandomStream& random) {
  const double a = draw_gamma(alpha, random), b = draw_gamma(alpha, random);
  // Both can underflow for a tiny alpha. The limit of the distribution is 0 or 1 with equal probability.
  return a + b > 0 ? a / (a + b) : random.uniform() < 0.5 ? 0.0 : 1.0;
}

void Mixup::options(OptionVisitor& visitor) {
  visitor.option(kAlpha, alpha);
  visitor.option(kMixedFraction, p);
}
void Mixup::check() const { check_mix("mixup", alpha); }

std::vector<FieldType> Mixup::fields(std::vector<FieldType> in, int64_t classes) const {
  return mixed_fields("mixup", std::move(in), classes);
}

void Mixup::apply(MixedBatch& batch, RandomStream& random) const {
  if (random.uniform() >= p || batch.rows < 2) return;
  const auto share = static_cast<float>(draw_beta(alpha, random));
  const int64_t width = batch.input.elements() / batch.input.shape()[0];
  mix_rows(batch.input.data_as<float>(), batch.rows, width, share);
  mix_rows(batch.probabilities.data_as<float>(), batch.rows, batch.probabilities.shape()[1], share);
}

void Cutmix::options(OptionVisitor& visitor) {
  visitor.option(kAlpha, alpha);
  visitor.option(kMixedFraction, p);
}
void Cutmix::check() const { check_mix("cutmix", alpha); }

std::vector<FieldType> Cutmix::fields(std::vector<FieldType> in, int64_t classes) const {
  const FieldType* input = find_field(std::span<const FieldType>(in), "input");
  GALLEY_CHECK(input == nullptr || input->kind == FieldKind::kImage, "[cutmix] needs images [N,C,H,W], not ", *input);
  return mixed_fields("cutmix", std::move(in), classes);
}

void Cutmix::apply(MixedBatch& batch, RandomStream& random) const {
  const Shape& shape = batch.input.shape();
  GALLEY_CHECK(shape.rank() == 4, "[cutmix] needs images [N,C,H,W]; the batch is ", batch.input.str());
  if (random.uniform() >= p || batch.rows < 2) return;
  const int64_t channels = shape[1], height = shape[2], width = shape[3];
  const double share = draw_beta(alpha, random);
  const auto center_x = static_cast<int64_t>(random.below(static_cast<uint64_t>(width))),
             center_y = static_cast<int64_t>(random.below(static_cast<uint64_t>(height)));
  const double half = 0.5 * std::sqrt(1.0 - share);
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(width)),
             half_height = static_cast<int64_t>(half * static_cast<double>(height));
  const int64_t left = std::max<int64_t>(center_x - half_width, 0), right = std::min(center_x + half_width, width);
  const int64_t top = std::max<int64_t>(center_y - half_height, 0), bottom = std::min(center_y + half_height, height);
  if (left >= right || top >= bottom) return;

  const bool channels_last = batch.input.format().is_channels_last();
  const int64_t planes = channels_last ? 1 : channels, pixel = channels_last ? channels : 1;
  const int64_t row_values = channels * height * width;
  const int64_t patch_values = channels * (bottom - top) * (right - left);
  float* input = batch.input.data_as<float>();
  // Calls line(values, count) for each row of pixels of the rectangle in sample i.
  const auto each_line = [&](int64_t i, auto line) {
    for (int64_t plane = 0; plane < planes; ++plane)
      for (int64_t y = top; y < bottom; ++y)
        line(input + i * row_values + (plane * height * width + y * width + left) * pixel, (right - left) * pixel);
  };
  const auto save = [&](int64_t i, std::vector<float>& patch) {
    float* to = patch.data();
    each_line(i, [&](const float* from, int64_t count) { to = std::copy_n(from, count, to); });
  };
  std::vector<float> before(static_cast<size_t>(patch_values)), own(static_cast<size_t>(patch_values));
  save(batch.rows - 1, before);
  for (int64_t i = 0; i < batch.rows; ++i) {
    save(i, own);
    const float* from = before.data();
    each_line(i, [&](float* to, int64_t count) {
      std::copy_n(from, count, to);
      from += count;
    });
    std::swap(before, own);
  }
  const double kept = 1.0 - static_cast<double>((right - left) * (bottom - top)) / static_cast<double>(width * height);
  mix_rows(batch.probabilities.data_as<float>(), batch.rows, batch.probabilities.shape()[1], static_cast<float>(kept));
}

}  // namespace galley
