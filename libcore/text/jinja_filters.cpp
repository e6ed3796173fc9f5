// Filters of chat templates.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"
#include "libcore/text/jinja_functions.h"

namespace galley::text::jinja {
namespace {

using FilterFunction = Value (*)(const Value&, const Arguments&);

/// An attribute by its path, "function.name"; a whole number is an index.
Value path_of(const Value& value, const std::string& path) {
  Value at = value;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const Value* found = at.is_dict() ? at.find(name) : nullptr;
    if (found == nullptr) return Undefined{path};
    at = Value(*found);
    begin = end + 1;
  }
  return at;
}

/// select, reject, selectattr, rejectattr: a test of elements, or of an attribute of them.
Value chosen(const Value& value, const Arguments& a, bool by_attribute, bool keep) {
  List made;
  const size_t at = by_attribute ? 1 : 0;
  const std::string attribute = by_attribute ? text_argument(a, 0, "attribute", "selectattr") : std::string();
  for (const Value& element : value.elements()) {
    const Value subject = by_attribute ? path_of(element, attribute) : element;
    bool passes = subject.truth();
    if (a.values.size() > at) {
      const std::string& test = text_argument(a, at, "test", "select");
      passes = apply_test(test, subject, {List(a.values.begin() + static_cast<std::ptrdiff_t>(at) + 1, a.values.end()), {}});
    }
    if (passes == keep) made.push_back(element);
  }
  return made;
}

Value map_filter(const Value& value, const Arguments& a) {
  List made;
  const Value* attribute = a.find(a.values.size(), "attribute");
  for (const Value& element : value.elements()) {
    if (attribute != nullptr) {
      if (!attribute->is_text()) fail_template("map: the attribute must be text");
      Value item = path_of(element, attribute->text());
      const Value* missing = a.find(a.values.size(), "default");
      made.push_back(item.is_undefined() && missing != nullptr ? *missing : std::move(item));
      continue;
    }
    const std::string& filter = text_argument(a, 0, "filter", "map");
    made.push_back(apply_filter(filter, element, {List(a.values.begin() + 1, a.values.end()), a.named}));
  }
  return made;
}

Value sorted(const Value& value, const Arguments& a) {
  List made = value.elements();
  const bool reverse = flag_argument(a, 0, "reverse", false), exact = flag_argument(a, 1, "case_sensitive", false);
  const Value* attribute = a.find(2, "attribute");
  const auto key = [&](const Value& v) {
    Value item = attribute != nullptr && attribute->is_text() ? path_of(v, attribute->text()) : v;
    return item.is_text() && !exact ? Value(lower(item.text())) : item;
  };
  std::stable_sort(made.begin(), made.end(),
                   [&](const Value& x, const Value& y) { return reverse ? less(key(y), key(x)) : less(key(x), key(y)); });
  return made;
}

Value dict_sorted(const Value& value, const Arguments& a) {
  if (!value.is_dict()) fail_template(cat("dictsort needs a dictionary, not ", value.kind()));
  const bool exact = flag_argument(a, 0, "case_sensitive", false), reverse = flag_argument(a, 2, "reverse", false);
  const Value* by = a.find(1, "by");
  const bool by_value = by != nullptr && by->is_text() && by->text() == "value";
  if (by != nullptr && !by_value && !(by->is_text() && by->text() == "key"))
    fail_template("dictsort: the argument by must be 'key' or 'value'");
  Dict items = value.dict();
  const auto key = [&](const auto& item) {
    const Value found = by_value ? item.second : Value(item.first);
    return found.is_text() && !exact ? Value(lower(found.text())) : found;
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const auto& x, const auto& y) { return reverse ? less(key(y), key(x)) : less(key(x), key(y)); });
  List made;
  for (auto& [name, item] : items) made.push_back(Value::tuple({name, item}));
  return made;
}

Value joined(const Value& value, const Arguments& a) {
  const Value* separator = a.find(0, "d");
  const Value* attribute = a.find(1, "attribute");
  std::string made;
  bool first = true;
  for (const Value& element : value.elements()) {
    if (!std::exchange(first, false) && separator != nullptr) made += separator->str();
    made += (attribute != nullptr && attribute->is_text() ? path_of(element, attribute->text()) : element).str();
    check_size(made.size());
  }
  return made;
}

Value indented(const Value& value, const Arguments& a) {
  const Value* width = a.find(0, "width");
  const std::string margin = width != nullptr && width->is_text()
                                 ? width->text()
                                 : std::string(static_cast<size_t>(std::clamp<int64_t>(number_argument(a, 0, "width", 4), 0, 1000)), ' ');
  const bool first = flag_argument(a, 1, "first", false), blank = flag_argument(a, 2, "blank", false);
  std::string made;
  const std::string text = value.str();
  for (size_t at = 0, line = 0; at <= text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string content = text.substr(at, end - at);
    if (line > 0) made += '\n';
    if ((line > 0 || first) && (blank || !content.empty())) made += margin;
    made += content;
    check_size(made.size());
    at = end + 1;
  }
  return made;
}

int64_t length_of(const Value& value) {
  if (value.is_dict()) return std::ssize(value.dict());
  return std::ssize(value.elements());
}

Value rounded(const Value& value, const Arguments& a) {
  if (!value.is_number()) fail_template(cat("round needs a number, not ", value.kind()));
  const int64_t precision = number_argument(a, 0, "precision", 0);
  const Value* method = a.find(1, "method");
  const std::string how = method != nullptr ? method->str() : "common";
  if (how == "common" && !value.is_float() && precision >= 0) return value.integer();
  const double scale = std::pow(10, static_cast<double>(precision)), x = value.real() * scale;
  return (how == "ceil" ? std::ceil(x) : how == "floor" ? std::floor(x) : std::nearbyint(x)) / scale;
}

Value escaped(const Value& value, const Arguments&) {
  std::string text = value.str();
  for (const auto& [from, to] : {std::pair{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    text = replaced(text, from, to, -1);
  return text;
}

Value unique(const Value& value, const Arguments&) {
  List made;
  for (const Value& item : value.elements()) {
    if (std::none_of(made.begin(), made.end(), [&](const Value& other) { return equal(item, other); })) made.push_back(item);
  }
  return made;
}

Value reversed(const Value& value, const Arguments&) {
  List made = value.elements();
  std::reverse(made.begin(), made.end());
  if (!value.is_text()) return made;
  std::string text;
  for (const Value& character : made) text += character.text();
  return text;
}

Value first_of(const Value& value, const Arguments&) {
  const List elements = value.elements();
  return elements.empty() ? Value(Undefined{"the first of no elements"}) : elements.front();
}
Value last_of(const Value& value, const Arguments&) {
  const List elements = value.elements();
  return elements.empty() ? Value(Undefined{"the last of no elements"}) : elements.back();
}
template <bool kLargest>
Value extreme(const Value& value, const Arguments&) {
  const List elements = value.elements();
  if (elements.empty()) return Undefined{"the extreme of no elements"};
  return kLargest ? *std::max_element(elements.begin(), elements.end(), less) : *std::min_element(elements.begin(), elements.end(), less);
}
Value total(const Value& value, const Arguments& a) {
  const Value *attribute = a.find(0, "attribute"), *start = a.find(1, "start");
  double real = 0;
  int64_t whole = 0;
  bool exact = true;
  List items;
  if (start != nullptr) items.push_back(*start);
  for (const Value& element : value.elements())
    items.push_back(attribute != nullptr && attribute->is_text() ? path_of(element, attribute->text()) : element);
  for (const Value& item : items) {
    if (!item.is_number()) fail_template(cat("sum needs numbers, not ", item.kind()));
    exact = exact && !item.is_float();
    real += item.real();
    if (!item.is_float() && __builtin_add_overflow(whole, item.integer(), &whole)) fail_template("a sum is too large");
  }
  return exact ? Value(whole) : Value(real);
}

Value defaulted(const Value& value, const Arguments& a) {
  const bool missing = value.is_undefined() || (flag_argument(a, 1, "boolean", false) && !value.truth());
  if (!missing) return value;
  const Value* other = a.find(0, "default_value");
  return other == nullptr ? Value("") : *other;
}

Value to_integer(const Value& value, const Arguments& a) {
  if (value.is_number()) return value.integer();
  char* end = nullptr;
  const std::string text = value.is_text() ? stripped(value.text(), kWhiteSpace, true, true) : std::string();
  const int64_t base = number_argument(a, 1, "base", 10);
  if (base != 8 && base != 10 && base != 16) fail_template(cat("int: the base must be 8, 10 or 16, is ", base));
  const long long made = std::strtoll(text.c_str(), &end, static_cast<int>(base));
  return !text.empty() && *end == '\0' ? static_cast<int64_t>(made) : number_argument(a, 0, "default", 0);
}
Value to_real(const Value& value, const Arguments& a) {
  if (value.is_number()) return value.real();
  char* end = nullptr;
  const std::string text = value.is_text() ? stripped(value.text(), kWhiteSpace, true, true) : std::string();
  const double made = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return made;
  const Value* otherwise = a.find(0, "default");
  return otherwise != nullptr ? *otherwise : Value(0.0);
}
Value to_json(const Value& value, const Arguments& a) {
  if (value.is_undefined()) fail_template(cat("tojson: '", value.undefined_name(), "' is undefined"));
  for (const auto& [key, unused] : a.named) {
    if (key != "indent" && key != "ensure_ascii" && key != "sort_keys" && key != "separators")
      fail_template(cat("tojson has no argument '", key, "'"));
    if (key == "separators" && !unused.is_none()) fail_template("tojson: separators are not supported");
    if (key == "ensure_ascii" && unused.truth()) fail_template("tojson: ensure_ascii is not supported");
  }
  // transformers' tojson takes ensure_ascii, indent, separators, sort_keys.
  if (a.values.size() > 1 || (a.values.size() == 1 && a.values[0].truth())) fail_template("tojson: name the argument, indent=4");
  return value.json(number_argument(a, a.values.size(), "indent", -1), flag_argument(a, a.values.size(), "sort_keys", false));
}
Value absolute(const Value& value, const Arguments&) {
  if (!value.is_number()) fail_template(cat("abs needs a number, not ", value.kind()));
  return value.is_float() ? Value(std::abs(value.real())) : Value(std::abs(value.integer()));
}
Value item_pairs(const Value& value, const Arguments& a) {
  if (value.is_undefined()) return List();
  if (!value.is_dict()) fail_template(cat("items needs a dictionary, not ", value.kind()));
  return method_of(value, "items").function().call(a);
}

/// An attribute of a namespace; keys of dictionaries are not attributes.
Value attribute(const Value& value, const Arguments& a) {
  const std::string& name = text_argument(a, 0, "name", "attr");
  const Value* found = value.is_mutable() ? value.find(name) : nullptr;
  return found != nullptr ? *found : Value(Undefined{name});
}

const std::map<std::string, FilterFunction, std::less<>>& filters() {
  using V = const Value&;
  using A = const Arguments&;
  static const std::map<std::string, FilterFunction, std::less<>> all{
      {"trim", [](V v, A a) { return Value(stripped(v.str(), strip_set(a), true, true)); }},
      {"length", [](V v, A) { return Value(length_of(v)); }},
      {"count", [](V v, A) { return Value(length_of(v)); }},
      {"join", joined},
      {"tojson", to_json},
      {"replace",
       [](V v, A a) {
         return Value(replaced(v.str(), text_argument(a, 0, "old", "replace"), text_argument(a, 1, "new", "replace"),
                               number_argument(a, 2, "count", -1)));
       }},
      {"selectattr", [](V v, A a) { return chosen(v, a, true, true); }},
      {"rejectattr", [](V v, A a) { return chosen(v, a, true, false); }},
      {"select", [](V v, A a) { return chosen(v, a, false, true); }},
      {"reject", [](V v, A a) { return chosen(v, a, false, false); }},
      {"map", map_filter},
      {"list", [](V v, A) { return Value(v.elements()); }},
      {"first", first_of},
      {"last", last_of},
      {"lower", [](V v, A) { return Value(lower(v.str())); }},
      {"upper", [](V v, A) { return Value(upper(v.str())); }},
      {"capitalize", [](V v, A) { return Value(capitalized(v.str())); }},
      {"title", [](V v, A) { return Value(titled(v.str())); }},
      {"default", defaulted},
      {"d", defaulted},
      {"items", item_pairs},
      {"dictsort", dict_sorted},
      {"string", [](V v, A) { return Value(v.str()); }},
      {"int", to_integer},
      {"float", to_real},
      {"abs", absolute},
      {"round", rounded},
      {"sort", sorted},
      {"reverse", reversed},
      {"unique", unique},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"sum", total},
      {"indent", indented},
      {"safe", [](V v, A) { return v; }},
      {"escape", escaped},
      {"e", escaped},
      {"wordcount", [](V v, A) { return Value(std::ssize(split(v.str(), {}))); }},
      {"attr", attribute},
  };
  return all;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found != filters().end()) return found->second(value, arguments);
  std::string known;
  for (const auto& [each, function] : filters()) known += (known.empty() ? "" : ", ") + each;
  fail_template(cat("the filter '", name, "' is not supported; known: ", known));
}

}  // namespace galley::text::jinja
