#pragma once
// under_key: which key of the recipe an error belongs to.

#include <string_view>
#include <utility>

#include "libcore/base/error.h"

namespace galley {

/// Runs `work`. An error of the recipe (kRecipe) that names no key gets `key`, by which the tools find its place in the recipe's text.
template <class Work>
decltype(auto) under_key(std::string_view key, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (Error& error) {
    if (error.code() == ErrorCode::kRecipe && error.key().empty()) error.key(std::string(key));
    throw;
  }
}

}  // namespace galley
