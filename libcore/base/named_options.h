#pragma once
// A map from user-chosen names to option structs of one kind: `inputs: {image1: {shape: [3, 64, 64]}, image2: {...}}`. Listed with
// OptionVisitor::section; readers and schemas recognize it by its type.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

class NamedOptions : public Options {
 public:
  virtual void clear() = 0;
  /// Adds an element with default values.
  virtual Options& add(std::string name) = 0;
  virtual std::unique_ptr<Options> (*maker() const)() = 0;
};

/// Elements keep the order of the text.
template <class T>
class NamedOptionsOf : public NamedOptions {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<NamedOptionsOf>(*this); }
  void options(OptionVisitor& visitor) override {
    for (auto& [name, value] : items) visitor.section({.name = name, .required = true}, value);
  }
  void clear() override { items.clear(); }
  Options& add(std::string name) override { return items.emplace_back(std::move(name), T()).second; }
  std::unique_ptr<Options> (*maker() const)() override { return make_options<T>; }

  std::vector<std::pair<std::string, T>> items;
};

}  // namespace galley
