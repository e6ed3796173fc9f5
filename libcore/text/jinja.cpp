#include "libcore/text/jinja.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/text/jinja_lex.h"
#include "libcore/text/jinja_parse.h"

namespace galley::text::jinja {
namespace {

constexpr int64_t kMostSteps = 5'000'000;  // expressions and statements of one text
constexpr int kDeepestCalls = 100;         // macros that call each other

/// Names of one block of statements, and those around it.
struct Scope {
  Scope* outer = nullptr;
  std::map<std::string, Value, std::less<>> names = {};

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      const auto found = scope->names.find(name);
      if (found != scope->names.end()) return &found->second;
    }
    return nullptr;
  }
};

enum class Flow { kNext, kBreak, kContinue };

int64_t whole(const Value& v, std::string_view what) {
  if (!v.is_int() && !v.is_bool()) fail_template(cat(what, " must be a whole number, is ", v.kind()));
  return v.integer();
}

Value item_of(const Value& value, const Value& key) {
  if (value.is_undefined()) fail_template(cat("'", value.undefined_name(), "' is undefined"));
  if (value.is_dict()) {
    if (key.is_text()) {
      const Value* found = value.find(key.text());
      return found != nullptr ? *found : Value(Undefined{key.text()});
    }
    return Undefined{key.str()};
  }
  if (value.is_list() || value.is_text()) {
    if (key.is_text()) return method_of(value, key.text());
    const List elements = value.elements();
    const int64_t size = std::ssize(elements);
    int64_t index = whole(key, "an index");
    if (index < 0) index += size;
    return index >= 0 && index < size ? elements[static_cast<size_t>(index)] : Value(Undefined{cat("item ", key.str())});
  }
  return Undefined{key.str()};
}

Value attribute_of(const Value& value, const std::string& name) {
  if (value.is_undefined()) fail_template(cat("'", value.undefined_name(), "' is undefined, so it has no '", name, "'"));
  if (value.is_dict()) {
    // As in Jinja: attributes of the object first, then its items.
    Value method = value.is_mutable() ? Value(Undefined{name}) : method_of(value, name);
    if (!method.is_undefined()) return method;
    const Value* found = value.find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  return method_of(value, name);
}

/// Python's slice of a list or text.
Value slice_of(const Value& value, const std::optional<int64_t>& first, const std::optional<int64_t>& last, int64_t step) {
  if (step == 0) fail_template("the step of a slice is 0");
  if (!value.is_list() && !value.is_text()) fail_template(cat(value.kind(), " has no slices"));
  const List elements = value.elements();
  const int64_t size = std::ssize(elements), low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bounded = [&](const std::optional<int64_t>& at, int64_t missing) {
    if (!at) return missing;
    return std::clamp(*at < 0 ? *at + size : *at, low, high);
  };
  const int64_t begin = bounded(first, step > 0 ? low : high), end = bounded(last, step > 0 ? high : low);
  List made;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) made.push_back(elements[static_cast<size_t>(i)]);
  if (value.is_list()) return value.is_tuple() ? Value::tuple(std::move(made)) : Value(std::move(made));
  std::string text;
  for (const Value& character : made) text += character.text();
  return text;
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") return a.str() + b.str();
  if (op == "+" && a.is_text() && b.is_text()) return a.text() + b.text();
  if (op == "+" && a.is_list() && b.is_list()) {
    List made = a.list();
    made.insert(made.end(), b.list().begin(), b.list().end());
    return a.is_tuple() && b.is_tuple() ? Value::tuple(std::move(made)) : Value(std::move(made));
  }
  if (op == "*" && (a.is_text() || a.is_list()) && b.is_int()) {
    const int64_t count = std::max<int64_t>(0, b.integer());
    const auto size = static_cast<int64_t>(a.is_text() ? a.text().size() : a.list().size());
    check_size(static_cast<size_t>(size > 0 ? std::min<int64_t>(count, int64_t{1} << 40) * size : 0));
    List list;
    std::string text;
    for (int64_t i = 0; i < count; ++i) {
      if (a.is_text()) text += a.text();
      if (a.is_list()) list.insert(list.end(), a.list().begin(), a.list().end());
    }
    return a.is_text() ? Value(text) : Value(list);
  }
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) fail_template(cat("'", v->undefined_name(), "' is undefined"));
  }
  if (!a.is_number() || !b.is_number()) fail_template(cat("'", op, "' does not join ", a.kind(), " and ", b.kind()));
  const bool real = a.is_float() || b.is_float();
  const double x = a.real(), y = b.real();
  if ((op == "/" || op == "//" || op == "%") && y == 0) fail_template("division by zero");
  if (op == "/") return x / y;
  if (op == "**") {
    const double power = std::pow(x, y);
    if (real || y < 0) return power;
    if (std::abs(power) >= 0x1p53) fail_template("a power is too large");
    return static_cast<int64_t>(power);
  }
  if (real) {
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    return op == "//" ? std::floor(x / y) : x - y * std::floor(x / y);
  }
  const int64_t m = a.integer(), n = b.integer();
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(m, n, &result);
  if (op == "-") overflow = __builtin_sub_overflow(m, n, &result);
  if (op == "*") overflow = __builtin_mul_overflow(m, n, &result);
  if ((op == "//" || op == "%") && n == -1) {
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, m, &result);
  } else if (op == "//") {
    result = floor_divide(m, n);
  } else if (op == "%") {
    result = m - n * floor_divide(m, n);
  }
  if (overflow) fail_template("a number is too large");
  return result;
}

bool compares(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  if (op == "<=") return !less(b, a);
  if (op == ">=") return !less(a, b);
  if (b.is_undefined()) return op == "not in";
  return contains(a, b) == (op == "in");
}

class Renderer {
 public:
  Renderer(const std::string& name, const Dict& variables) : name_(name) {
    for (auto& [key, value] : global_functions()) globals_.names.insert_or_assign(key, std::move(value));
    for (const auto& [key, value] : variables) globals_.names.insert_or_assign(key, value);
  }

  std::string run(const Block& block) {
    Scope scope{&globals_};
    std::string out;
    execute(block, scope, out);
    return out;
  }

 private:
  /// Adds the line to what fails within.
  template <class Call>
  auto at(int line, const Call& call) {
    if (++steps_ > kMostSteps) fail_at(name_, line, "the template does not end");
    try {
      return call();
    } catch (const Error& error) {
      if (error.place().line > 0) throw;
      fail_at(name_, line, error.message());
    }
  }

  Flow execute(const Block& block, Scope& scope, std::string& out) {
    for (const Statement& statement : block) {
      const Flow flow = at(statement.line, [&] {
        const Flow next = execute(statement, scope, out);
        check_size(out.size());
        return next;
      });
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& s, Scope& scope, std::string& out) {
    using enum Statement::Kind;
    switch (s.kind) {
      case kText: out += s.text; break;
      case kPrint: out += evaluate(*s.value, scope).str(); break;
      case kIf:
        for (const auto& [condition, block] : s.branches) {
          if (condition == nullptr || evaluate(*condition, scope).truth()) return execute(block, scope, out);
        }
        break;
      case kFor: return loop(s, scope, out);
      case kSet: set(s, scope); break;
      case kSetBlock:
      case kFilter: {
        Scope inner{&scope};
        std::string text;
        execute(s.block, inner, text);
        const Value made = s.value == nullptr ? Value(text) : filtered(*s.value, text, scope);
        if (s.kind == kFilter) {
          out += made.str();
        } else {
          assign(s, made, scope);
        }
        break;
      }
      case kMacro: define(s, scope); break;
      case kBlock: return execute(s.block, scope, out);
      case kBreak: return Flow::kBreak;
      case kContinue: return Flow::kContinue;
    }
    return Flow::kNext;
  }

  static void unpack(const std::vector<std::string>& names, const Value& value, Scope& scope) {
    if (names.size() == 1) {
      scope.names.insert_or_assign(names[0], value);
      return;
    }
    const List elements = value.elements();
    if (elements.size() != names.size()) fail_template(cat(names.size(), " names for ", elements.size(), " values"));
    for (size_t i = 0; i < names.size(); ++i) scope.names.insert_or_assign(names[i], elements[i]);
  }

  void set(const Statement& s, Scope& scope) { assign(s, evaluate(*s.value, scope), scope); }
  static void assign(const Statement& s, const Value& value, Scope& scope) {
    if (s.attribute.empty()) return unpack(s.names, value, scope);
    const Value* found = scope.find(s.names[0]);
    if (found == nullptr || !found->is_mutable())
      fail_template(cat("'", s.names[0], "' is not a namespace, so 'set' cannot change '", s.attribute, "'"));
    Value space = *found;
    for (auto& [key, old] : space.dict()) {
      if (key != s.attribute) continue;
      old = value;
      return;
    }
    space.dict().emplace_back(s.attribute, value);
  }

  Flow loop(const Statement& s, Scope& scope, std::string& out) {
    const Value source = evaluate(*s.value, scope);
    List elements = source.elements();
    if (s.condition != nullptr) {
      List kept;
      for (const Value& element : elements) {
        Scope inner{&scope};
        unpack(s.names, element, inner);
        if (evaluate(*s.condition, inner).truth()) kept.push_back(element);
      }
      elements = std::move(kept);
    }
    if (elements.empty()) {
      Scope inner{&scope};
      return execute(s.otherwise, inner, out);
    }
    const int64_t size = std::ssize(elements);
    for (int64_t i = 0; i < size; ++i) {
      Scope inner{&scope};
      unpack(s.names, elements[static_cast<size_t>(i)], inner);
      inner.names.insert_or_assign("loop", loop_variable(elements, i));
      if (execute(s.block, inner, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }
  static Value loop_variable(const List& elements, int64_t i) {
    const int64_t size = std::ssize(elements);
    const auto neighbor = [&](int64_t at, const char* name) {
      return at >= 0 && at < size ? elements[static_cast<size_t>(at)] : Value(Undefined{name});
    };
    const auto cycle = [i](const Arguments& arguments) {
      if (arguments.values.empty()) fail_template("loop.cycle needs values");
      return arguments.values[static_cast<size_t>(i) % arguments.values.size()];
    };
    return Value::mutable_dict({{"index", i + 1},
                                {"index0", i},
                                {"revindex", size - i},
                                {"revindex0", size - i - 1},
                                {"first", i == 0},
                                {"last", i + 1 == size},
                                {"length", size},
                                {"previtem", neighbor(i - 1, "loop.previtem")},
                                {"nextitem", neighbor(i + 1, "loop.nextitem")},
                                {"cycle", Function{"cycle", cycle}}});
  }

  /// A macro sees the names at the top of the template as they are when it is called.
  void define(const Statement& s, Scope& scope) {
    Scope* outer = &scope;
    while (outer->outer != nullptr && outer->outer != &globals_) outer = outer->outer;
    const auto call = [this, &s, outer](const Arguments& arguments) -> Value {
      if (++calls_ > kDeepestCalls) fail_template(cat("macro ", s.text, ": calls are nested too deeply"));
      Scope inner{outer};
      if (arguments.values.size() > s.names.size())
        fail_template(cat("macro ", s.text, " takes ", counted(std::ssize(s.names), "argument"), ", not ", arguments.values.size()));
      for (const auto& [key, value] : arguments.named) {
        if (std::find(s.names.begin(), s.names.end(), key) == s.names.end())
          fail_template(cat("macro ", s.text, " has no argument '", key, "'"));
      }
      for (size_t i = 0; i < s.names.size(); ++i) {
        const Value* given = arguments.find(i, s.names[i]);
        Value value = Undefined{s.names[i]};
        if (given != nullptr) {
          value = *given;
        } else if (s.defaults[i] != nullptr) {
          value = evaluate(*s.defaults[i], inner);
        }
        inner.names.insert_or_assign(s.names[i], value);
      }
      std::string text;
      execute(s.block, inner, text);
      --calls_;
      return text;
    };
    scope.names.insert_or_assign(s.text, Value(Function{s.text, call}));
  }

  Value evaluate(const Expression& e, Scope& scope) {
    return at(e.line, [&] {
      Value made = evaluated(e, scope);
      if (made.is_text()) check_size(made.text().size());
      if (made.is_list()) check_size(made.list().size());
      return made;
    });
  }
  Value part(const Expression& e, size_t i, Scope& scope) { return evaluate(*e.parts[i], scope); }

  Value evaluated(const Expression& e, Scope& scope) {
    using enum Expression::Kind;
    switch (e.kind) {
      case kLiteral: return e.literal;
      case kName: {
        const Value* found = scope.find(e.name);
        return found != nullptr ? *found : Value(Undefined{e.name});
      }
      case kList: {
        List made;
        for (size_t i = 0; i < e.parts.size(); ++i) made.push_back(part(e, i, scope));
        return e.name == "tuple" ? Value::tuple(std::move(made)) : Value(std::move(made));
      }
      case kDict: return dict(e, scope);
      case kAttribute: return attribute_of(part(e, 0, scope), e.name);
      case kItem: return item_of(part(e, 0, scope), part(e, 1, scope));
      case kSlice: {
        const auto bound = [&](size_t i) -> std::optional<int64_t> {
          if (e.parts[i] == nullptr) return std::nullopt;
          const Value v = part(e, i, scope);
          return v.is_none() ? std::nullopt : std::optional(whole(v, "a bound of a slice"));
        };
        return slice_of(part(e, 0, scope), bound(1), bound(2), bound(3).value_or(1));
      }
      case kCall: {
        const Value callee = part(e, 0, scope);
        if (callee.is_undefined()) fail_template(cat("'", callee.undefined_name(), "' is not a function that is supported here"));
        if (!callee.is_function()) fail_template(cat(callee.kind(), " cannot be called"));
        return callee.function().call(arguments(e, scope));
      }
      case kFilter: return filtered(e, part(e, 0, scope), scope);
      case kTest: return tested(e, scope);
      case kUnary: return unary(e, scope);
      case kBinary: return arithmetic(e.name, part(e, 0, scope), part(e, 1, scope));
      case kComparison: return comparison(e, scope);
      case kAnd: {
        const Value left = part(e, 0, scope);
        return left.truth() ? part(e, 1, scope) : left;
      }
      case kOr: {
        const Value left = part(e, 0, scope);
        return left.truth() ? left : part(e, 1, scope);
      }
      case kConditional:
        if (part(e, 1, scope).truth()) return part(e, 0, scope);
        return e.parts[2] == nullptr ? Value(Undefined{"the value of an if without else"}) : part(e, 2, scope);
    }
    GALLEY_ASSERT(false);
  }

  Value dict(const Expression& e, Scope& scope) {
    Dict made;
    for (size_t i = 0; i < e.parts.size(); i += 2) {
      const Value key = part(e, i, scope);
      if (!key.is_text()) fail_template(cat("a key of a dictionary must be text, is ", key.kind()));
      Value item = part(e, i + 1, scope);
      // As in Python: a key that occurs again keeps its place and takes the last value.
      const auto same = std::find_if(made.begin(), made.end(), [&](const auto& other) { return other.first == key.text(); });
      if (same != made.end()) {
        same->second = std::move(item);
      } else {
        made.emplace_back(key.text(), std::move(item));
      }
    }
    return made;
  }
  Value comparison(const Expression& e, Scope& scope) {
    Value left = part(e, 0, scope);
    for (size_t i = 0; i < e.names.size(); ++i) {
      Value right = part(e, i + 1, scope);
      if (!compares(e.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  Value unary(const Expression& e, Scope& scope) {
    const Value v = part(e, 0, scope);
    if (e.name == "not") return !v.truth();
    if (!v.is_number()) fail_template(cat("'", e.name, "' needs a number, not ", v.kind()));
    if (e.name == "+") return v;
    return arithmetic("-", Value(int64_t{0}), v);
  }

  Arguments arguments(const Expression& e, Scope& scope) {
    Arguments made;
    for (size_t i = 1; i < e.parts.size(); ++i) made.values.push_back(part(e, i, scope));
    for (const auto& [name, value] : e.named) made.named.emplace_back(name, evaluate(*value, scope));
    return made;
  }
  /// Of an expression, or of the text of a block: the innermost filter of `e` has none.
  Value filtered(const Expression& e, const Value& value, Scope& scope) {
    const bool chained = e.parts[0] != nullptr && is_block_filter(*e.parts[0]);
    const Value input = chained ? filtered(*e.parts[0], value, scope) : value;
    return apply_filter(e.name, input, arguments(e, scope));
  }
  /// Whether a filter is one of a block's chain.
  static bool is_block_filter(const Expression& e) {
    return e.kind == Expression::Kind::kFilter && (e.parts[0] == nullptr || is_block_filter(*e.parts[0]));
  }
  Value tested(const Expression& e, Scope& scope) { return apply_test(e.name, part(e, 0, scope), arguments(e, scope)); }

  const std::string& name_;
  Scope globals_;
  int64_t steps_ = 0;
  int calls_ = 0;
};

}  // namespace

struct Template::Body {
  std::string name;
  Block block;
};

Template::Template(std::string_view source, std::string name) {
  auto body = std::make_unique<Body>();
  body->name = std::move(name);
  body->block = parse_template(source, body->name);
  body_ = std::move(body);
}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

std::string Template::render(const Dict& variables) const { return Renderer(body_->name, variables).run(body_->block); }

}  // namespace galley::text::jinja
