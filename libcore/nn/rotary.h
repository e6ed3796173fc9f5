#pragma once
// Rotary position embeddings of decoders: the frequencies that a hub folder's `rope_parameters` (transformers 5; before: rope_theta and
// rope_scaling) describes, and the rotation of queries and keys by the positions of a program's tokens.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// How frequencies are changed for contexts that are longer than those of pretraining.
enum class RopeType {
  kDefault,   // Su et al. 2021
  kLinear,    // divided by a factor (position interpolation, Chen et al. 2023)
  kDynamic,   // a larger base, by the length, beyond max_position_embeddings (NTK-aware)
  kYarn,      // slow ones are divided, fast ones kept (Peng et al. 2023)
  kLlama3,    // as yarn, bounded by wavelengths (Llama 3.1)
  kLongRope,  // a factor for each, other ones beyond the context of pretraining (Ding et al. 2024)
};
inline constexpr std::array<std::string_view, 6> kRopeTypeNames{"default", "linear", "dynamic", "yarn", "llama3", "longrope"};

/// rope_parameters, with transformers' names and defaults.
struct RopeParameters : OptionsOf<RopeParameters> {
  void options(OptionVisitor& v) override;
  RopeType rope_type = RopeType::kDefault;
  double rope_theta = 10000;
  double partial_rotary_factor = 1;
  std::optional<double> factor;
  std::optional<int64_t> original_max_position_embeddings;
  std::optional<double> attention_factor;
  double beta_fast = 32, beta_slow = 1;
  std::optional<double> mscale, mscale_all_dim;
  bool truncate = true;
  double low_freq_factor = 1, high_freq_factor = 4;
  std::vector<double> short_factor, long_factor;

  /// The leading values of a head of this width that are rotated. Throws Error (kRecipe) where they cannot be.
  int64_t rotated(int64_t width) const;
  /// The context of pretraining.
  int64_t original(int64_t max_positions) const { return original_max_position_embeddings.value_or(max_positions); }
  /// The longest sequence for which the frequencies are made.
  int64_t context(int64_t max_positions) const;
  /// Sequences of more tokens have other frequencies; 0: all have the same.
  int64_t switches_after(int64_t max_positions) const;
};

/// The angles of one kind of sequence.
struct RotaryForm {
  std::vector<double> frequencies;  // radians that each pair turns by from one position to the next
  double factor = 1;                // of cosines and sines
};
/// Of `dims` rotated values of a head, in sequences of `tokens` tokens. Throws Error (kRecipe) for parameters that do not go together.
RotaryForm rotary_form(const RopeParameters& rope, int64_t dims, int64_t max_positions, int64_t tokens);

/// Rotates queries and keys of one program by the positions of its tokens.
class Rotation {
 public:
  /// Of heads of `width` values in a program that reads [N,T] tokens. With a cache the positions are fed (nn/attention.h), and, where the
  /// frequencies depend on the length of a sequence, that length. Without a cache `positions` [N,T] gives them; absent: 0, 1, ...
  Rotation(Builder& b, const RopeParameters& rope, int64_t width, int64_t max_positions, const Shape& tokens, Value positions = {});
  /// x [N,T,heads,width] by transformers' layout of pairs, halves.
  Value operator()(Value x) const;

 private:
  void rows_of(Builder& b, const Shape& tokens);

  Value table_, start_;
};

}  // namespace galley
