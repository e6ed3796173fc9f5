#pragma once
// Rotary position embedding (Su et al. 2021): pairs of values of a head are rotated by an angle proportional to the position.

#include <array>
#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// Which values of a head form pair i of n = dims / 2. Checkpoints of one layout give fluent nonsense with the other.
enum class RotaryLayout {
  kHalves,       // i and i + n: transformers' rotate_half, Llama's files of the hub, GPT-NeoX
  kInterleaved,  // 2i and 2i + 1: the paper, Llama's own files, GPT-J
};
inline constexpr std::array<std::string_view, 2> kRotaryLayoutNames{"halves", "interleaved"};

struct RotaryAttrs : OptionsOf<RotaryAttrs> {
  RotaryLayout layout = RotaryLayout::kHalves;
  int64_t heads = 0;     // the first heads of x are rotated, others copied (of packed queries, keys and values); 0: all
  bool inverse = false;  // rotate by the negative angle: the gradient
  void options(OptionVisitor& v) override;
};
struct RotaryTableAttrs : OptionsOf<RotaryTableAttrs> {
  int64_t positions = 0;            // of a table without the input position
  std::vector<double> frequencies;  // radians that pair i turns by from one position to the next
  double factor = 1;                // of all values: the attention factor of scaled contexts
  int64_t limit = 0;                // with the input length: the tokens of a sequence beyond which its frequencies are smaller
  double growth = 1;                // with the input length: how fast (dynamic_stretch)
  void options(OptionVisitor& v) override;
};

const OpDef& rotary_op();
const OpDef& rotary_table_op();

/// base^(-2i / dims) for i in 0 .. dims / 2 - 1. Every scaling of rotary embeddings is a change of these.
std::vector<double> rotary_frequencies(int64_t dims, double base = 10000);
/// The factor of frequency i of n in a sequence of `length` tokens, where a context of `limit` grows by a larger base (NTK-aware scaling,
/// transformers' rope_type dynamic): the base grows by (growth length / limit - growth + 1)^(n / (n - 1)).
double dynamic_stretch(const RotaryTableAttrs& attrs, int64_t length, int64_t i);
/// f32 [positions,2 n] for n frequencies: row p has cos(p f) of all frequencies, then sin(p f), computed in double and rounded once.
/// A constant, which is computed before the first step.
Value rotary_table(Graph& graph, const RotaryTableAttrs& attrs);
/// The rows of these positions (i64, any shape; at least 0) in order, f32 [elements,2 n]. attrs.positions is 0.
/// `length` (i64 [N], with positions [N,...]; absent: attrs.frequencies as they are): the tokens of each sequence.
Value rotary_table(Value position, const RotaryTableAttrs& attrs, Value length = {});
/// x [B,T,H,D], table [P,dims] with an even dims <= D. Row t of sample b has the position t + position[b] (i64 [B]; absent: t), below P.
/// The first dims values of a head are rotated, the others copied. Keeps x's shape and dtype.
Value rotary(Value x, Value table, Value position = {}, const RotaryAttrs& attrs = {});

}  // namespace galley
