#include "libcore/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "libcore/nn/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/rotary.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

[[noreturn]] void refuse(std::string message) { throw Error(ErrorCode::kRecipe, std::move(message)).key("rope_parameters"); }

double required_factor(const RopeParameters& rope) {
  if (!rope.factor) refuse(cat("rope_type ", kRopeTypeNames[static_cast<size_t>(rope.rope_type)], " needs a factor"));
  return *rope.factor;
}
/// The factor or, without one, that by which the context has grown.
double grown(const RopeParameters& rope, int64_t max_positions) {
  return rope.factor.value_or(static_cast<double>(max_positions) / static_cast<double>(rope.original(max_positions)));
}

double yarn_scale(double factor, double mscale = 1) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

RotaryForm yarn(const RopeParameters& rope, int64_t dims, int64_t max_positions) {
  RotaryForm form{rotary_frequencies(dims, rope.rope_theta)};
  const double factor = grown(rope, max_positions), size = static_cast<double>(dims);
  if (rope.attention_factor) {
    form.factor = *rope.attention_factor;
  } else if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
    form.factor = yarn_scale(factor, *rope.mscale) / yarn_scale(factor, *rope.mscale_all_dim);
  } else {
    form.factor = yarn_scale(factor);
  }
  // The pair that makes this number of turns within the context of pretraining.
  const auto pair_of = [&](double turns) {
    return size * std::log(static_cast<double>(rope.original(max_positions)) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.rope_theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < form.frequencies.size(); ++i) {
    const double kept = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    form.frequencies[i] = form.frequencies[i] / factor * (1 - kept) + form.frequencies[i] * kept;
  }
  return form;
}

RotaryForm llama3(const RopeParameters& rope, int64_t dims, int64_t max_positions) {
  RotaryForm form{rotary_frequencies(dims, rope.rope_theta)};
  const double factor = required_factor(rope), context = static_cast<double>(rope.original(max_positions));
  if (!(rope.low_freq_factor < rope.high_freq_factor))
    refuse(cat("low_freq_factor ", rope.low_freq_factor, " must be less than high_freq_factor ", rope.high_freq_factor));
  for (double& frequency : form.frequencies) {
    const double length = 2 * std::numbers::pi / frequency;
    if (length < context / rope.high_freq_factor) continue;
    if (length > context / rope.low_freq_factor) {
      frequency /= factor;
      continue;
    }
    const double kept = (context / length - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    frequency = (1 - kept) * frequency / factor + kept * frequency;
  }
  return form;
}

RotaryForm longrope(const RopeParameters& rope, int64_t dims, int64_t max_positions, int64_t tokens) {
  RotaryForm form{rotary_frequencies(dims, rope.rope_theta)};
  const int64_t original = rope.original(max_positions);
  const double factor = grown(rope, max_positions);
  if (rope.attention_factor) {
    form.factor = *rope.attention_factor;
  } else if (factor > 1) {
    form.factor = std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
  }
  const std::vector<double>& factors = tokens > original ? rope.long_factor : rope.short_factor;
  for (const auto& [name, list] : {std::pair{"short_factor", &rope.short_factor}, std::pair{"long_factor", &rope.long_factor}}) {
    if (list->size() != form.frequencies.size())
      refuse(cat(name, " has ", list->size(), " numbers; ", dims, " rotated values of a head need ", form.frequencies.size()));
  }
  for (size_t i = 0; i < factors.size(); ++i) form.frequencies[i] /= factors[i];
  return form;
}

}  // namespace

void RopeParameters::options(OptionVisitor& v) {
  v.choice({.name = "rope_type", .doc = "how frequencies change for long contexts"}, rope_type, kRopeTypeNames);
  v.option({.name = "rope_theta", .doc = "base of the frequencies", .min = 1}, rope_theta);
  v.option({.name = "partial_rotary_factor", .doc = "the part of each head that is rotated, its first values", .min = 0, .max = 1},
           partial_rotary_factor);
  v.option({.name = "factor", .doc = "by which the context grows; yarn, longrope: default max_position_embeddings / original", .min = 1},
           factor);
  v.option({.name = "original_max_position_embeddings", .doc = "the context of pretraining; default: max_position_embeddings", .min = 2},
           original_max_position_embeddings);
  v.option({.name = "attention_factor", .doc = "yarn, longrope: factor of cosines and sines; default: from the factor", .min = 0},
           attention_factor);
  v.option({.name = "beta_fast", .doc = "yarn: pairs that turn more often keep their frequency", .min = 0}, beta_fast);
  v.option({.name = "beta_slow", .doc = "yarn: the frequency of pairs that turn less often is divided", .min = 0}, beta_slow);
  v.option({.name = "mscale", .doc = "yarn: in the default of attention_factor, with mscale_all_dim"}, mscale);
  v.option({.name = "mscale_all_dim", .doc = "yarn: in the default of attention_factor, with mscale"}, mscale_all_dim);
  v.option({.name = "truncate", .doc = "yarn: the bounds are whole pairs"}, truncate);
  v.option({.name = "low_freq_factor", .doc = "llama3: longer waves than the context over this are divided", .min = 0}, low_freq_factor);
  v.option({.name = "high_freq_factor", .doc = "llama3: shorter waves than the context over this are kept", .min = 0}, high_freq_factor);
  v.option({.name = "short_factor", .doc = "longrope: divisors of the frequencies up to the context of pretraining", .min = 0},
           short_factor);
  v.option({.name = "long_factor", .doc = "longrope: divisors of the frequencies of longer sequences", .min = 0}, long_factor);
}

int64_t RopeParameters::rotated(int64_t width) const {
  const auto dims = static_cast<int64_t>(static_cast<double>(width) * partial_rotary_factor);
  const int64_t least = rope_type == RopeType::kDynamic ? 4 : 2;  // one pair has no other base
  if (dims >= least && dims % 2 == 0) return dims;
  refuse(cat("rotary embeddings rotate an even number of at least ", least, " values of a head, not ", dims,
             partial_rotary_factor == 1 ? "" : cat(" of ", width, " (partial_rotary_factor ", partial_rotary_factor, ")")));
}

int64_t RopeParameters::context(int64_t max_positions) const {
  const auto times = [&](int64_t positions) { return static_cast<int64_t>(static_cast<double>(positions) * factor.value_or(1)); };
  switch (rope_type) {
    case RopeType::kLinear:
    case RopeType::kDynamic: return times(max_positions);
    case RopeType::kYarn: return std::max(max_positions, times(original(max_positions)));
    default: return max_positions;
  }
}

int64_t RopeParameters::switches_after(int64_t max_positions) const {
  if (rope_type == RopeType::kDynamic) return max_positions;
  return rope_type == RopeType::kLongRope ? original(max_positions) : 0;
}

RotaryForm rotary_form(const RopeParameters& rope, int64_t dims, int64_t max_positions, int64_t tokens) {
  switch (rope.rope_type) {
    case RopeType::kDefault: return {rotary_frequencies(dims, rope.rope_theta)};
    case RopeType::kLinear: {
      RotaryForm form{rotary_frequencies(dims, rope.rope_theta)};
      const double factor = required_factor(rope);
      for (double& frequency : form.frequencies) frequency /= factor;
      return form;
    }
    case RopeType::kDynamic: {
      const double factor = required_factor(rope), size = static_cast<double>(dims), limit = static_cast<double>(max_positions);
      const double length = static_cast<double>(std::max(tokens, max_positions));
      return {rotary_frequencies(dims, rope.rope_theta * std::pow(factor * length / limit - (factor - 1), size / (size - 2)))};
    }
    case RopeType::kYarn: return yarn(rope, dims, max_positions);
    case RopeType::kLlama3: return llama3(rope, dims, max_positions);
    case RopeType::kLongRope: return longrope(rope, dims, max_positions, tokens);
  }
  GALLEY_ASSERT(false);
}

Rotation::Rotation(Builder& b, const RopeParameters& rope, int64_t width, int64_t max_positions, const Shape& tokens, Value given) {
  const int64_t dims = rope.rotated(width);
  const auto attributes = [&](int64_t length) {
    const RotaryForm form = rotary_form(rope, dims, max_positions, length);
    RotaryTableAttrs attrs;
    attrs.frequencies = form.frequencies;
    attrs.factor = form.factor;
    return attrs;
  };
  const int64_t n = tokens[0], length = tokens[1];
  if (given) {
    table_ = rotary_table(given, attributes(length));
    rows_of(b, tokens);
    return;
  }
  if (!has_positions(b)) {
    RotaryTableAttrs attrs = attributes(length);
    attrs.positions = length;
    table_ = rotary_table(b.graph(), attrs);
    return;
  }
  const Value positions = fed_positions(b, n, length);
  const int64_t limit = rope.switches_after(max_positions);
  if (limit > 0 && is_open(b))
    refuse(cat("sequences of more than ", limit, " tokens have other rotary frequencies, for which the exported form has no rule"));
  if (limit == 0 || b.cache() <= limit) {
    table_ = rotary_table(positions, attributes(1));
  } else if (rope.rope_type == RopeType::kDynamic) {
    RotaryTableAttrs attrs = attributes(1);
    attrs.limit = max_positions;
    attrs.growth = required_factor(rope);
    table_ = rotary_table(positions, attrs, b.fed(cache_input::kLength, {.dtype = DType::kI64, .shape = {n}}));
  } else {
    const Value most = full(b.graph(), {.dtype = DType::kI64, .shape = {n, 1, 1}}, static_cast<double>(limit));
    const Value is_long = greater(reshape(b.fed(cache_input::kLength, {.dtype = DType::kI64, .shape = {n}}), {n, 1, 1}), most);
    const auto rows = [&](int64_t tokens_of) { return reshape(rotary_table(positions, attributes(tokens_of)), {n, length, dims}); };
    table_ = reshape(where(is_long, rows(b.cache()), rows(1)), {n * length, dims});
  }
  rows_of(b, tokens);
}

/// Token t of sequence n has the row n T + t of the table.
void Rotation::rows_of(Builder& b, const Shape& tokens) {
  if (tokens[0] == 1) return;
  const TensorType counts{.dtype = DType::kI64, .shape = {tokens[0]}};
  start_ = mul(iota(b.graph(), DType::kI64, {tokens[0]}, 0), full(b.graph(), counts, static_cast<double>(tokens[1])));
}

Value Rotation::operator()(Value x) const { return rotary(x, table_, start_); }

}  // namespace galley
