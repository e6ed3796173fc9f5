// Filters, tests, methods and functions of chat templates.

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"

namespace galley::text::jinja {
namespace {

using FilterFunction = Value (*)(const Value&, const Arguments&);
using TestFunction = bool (*)(const Value&, const Arguments&);

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

const std::string& text_argument(const Arguments& a, size_t position, std::string_view name, std::string_view of) {
  const Value* found = a.find(position, name);
  if (found == nullptr || !found->is_text()) fail_template(cat(of, ": the argument ", name, " must be text"));
  return found->text();
}
int64_t number_argument(const Arguments& a, size_t position, std::string_view name, int64_t missing) {
  const Value* found = a.find(position, name);
  if (found == nullptr || found->is_none()) return missing;
  if (!found->is_int() && !found->is_bool()) fail_template(cat("the argument ", name, " must be a whole number, is ", found->kind()));
  return found->integer();
}
bool flag_argument(const Arguments& a, size_t position, std::string_view name, bool missing) {
  const Value* found = a.find(position, name);
  return found == nullptr ? missing : found->truth();
}

std::string stripped(std::string_view text, std::string_view set, bool left, bool right) {
  const size_t begin = left ? text.find_first_not_of(set) : 0;
  if (begin == std::string::npos || text.empty()) return "";
  const size_t end = right ? text.find_last_not_of(set) + 1 : text.size();
  return end <= begin ? std::string() : std::string(text.substr(begin, end - begin));
}
/// The characters to strip: white space without an argument.
std::string strip_set(const Arguments& a) {
  const Value* found = a.find(0, "chars");
  return found != nullptr && found->is_text() ? found->text() : std::string(kWhiteSpace);
}

std::string mapped(std::string text, int (*map)(int)) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(map(static_cast<unsigned char>(c)));
  }
  return text;
}
std::string lower(const std::string& text) { return mapped(text, std::tolower); }
std::string upper(const std::string& text) { return mapped(text, std::toupper); }
std::string capitalized(const std::string& text) {
  std::string made = lower(text);
  if (!made.empty()) made[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(made[0])));
  return made;
}
std::string titled(const std::string& text) {
  std::string made = lower(text);
  bool starts = true;
  for (char& c : made) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (starts && letter) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    starts = !letter;
  }
  return made;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t count) {
  std::string made;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    if (from.empty()) break;
    const size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    made += text.substr(at, found - at) + to;
    check_size(made.size());
    at = found + from.size();
  }
  return made + text.substr(at);
}

/// Python's str.split.
List split(const std::string& text, const Arguments& a) {
  const Value* separator = a.find(0, "sep");
  int64_t most = number_argument(a, 1, "maxsplit", -1);
  List parts;
  if (separator == nullptr || separator->is_none()) {
    size_t at = text.find_first_not_of(kWhiteSpace);
    while (at != std::string::npos) {
      const size_t end = most == 0 ? std::string::npos : text.find_first_of(kWhiteSpace, at);
      parts.emplace_back(most == 0 ? stripped(text.substr(at), kWhiteSpace, false, true) : text.substr(at, end - at));
      if (most-- == 0 || end == std::string::npos) break;
      at = text.find_first_not_of(kWhiteSpace, end);
    }
    return parts;
  }
  const std::string& mark = text_argument(a, 0, "sep", "split");
  if (mark.empty()) fail_template("split: the separator is empty");
  size_t at = 0;
  for (; most != 0; --most) {
    const size_t found = text.find(mark, at);
    if (found == std::string::npos) break;
    parts.emplace_back(text.substr(at, found - at));
    at = found + mark.size();
  }
  parts.emplace_back(text.substr(at));
  return parts;
}
List rsplit(const std::string& text, const Arguments& a) {
  const std::string& mark = text_argument(a, 0, "sep", "rsplit");
  if (mark.empty()) fail_template("rsplit: the separator is empty");
  List parts;
  std::string rest = text;
  for (int64_t most = number_argument(a, 1, "maxsplit", -1); most != 0; --most) {
    const size_t found = rest.rfind(mark);
    if (found == std::string::npos) break;
    parts.emplace_back(rest.substr(found + mark.size()));
    rest.resize(found);
  }
  parts.emplace_back(rest);
  std::reverse(parts.begin(), parts.end());
  return parts;
}
List lines_of(const std::string& text) {
  List lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}
bool has_affix(const std::string& text, const Value& affix, bool start) {
  if (affix.is_list()) {
    return std::any_of(affix.list().begin(), affix.list().end(), [&](const Value& item) { return has_affix(text, item, start); });
  }
  if (!affix.is_text()) fail_template(cat(start ? "startswith" : "endswith", " needs text, not ", affix.kind()));
  return start ? text.starts_with(affix.text()) : text.ends_with(affix.text());
}
bool all_of_class(const std::string& text, int (*is)(int)) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) { return is(static_cast<unsigned char>(c)) != 0; });
}

using TextMethod = Value (*)(const std::string&, const Arguments&);
const std::map<std::string, TextMethod, std::less<>>& text_methods() {
  using S = const std::string&;
  using A = const Arguments&;
  static const std::map<std::string, TextMethod, std::less<>> all{
      {"strip", [](S t, A a) { return Value(stripped(t, strip_set(a), true, true)); }},
      {"lstrip", [](S t, A a) { return Value(stripped(t, strip_set(a), true, false)); }},
      {"rstrip", [](S t, A a) { return Value(stripped(t, strip_set(a), false, true)); }},
      {"split", [](S t, A a) { return Value(split(t, a)); }},
      {"rsplit", [](S t, A a) { return Value(rsplit(t, a)); }},
      {"splitlines", [](S t, A) { return Value(lines_of(t)); }},
      {"upper", [](S t, A) { return Value(upper(t)); }},
      {"lower", [](S t, A) { return Value(lower(t)); }},
      {"title", [](S t, A) { return Value(titled(t)); }},
      {"capitalize", [](S t, A) { return Value(capitalized(t)); }},
      {"isdigit", [](S t, A) { return Value(all_of_class(t, std::isdigit)); }},
      {"isalpha", [](S t, A) { return Value(all_of_class(t, std::isalpha)); }},
      {"isspace", [](S t, A) { return Value(all_of_class(t, std::isspace)); }},
      {"startswith",
       [](S t, A a) {
         const Value* affix = a.find(0, "prefix");
         return Value(has_affix(t, affix == nullptr ? Value() : *affix, true));
       }},
      {"endswith",
       [](S t, A a) {
         const Value* affix = a.find(0, "suffix");
         return Value(has_affix(t, affix == nullptr ? Value() : *affix, false));
       }},
      {"removeprefix",
       [](S t, A a) {
         const std::string& affix = text_argument(a, 0, "prefix", "removeprefix");
         return Value(t.starts_with(affix) ? t.substr(affix.size()) : t);
       }},
      {"removesuffix",
       [](S t, A a) {
         const std::string& affix = text_argument(a, 0, "suffix", "removesuffix");
         return Value(t.ends_with(affix) ? t.substr(0, t.size() - affix.size()) : t);
       }},
      {"replace",
       [](S t, A a) {
         return Value(
             replaced(t, text_argument(a, 0, "old", "replace"), text_argument(a, 1, "new", "replace"), number_argument(a, 2, "count", -1)));
       }},
      {"find",
       [](S t, A a) {
         const size_t found = t.find(text_argument(a, 0, "sub", "find"));
         return Value(found == std::string::npos ? int64_t{-1} : std::ssize(characters(std::string_view(t).substr(0, found))));
       }},
      {"count",
       [](S t, A a) {
         const std::string& part = text_argument(a, 0, "sub", "count");
         int64_t count = 0;
         for (size_t at = t.find(part); !part.empty() && at != std::string::npos; at = t.find(part, at + part.size())) ++count;
         return Value(count);
       }},
      {"join",
       [](S t, A a) {
         std::string made;
         bool first = true;
         const Value* items = a.find(0, "iterable");
         for (const Value& item : items == nullptr ? List() : items->elements()) {
           if (!item.is_text()) fail_template(cat("join needs texts, not ", item.kind()));
           made += (std::exchange(first, false) ? "" : t) + item.text();
           check_size(made.size());
         }
         return Value(made);
       }},
  };
  return all;
}

Value dict_method(const Value& value, const std::string& name) {
  const auto method = [&](auto call) { return Value(Function{name, [value, call](const Arguments& a) { return call(value, a); }}); };
  using V = const Value&;
  using A = const Arguments&;
  if (name == "items")
    return method([](V v, A) {
      List made;
      for (const auto& [key, item] : v.dict()) made.push_back(Value::tuple({key, item}));
      return Value(made);
    });
  if (name == "keys") return method([](V v, A) { return Value(v.elements()); });
  if (name == "values")
    return method([](V v, A) {
      List made;
      for (const auto& [key, item] : v.dict()) made.push_back(item);
      return Value(made);
    });
  if (name == "get")
    return method([](V v, A a) {
      const Value* found = v.find(text_argument(a, 0, "key", "get"));
      if (found != nullptr) return *found;
      const Value* missing = a.find(1, "default");
      return missing == nullptr ? Value() : *missing;
    });
  return Undefined{name};
}

// ---- filters

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
      bool known = true;
      passes = apply_test(test, subject, {List(a.values.begin() + static_cast<std::ptrdiff_t>(at) + 1, a.values.end()), {}}, known);
      if (!known) fail_template(cat("the test '", test, "' is not supported"));
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
    bool known = true;
    made.push_back(apply_filter(filter, element, {List(a.values.begin() + 1, a.values.end()), a.named}, known));
    if (!known) fail_template(cat("the filter '", filter, "' is not supported"));
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
  Dict items = value.dict();
  const bool exact = flag_argument(a, 0, "case_sensitive", false);
  std::stable_sort(items.begin(), items.end(),
                   [&](const auto& x, const auto& y) { return exact ? x.first < y.first : lower(x.first) < lower(y.first); });
  List made;
  for (auto& [key, item] : items) made.push_back(Value::tuple({key, item}));
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
  const double scale = std::pow(10, static_cast<double>(number_argument(a, 0, "precision", 0)));
  const Value* method = a.find(1, "method");
  const std::string how = method != nullptr ? method->str() : "common";
  const double x = value.real() * scale;
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
  const Value* attribute = a.find(0, "attribute");
  double real = 0;
  int64_t whole = 0;
  bool exact = true;
  for (const Value& element : value.elements()) {
    const Value item = attribute != nullptr && attribute->is_text() ? path_of(element, attribute->text()) : element;
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
  const long long made = std::strtoll(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' ? static_cast<int64_t>(made) : number_argument(a, 0, "default", 0);
}
Value to_real(const Value& value, const Arguments&) {
  if (value.is_number()) return value.real();
  char* end = nullptr;
  const std::string text = value.is_text() ? stripped(value.text(), kWhiteSpace, true, true) : std::string();
  const double made = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' ? made : 0.0;
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
  return dict_method(value, "items").function().call(a);
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
      {"attr", [](V v, A a) { return path_of(v, text_argument(a, 0, "name", "attr")); }},
  };
  return all;
}

const Value& other_operand(const Arguments& a) {
  if (a.values.empty()) fail_template("the test needs an argument");
  return a.values.front();
}
int64_t whole_number(const Value& v) {
  if (!v.is_int() && !v.is_bool()) fail_template(cat("the test needs a whole number, not ", v.kind()));
  return v.integer();
}

const std::map<std::string, TestFunction, std::less<>>& tests() {
  using V = const Value&;
  using A = const Arguments&;
  constexpr TestFunction kEqual = [](V v, A a) { return equal(v, other_operand(a)); };
  constexpr TestFunction kLess = [](V v, A a) { return less(v, other_operand(a)); };
  constexpr TestFunction kGreater = [](V v, A a) { return less(other_operand(a), v); };
  constexpr TestFunction kUnequal = [](V v, A a) { return !equal(v, other_operand(a)); };
  constexpr TestFunction kAtMost = [](V v, A a) { return !less(other_operand(a), v); };
  constexpr TestFunction kAtLeast = [](V v, A a) { return !less(v, other_operand(a)); };
  static const std::map<std::string, TestFunction, std::less<>> all{
      {"defined", [](V v, A) { return !v.is_undefined(); }},
      {"undefined", [](V v, A) { return v.is_undefined(); }},
      {"none", [](V v, A) { return v.is_none(); }},
      {"string", [](V v, A) { return v.is_text(); }},
      {"number", [](V v, A) { return v.is_number(); }},
      {"integer", [](V v, A) { return v.is_int(); }},
      {"float", [](V v, A) { return v.is_float(); }},
      {"boolean", [](V v, A) { return v.is_bool(); }},
      {"true", [](V v, A) { return v.is_bool() && v.truth(); }},
      {"false", [](V v, A) { return v.is_bool() && !v.truth(); }},
      {"mapping", [](V v, A) { return v.is_dict() && !v.is_mutable(); }},
      {"sequence", [](V v, A) { return v.is_list() || v.is_text() || v.is_dict() || v.is_undefined(); }},
      {"iterable", [](V v, A) { return v.is_list() || v.is_text() || v.is_dict() || v.is_undefined(); }},
      {"callable", [](V v, A) { return v.is_function(); }},
      {"lower", [](V v, A) { return lower(v.str()) == v.str(); }},
      {"upper", [](V v, A) { return upper(v.str()) == v.str(); }},
      {"odd", [](V v, A) { return whole_number(v) % 2 != 0; }},
      {"even", [](V v, A) { return whole_number(v) % 2 == 0; }},
      {"divisibleby",
       [](V v, A a) {
         const int64_t by = whole_number(other_operand(a));
         if (by == 0) fail_template("divisibleby(0)");
         return by == -1 || whole_number(v) % by == 0;
       }},
      {"in", [](V v, A a) { return contains(v, other_operand(a)); }},
      {"sameas", [](V v, A a) { return v.kind() == other_operand(a).kind() && equal(v, other_operand(a)); }},
      {"equalto", kEqual},
      {"==", kEqual},
      {"!=", kUnequal},
      {"<", kLess},
      {">", kGreater},
      {"<=", kAtMost},
      {">=", kAtLeast},
      {"eq", kEqual},
      {"ne", kUnequal},
      {"lt", kLess},
      {"lessthan", kLess},
      {"gt", kGreater},
      {"greaterthan", kGreater},
      {"le", kAtMost},
      {"ge", kAtLeast},
  };
  return all;
}

// ---- functions

Value range(const Arguments& a) {
  const int64_t count = std::ssize(a.values);
  const int64_t begin = count > 1 ? number_argument(a, 0, "start", 0) : 0;
  const int64_t end = number_argument(a, count > 1 ? 1 : 0, "stop", 0), step = number_argument(a, 2, "step", 1);
  constexpr int64_t kMost = 1'000'000;
  if (step == 0) fail_template("range: the step is 0");
  List made;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    made.emplace_back(i);
    if (std::ssize(made) > kMost) fail_template("range: too many numbers");
  }
  return made;
}

Value now(const Arguments& a) {
  const std::string& format = text_argument(a, 0, "format", "strftime_now");
  const std::time_t time = std::time(nullptr);
  std::tm local{};
  localtime_r(&time, &local);
  std::array<char, 256> text{};
  const size_t length = std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (length == 0 && !format.empty()) fail_template(cat("strftime_now: the format ", format, " is too long"));
  return std::string(text.data(), length);
}

Dict merged(const Arguments& a) {
  Dict made;
  for (const Value& from : a.values) {
    if (!from.is_dict()) fail_template(cat("expected a dictionary, not ", from.kind()));
    made = from.dict();
  }
  for (const auto& named : a.named) {
    std::erase_if(made, [&](const auto& item) { return item.first == named.first; });
    made.push_back(named);
  }
  return made;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, bool& known) {
  const auto found = filters().find(name);
  known = found != filters().end();
  return known ? found->second(value, arguments) : Value();
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, bool& known) {
  const auto found = tests().find(name);
  known = found != tests().end();
  return known && found->second(value, arguments);
}

Value method_of(const Value& value, const std::string& name) {
  if (value.is_dict()) return dict_method(value, name);
  if (!value.is_text()) return Undefined{name};
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return Undefined{name};
  return Function{name, [text = value.text(), method = found->second](const Arguments& a) { return method(text, a); }};
}

Dict global_functions() {
  return {{"range", Function{"range", range}},
          {"dict", Function{"dict", [](const Arguments& a) { return Value(merged(a)); }}},
          {"namespace", Function{"namespace", [](const Arguments& a) { return Value::mutable_dict(merged(a)); }}},
          {"raise_exception", Function{"raise_exception",
                                       [](const Arguments& a) -> Value {
                                         const Value* message = a.find(0, "message");
                                         fail_template(
                                             cat("the template refuses the conversation: ", message == nullptr ? "" : message->str()));
                                       }}},
          {"strftime_now", Function{"strftime_now", now}}};
}

}  // namespace galley::text::jinja
