// Tests and functions of chat templates.

#include <array>
#include <ctime>
#include <map>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"
#include "libcore/text/jinja_functions.h"

namespace galley::text::jinja {
namespace {

using TestFunction = bool (*)(const Value&, const Arguments&);

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
      {"sameas",
       [](V v, A a) {
         const Value& other = other_operand(a);
         return v.kind() == other.kind() && v.is_int() == other.is_int() && v.is_bool() == other.is_bool() && equal(v, other);
       }},
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

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found != tests().end()) return found->second(value, arguments);
  std::string known;
  for (const auto& [each, function] : tests()) known += (known.empty() ? "" : ", ") + each;
  fail_template(cat("the test '", name, "' is not supported; known: ", known));
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
