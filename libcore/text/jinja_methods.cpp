// Methods of texts and dictionaries in chat templates.

#include <algorithm>
#include <cctype>
#include <map>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"
#include "libcore/text/jinja_functions.h"

namespace galley::text::jinja {
namespace {

std::string mapped(std::string text, int (*map)(int)) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(map(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

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

namespace {

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

}  // namespace

Value method_of(const Value& value, const std::string& name) {
  if (value.is_dict()) return dict_method(value, name);
  if (!value.is_text()) return Undefined{name};
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) return Undefined{name};
  return Function{name, [text = value.text(), method = found->second](const Arguments& a) { return method(text, a); }};
}

}  // namespace galley::text::jinja
