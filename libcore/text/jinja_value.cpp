#include "libcore/text/jinja_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"

namespace galley::text::jinja {
namespace {

/// As Python's repr of a float: the shortest text that reads back, with an exponent below 1e-4 and from 1e16 on.
std::string float_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  const double size = std::abs(x);
  const auto form = size != 0 && (size < 1e-4 || size >= 1e16) ? std::chars_format::scientific : std::chars_format::fixed;
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), x, form).ptr;
  std::string result(text.data(), end);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    switch (c) {
      case '\n': result += "\\n"; break;
      case '\r': result += "\\r"; break;
      case '\t': result += "\\t"; break;
      case '\\': result += "\\\\"; break;
      default:
        if (c == quote) result += '\\';
        result += c;
    }
  }
  return result + quote;
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The parts between brackets, on one line or on lines of their own, as json.dumps.
std::string bracketed(char open, const std::vector<std::string>& parts, char close, int64_t indent, int64_t depth) {
  if (parts.empty()) return {open, close};
  std::string result(1, open);
  const auto line = [&](int64_t level) {
    return indent < 0 ? std::string() : "\n" + std::string(static_cast<size_t>(indent * level), ' ');
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) result += indent < 0 ? ", " : ",";
    result += line(depth + 1) + parts[i];
  }
  return result + line(depth) + close;
}

std::string dumped(const Value& v, int64_t indent, bool sort_keys, int64_t depth) {
  if (v.is_none()) return "null";
  if (v.is_bool()) return v.truth() ? "true" : "false";
  if (v.is_text()) return json_text(v.text());
  if (v.is_float() && std::isnan(v.real())) return "NaN";
  if (v.is_float() && std::isinf(v.real())) return v.real() > 0 ? "Infinity" : "-Infinity";
  if (v.is_number()) return v.str();
  std::vector<std::string> parts;
  if (v.is_list()) {
    for (const Value& item : v.list()) parts.push_back(dumped(item, indent, sort_keys, depth + 1));
    return bracketed('[', parts, ']', indent, depth);
  }
  if (!v.is_dict()) fail_template(cat("tojson: ", v.kind(), " has no JSON form"));
  Dict sorted = v.dict();
  if (sort_keys) std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [key, item] : sorted) parts.push_back(json_text(key) + ": " + dumped(item, indent, sort_keys, depth + 1));
  return bracketed('{', parts, '}', indent, depth);
}

}  // namespace

void fail_template(std::string message) { throw Error(ErrorCode::kInput, std::move(message)); }

void check_size(size_t size) {
  constexpr size_t kMost = size_t{16} << 20;  // longer than any context
  if (size > kMost) fail_template("a text or a list of the template is too long");
}

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Value::tuple(List v) {
  Value made(std::move(v));
  made.tuple_ = true;
  return made;
}

Value Value::mutable_dict(Dict v) {
  Value made(std::move(v));
  made.mutable_ = true;
  return made;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.push_back(from_json(item));
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(key, from_json(item));
    return dict;
  }
  return {};
}

int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  return is_int() ? std::get<int64_t>(data_) : static_cast<int64_t>(std::get<double>(data_));
}
double Value::real() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }

bool Value::truth() const {
  if (is_bool()) return std::get<bool>(data_);
  if (is_int()) return std::get<int64_t>(data_) != 0;
  if (is_float()) return std::get<double>(data_) != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return mutable_ || !dict().empty();
  return is_function();
}

std::string Value::str() const {
  if (is_text()) return text();
  if (is_undefined()) return "";
  return repr();
}

std::string Value::repr() const {
  if (is_none()) return "None";
  if (is_undefined()) return "Undefined";
  if (is_bool()) return truth() ? "True" : "False";
  if (is_int()) return std::to_string(integer());
  if (is_float()) return float_text(real());
  if (is_text()) return quoted(text());
  std::string result;
  if (is_list()) {
    for (const Value& item : list()) result += (result.empty() ? "" : ", ") + item.repr();
    if (tuple_) return "(" + result + (list().size() == 1 ? ",)" : ")");
    return "[" + result + "]";
  }
  if (is_dict()) {
    for (const auto& [key, item] : dict()) result += (result.empty() ? "" : ", ") + quoted(key) + ": " + item.repr();
    return "{" + result + "}";
  }
  return "<function " + function().name + ">";
}

std::string Value::json(int64_t indent, bool sort_keys) const { return dumped(*this, indent, sort_keys, 0); }

std::string_view Value::kind() const {
  if (is_undefined()) return "an undefined name";
  if (is_none()) return "none";
  if (is_bool()) return "a boolean";
  if (is_number()) return "a number";
  if (is_text()) return "a text";
  if (is_list()) return "a list";
  return is_dict() ? "a dictionary" : "a function";
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

List Value::elements() const {
  if (is_undefined()) return {};
  if (is_list()) return list();
  List made;
  if (is_dict()) {
    for (const auto& [key, value] : dict()) made.emplace_back(key);
  } else if (is_text()) {
    for (std::string& character : characters(text())) made.emplace_back(std::move(character));
  } else {
    fail_template(cat(kind(), " is not a sequence"));
  }
  return made;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.is_float() || b.is_float() ? a.real() == b.real() : a.integer() == b.integer();
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_list() && b.is_list())
    return a.is_tuple() == b.is_tuple() && std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), equal);
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    return std::all_of(a.dict().begin(), a.dict().end(), [&](const auto& item) {
      const Value* other = b.find(item.first);
      return other != nullptr && equal(item.second, *other);
    });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.real() < b.real();
  if (a.is_text() && b.is_text()) return a.text() < b.text();
  if (a.is_list() && b.is_list())
    return std::lexicographical_compare(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), less);
  fail_template(cat(a.kind(), " and ", b.kind(), " have no order"));
}

bool contains(const Value& a, const Value& b) {
  if (b.is_text()) {
    if (!a.is_text()) fail_template(cat("`in` needs text on its left for a text, not ", a.kind()));
    return b.text().find(a.text()) != std::string::npos;
  }
  if (b.is_dict()) return a.is_text() && b.find(a.text()) != nullptr;
  const List elements = b.elements();
  return std::any_of(elements.begin(), elements.end(), [&](const Value& item) { return equal(a, item); });
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> made;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    while (end < text.size() && end < i + 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    made.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return made;
}

}  // namespace galley::text::jinja
