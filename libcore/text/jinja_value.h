#pragma once
// Values of chat templates: those of Jinja's expressions, with Python's rules of truth, equality, order and text.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace galley::text::jinja {

class Value;
using List = std::vector<Value>;
/// Keys are text and keep their order.
using Dict = std::vector<std::pair<std::string, Value>>;
/// A name that nothing defines. It is false and empty; reading an attribute of it is an error.
struct Undefined {
  std::string name;
};
struct None {};
/// Arguments of a call: by position, then by name.
struct Arguments {
  List values;
  Dict named;
  /// The argument at a position or of a name; nullptr if there is none.
  const Value* find(size_t position, std::string_view name) const;
};
struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool v) : data_(v) {}                                             // NOLINT: implicit, as literals
  Value(int64_t v) : data_(v) {}                                          // NOLINT
  Value(double v) : data_(v) {}                                           // NOLINT
  Value(std::string v) : data_(std::move(v)) {}                           // NOLINT
  Value(const char* v) : data_(std::string(v)) {}                         // NOLINT
  Value(Undefined v) : data_(std::move(v)) {}                             // NOLINT
  Value(List v) : data_(std::make_shared<List>(std::move(v))) {}          // NOLINT
  Value(Dict v) : data_(std::make_shared<Dict>(std::move(v))) {}          // NOLINT
  Value(Function v) : data_(std::make_shared<Function>(std::move(v))) {}  // NOLINT
  /// A list that prints in parentheses and equals no list.
  static Value tuple(List v);
  /// namespace(...): a dict whose attributes `set` may change.
  static Value mutable_dict(Dict v);
  static Value from_json(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_text() const { return std::holds_alternative<std::string>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(data_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<Function>>(data_); }
  bool is_tuple() const { return is_list() && tuple_; }
  bool is_mutable() const { return mutable_; }

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  const std::string& text() const { return std::get<std::string>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  Dict& dict() { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(data_); }
  /// Of a number; booleans are 0 and 1.
  int64_t integer() const;
  double real() const;

  bool truth() const;
  /// As Python's str: what {{ }} prints.
  std::string str() const;
  /// As Python's repr: "'a'", inside lists and dicts.
  std::string repr() const;
  /// As json.dumps(ensure_ascii=False); indent below 0: on one line.
  std::string json(int64_t indent = -1, bool sort_keys = false) const;
  /// "text", "a list": for messages.
  std::string_view kind() const;
  /// The value of a key of a dict; nullptr if there is none.
  const Value* find(std::string_view key) const;
  /// The elements that a loop visits: of a list, keys of a dict, characters of a text. Undefined has none. Throws for others.
  List elements() const;

 private:
  std::variant<None, Undefined, bool, int64_t, double, std::string, std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Function>>
      data_;
  bool mutable_ = false, tuple_ = false;
};

/// Python's ==.
bool equal(const Value& a, const Value& b);
/// Python's <; throws for values without an order.
bool less(const Value& a, const Value& b);
/// Python's `a in b`.
bool contains(const Value& a, const Value& b);

/// A mistake of a template or of its input, without a place.
[[noreturn]] void fail_template(std::string message);

/// Throws where a text has too many bytes, or a list too many elements: a template must not use up the memory.
void check_size(size_t size);

/// Characters (code points) of UTF-8 text; bytes that are not UTF-8 are characters.
std::vector<std::string> characters(std::string_view text);

}  // namespace galley::text::jinja
