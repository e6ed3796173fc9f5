#pragma once
// One list of options per option struct. Every option struct (operator attributes, layer parameters, recipe sections) lists its options
// once, in `void options(OptionVisitor&)`. Graph text, recipe parsing, dumping, help, docs, completion and test cases are visitors over
// that list. The default of an option is its value in a default-constructed struct.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace galley {

class OptionVisitor;

/// The description of an option.
struct OptionInfo {
  std::string_view name;
  std::string_view doc;
  std::string_view unit = "";
  double min = -std::numeric_limits<double>::infinity();  // inclusive; for a list, the limit of each element
  double max = std::numeric_limits<double>::infinity();
  bool required = false;       // the user must set it
  bool main = false;           // a scalar in place of the struct's map sets this option
  std::string_view word = "";  // this word is allowed in place of a component or list: then `type` is the word and `params` is null
};

/// A struct with options; clone() copies it.
class Options {
 public:
  virtual ~Options() = default;
  virtual void options(OptionVisitor& visitor) = 0;
  virtual std::unique_ptr<Options> clone() const = 0;
};

/// Implements clone() for a copyable struct: struct Adam : OptionsOf<Adam> { ... };
template <class Self>
class OptionsOf : public Options {
 public:
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// A list of structs with value semantics, for OptionVisitor::list.
class OptionList {
 public:
  OptionList() = default;
  OptionList(const OptionList& other) {
    for (const std::unique_ptr<Options>& item : other.items) items.push_back(item->clone());
  }
  OptionList(OptionList&&) = default;
  OptionList& operator=(const OptionList& other) { return *this = OptionList(other); }
  OptionList& operator=(OptionList&&) = default;
  size_t size() const { return items.size(); }
  bool empty() const { return items.empty(); }
  /// Element `index` as a T, which must be the type that the list's `make` creates.
  template <class T>
  const T& at(size_t index) const {
    return static_cast<const T&>(*items.at(index));
  }

  std::vector<std::unique_ptr<Options>> items;
};

/// A value written as text with its own grammar: durations, sizes, multiples, selectors (base/units.h).
class TextValue {
 public:
  virtual ~TextValue() = default;
  /// Throws Error without a position if the text is not valid.
  virtual void parse(std::string_view text) = 0;
  virtual std::string str() const = 0;
  /// The accepted forms, for help: "e.g. 90 epochs, 500 steps".
  virtual std::string_view grammar() const = 0;
};

/// One kind of component (an optimizer, transform, data source, layer or model): its name, a line of documentation and a factory of its
/// default parameters.
struct ComponentKind {
  std::string_view type;
  std::string_view doc;
  std::unique_ptr<Options> (*make)();
};
using ComponentKinds = std::span<const ComponentKind>;

template <class T>
std::unique_ptr<Options> make_options() {
  return std::make_unique<T>();
}

/// A recipe map with a `type` key and the parameters of that type.
class Component {
 public:
  Component() = default;
  Component(const Component& other) : type(other.type), params(other.params ? other.params->clone() : nullptr) {}
  Component(Component&&) = default;
  Component& operator=(const Component& other) { return *this = Component(other); }
  Component& operator=(Component&&) = default;
  explicit operator bool() const { return params != nullptr; }
  template <class T>
  const T* as() const {
    return dynamic_cast<const T*>(params.get());
  }

  std::string type;
  std::string name;  // optional name of a list item, by which overrides address it
  std::unique_ptr<Options> params;
};

/// Visits the options of a struct in order; an implementation reads or writes them.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;
  virtual void option(const OptionInfo& info, bool& value) = 0;
  virtual void option(const OptionInfo& info, int64_t& value) = 0;
  virtual void option(const OptionInfo& info, double& value) = 0;
  virtual void option(const OptionInfo& info, std::string& value) = 0;
  virtual void option(const OptionInfo& info, std::vector<int64_t>& value) = 0;  // a scalar is read as a list of one element
  virtual void option(const OptionInfo& info, std::vector<double>& value) = 0;
  virtual void option(const OptionInfo& info, std::vector<std::string>& value) = 0;
  /// An enumeration; `value` is an index into `names`.
  virtual void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) = 0;
  /// The functions below are for recipe sections; operator attributes do not use them.
  virtual void text(const OptionInfo& info, TextValue& value);
  virtual void section(const OptionInfo& info, Options& value);
  /// A list of maps; `make` creates an element with default values.
  virtual void list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>& value, std::unique_ptr<Options> (*make)());
  /// With an empty name, the component's keys are part of the struct's own map, and `type` may be absent.
  virtual void component(const OptionInfo& info, Component& value, ComponentKinds kinds);
  virtual void components(const OptionInfo& info, std::vector<Component>& value, ComponentKinds kinds);
  /// A map from user-chosen names to text; keeps the order of the text.
  virtual void pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>& value);
  /// Called before an optional option: whether it has a value. A reader answers from its text, a writer returns `has_value`.
  virtual bool present(const OptionInfo& info, bool has_value);

  template <class T>
  void option(const OptionInfo& info, std::optional<T>& value) {
    if (!present(info, value.has_value())) {
      value.reset();
      return;
    }
    if (!value) value.emplace();
    if constexpr (std::is_base_of_v<TextValue, T>) {
      text(info, *value);
    } else if constexpr (std::is_base_of_v<Options, T>) {
      section(info, *value);
    } else {
      option(info, *value);
    }
  }
  template <class E>
    requires std::is_enum_v<E>
  void choice(const OptionInfo& info, E& value, std::span<const std::string_view> names) {
    int index = static_cast<int>(value);
    choice(info, index, names);
    value = static_cast<E>(index);
  }
};

}  // namespace galley
