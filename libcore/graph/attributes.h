#pragma once
// Attributes of one operator as text, apart from a graph.

#include <memory>
#include <string_view>

#include "libcore/graph/op_def.h"

namespace galley {

/// The operator's attributes from the text that print_attributes (graph.h) writes: "min=0 max=6"; defaults where the text names none.
/// nullptr for an operator without attributes. Throws Error (kInput) where the text does not fit.
std::unique_ptr<Options> parse_attributes(const OpDef& op, std::string_view text);

}  // namespace galley
