#pragma once
// One list of options per option struct. Every attribute or option struct (op attributes, layer parameters, recipe
// sections) names its options once, in `void options(OptionVisitor&)`; graph text, recipe parsing, dumping, help, docs,
// completion and test cases are visitors over that list. A default is the value in a default-constructed struct.

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

/// What is known of an option besides its value.
struct OptionInfo {
  std::string_view name;
  std::string_view doc;
  std::string_view unit = "";
  double min = -std::numeric_limits<double>::infinity();  // inclusive, of each element for a list
  double max = std::numeric_limits<double>::infinity();
  bool required = false;       // the user must give it
  bool main = false;           // a scalar where the struct's map stands is this option alone
  std::string_view word = "";  // a component or list of components may be this word instead: then type is the word, params null
};

/// A struct with options. Value semantics through clone().
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
  /// Element `index`, which `make` of the list made as a T.
  template <class T>
  const T& at(size_t index) const {
    return static_cast<const T&>(*items.at(index));
  }

  std::vector<std::unique_ptr<Options>> items;
};

/// A value written as text with a grammar of its own: durations, sizes, multiples, selectors (base/units.h).
class TextValue {
 public:
  virtual ~TextValue() = default;
  /// Throws Error (without place) where the text is not valid.
  virtual void parse(std::string_view text) = 0;
  virtual std::string str() const = 0;
  /// What may be written, for help: "e.g. 90 epochs, 500 steps".
  virtual std::string_view grammar() const = 0;
};

/// One kind of component (an optimizer, a transform, a data source, a layer, a model): a name, a line of
/// documentation and a factory of its default parameters.
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

/// A map with a `type` key and the parameters of that type.
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
  std::string name;  // an item of a list may carry a name of its own, by which overrides address it
  std::unique_ptr<Options> params;
};

/// Walks over the options of a struct; reads or writes them.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;
  virtual void option(const OptionInfo& info, bool& value) = 0;
  virtual void option(const OptionInfo& info, int64_t& value) = 0;
  virtual void option(const OptionInfo& info, double& value) = 0;
  virtual void option(const OptionInfo& info, std::string& value) = 0;
  virtual void option(const OptionInfo& info, std::vector<int64_t>& value) = 0;  // a scalar means a list of one
  virtual void option(const OptionInfo& info, std::vector<double>& value) = 0;
  virtual void option(const OptionInfo& info, std::vector<std::string>& value) = 0;
  /// An enumeration: `value` is an index into `names`.
  virtual void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) = 0;
  /// The calls below are for recipe sections; attributes of operators do not use them.
  virtual void text(const OptionInfo& info, TextValue& value);
  virtual void section(const OptionInfo& info, Options& value);
  /// A list of maps: `make` gives a default element.
  virtual void list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>& value, std::unique_ptr<Options> (*make)());
  /// An empty name: the component's keys stand in the map of the struct itself, and `type` may be absent there.
  virtual void component(const OptionInfo& info, Component& value, ComponentKinds kinds);
  virtual void components(const OptionInfo& info, std::vector<Component>& value, ComponentKinds kinds);
  /// A map from free names to text, in the order of the text.
  virtual void pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>& value);
  /// Asked before an optional option: is there a value (a reader answers from its text, a writer from `has_value`)?
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
