#pragma once

#include <string>
#include <utility>

#include "libcore/data/transform.h"

namespace galley {

/// An item of a pipeline, as a recipe describes it.
template <class T>
Component item(std::string type, T params) {
  Component component;
  component.type = std::move(type);
  component.params = params.clone();
  return component;
}

}  // namespace galley
