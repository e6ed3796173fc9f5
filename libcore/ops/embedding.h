#pragma once
// Embedding: selects rows of a table by integer indices.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct EmbeddingBackwardAttrs : OptionsOf<EmbeddingBackwardAttrs> {
  int64_t rows = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& embedding_op();
const OpDef& embedding_backward_op();
/// Does the operator select rows of a table: input 0 is the table, input 1 the indices?
inline bool selects_rows(const OpDef& op) { return &op == &embedding_op(); }

/// weight [V,D], index i64 or i32 [...] with values in 0..V-1 -> [...,D].
Value embedding(Value weight, Value index);
/// Adds the rows of grad [...,D] into a zero table [rows,D].
Value embedding_backward(Value grad, Value index, const EmbeddingBackwardAttrs& attrs);

}  // namespace galley
