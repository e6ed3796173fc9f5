#pragma once
// Sets an option of a parameter struct by name, for tests without the reader of recipes.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"

namespace galley {

/// Sets one option by name from a number, a list or text, as the recipe's reader does. "SECTION.NAME" is an option of a section.
class Setter : public OptionVisitor {
 public:
  Setter(std::string_view name, std::vector<double> numbers, std::vector<std::string> words = {})
      : name_(name), numbers_(std::move(numbers)), words_(std::move(words)) {}
  void option(const OptionInfo& i, bool& v) override {
    if (hit(i)) v = numbers_[0] != 0;
  }
  void option(const OptionInfo& i, int64_t& v) override {
    if (hit(i)) v = static_cast<int64_t>(numbers_[0]);
  }
  void option(const OptionInfo& i, double& v) override {
    if (hit(i)) v = numbers_[0];
  }
  void option(const OptionInfo&, std::string&) override {}
  void option(const OptionInfo& i, std::vector<int64_t>& v) override {
    if (hit(i)) v.assign(numbers_.begin(), numbers_.end());
  }
  void option(const OptionInfo& i, std::vector<double>& v) override {
    if (hit(i)) v = numbers_;
  }
  void option(const OptionInfo& i, std::vector<std::string>& v) override {
    if (hit(i)) v = words_;
  }
  void choice(const OptionInfo& i, int& v, std::span<const std::string_view>) override {
    if (hit(i)) v = static_cast<int>(numbers_[0]);
  }
  bool present(const OptionInfo& i, bool has_value) override { return has_value || i.name == name_; }
  void section(const OptionInfo& i, Options& v) override {
    if (!name_.starts_with(std::string(i.name) + ".")) return;
    Setter inner(std::string_view(name_).substr(i.name.size() + 1), numbers_, words_);
    v.options(inner);
    found = found || inner.found;
  }
  bool found = false;

 private:
  bool hit(const OptionInfo& info) { return info.name == name_ && (found = true); }
  std::string name_;
  std::vector<double> numbers_;
  std::vector<std::string> words_;
};

}  // namespace galley
