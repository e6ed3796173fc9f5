#pragma once
// Choices that may be null.

#include <optional>
#include <span>
#include <string_view>

#include "libcore/base/options.h"

namespace galley {

/// Visits a choice that is null where `value` is empty.
template <class E>
void optional_choice(OptionVisitor& v, const OptionInfo& info, std::optional<E>& value, std::span<const std::string_view> names) {
  if (!v.present(info, value.has_value())) {
    value.reset();
    return;
  }
  if (!value) value.emplace();
  v.choice(info, *value, names);
}

}  // namespace galley
