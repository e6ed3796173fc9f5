#include "libcore/onnx/expression.h"

#include <algorithm>
#include <charconv>

#include "libcore/base/error.h"

namespace galley {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  OnnxExpression whole() {
    OnnxExpression result = expression();
    check(at_ == text_.size(), "text after the expression");
    return result;
  }

 private:
  void check(bool holds, std::string_view what) const { GALLEY_ASSERT(holds, what, " at ", at_, " of '", text_, "'"); }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    check(at_ > begin, "no name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  OnnxExpression expression() {
    skip_spaces();
    check(at_ < text_.size(), "no expression");
    OnnxExpression e;
    if (take('$')) {
      e.kind = OnnxExpression::Kind::kOption;
      e.name = word();
    } else if (is_letter(text_[at_])) {
      named(e);
    } else {
      e.kind = OnnxExpression::Kind::kNumber;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), e.number);
      check(error == std::errc(), "no number");
      at_ = static_cast<size_t>(end - text_.data());
    }
    return e;
  }

  /// An input or an operator.
  void named(OnnxExpression& e) {
    e.name = word();
    if (e.name.size() == 1) {
      constexpr std::string_view kInputs = "abc";
      e.input = e.name == "x" ? 0 : kInputs.find(e.name);
      check(e.input != std::string_view::npos, "no input");
      return;
    }
    e.kind = OnnxExpression::Kind::kOperator;
    if (take('[')) {
      do {
        skip_spaces();
        std::string attribute = word();
        check(take('='), "no =");
        e.attributes.emplace_back(std::move(attribute), expression());
      } while (take(','));
      check(take(']'), "no ]");
    }
    check(take('('), "no (");
    do {
      e.arguments.push_back(expression());
    } while (take(','));
    check(take(')'), "no )");
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

OnnxExpression::OnnxExpression() = default;
OnnxExpression::OnnxExpression(const OnnxExpression&) = default;
OnnxExpression::OnnxExpression(OnnxExpression&&) noexcept = default;
OnnxExpression& OnnxExpression::operator=(const OnnxExpression&) = default;
OnnxExpression& OnnxExpression::operator=(OnnxExpression&&) noexcept = default;
OnnxExpression::~OnnxExpression() = default;

bool OnnxExpression::stands_alone() const {
  if (kind != Kind::kOperator) return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind != Kind::kInput || arguments[i].input != i) return false;
  }
  return std::all_of(attributes.begin(), attributes.end(), [](const auto& attribute) { return attribute.second.kind == Kind::kOption; });
}

OnnxExpression parse_onnx_expression(std::string_view text) { return Parser(text).whole(); }

}  // namespace galley
