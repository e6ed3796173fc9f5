#include "libcore/ops/integer_builder.h"

#include "libcore/ops/quantize.h"

namespace galley {

void build_integer_form(IntegerBuilder& b) {
  const OpDef& op = *b.node().op;
  if (op.integer_form != nullptr) return op.integer_form(b);
  if (op.quantize == QuantizeRule::kTable) {
    return b.set(lookup(b.in(0), table_of(b.map(0), *b.result_map(), scalar_function(op, b.node().attributes.get()))));
  }
  GALLEY_ASSERT(op.quantize == QuantizeRule::kPassThrough, op.name, " has no integer form");
  b.set(b.in(0).graph().add_node_like(b.node(), {b.in(0).id()}).front());
}

}  // namespace galley
