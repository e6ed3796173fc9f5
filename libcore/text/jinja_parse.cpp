#include "libcore/text/jinja_parse.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/text/jinja_lex.h"

namespace galley::text::jinja {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepest = 200;  // nested expressions and blocks: beyond any template, below the stack

/// The expressions of one tag.
class Words {
 public:
  Words(const Piece& piece, const std::string& name) : name_(name), words_(split_words(piece, name)) {}

  const Word& peek() const { return words_[at_]; }
  bool done() const { return peek().kind == Word::Kind::kEnd; }
  Word take() { return done() ? peek() : words_[at_++]; }
  bool is_operator(std::string_view text) const { return peek().kind == Word::Kind::kOperator && peek().text == text; }
  bool is_name(std::string_view text) const { return peek().kind == Word::Kind::kName && peek().text == text; }
  bool next_is_name(std::string_view text) const {
    return at_ + 1 < words_.size() && words_[at_ + 1].kind == Word::Kind::kName && words_[at_ + 1].text == text;
  }
  bool take_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  bool take_name(std::string_view text) { return is_name(text) && (take(), true); }
  void expect(std::string_view text) {
    if (!take_operator(text)) fail(cat("expected '", text, "', not '", peek().text, "'"));
  }
  std::string name() {
    if (peek().kind != Word::Kind::kName) fail(cat("expected a name, not '", peek().text, "'"));
    return take().text;
  }
  void expect_end() const {
    if (!done()) fail(cat("unexpected '", peek().text, "'"));
  }
  [[noreturn]] void fail(const std::string& message) const { fail_at(name_, peek().line, message); }

  ExpressionPtr expression() { return conditional(); }
  /// An expression, or several with commas between them: a list.
  ExpressionPtr tuple(bool with_condition = true) {
    ExpressionPtr first = with_condition ? conditional() : disjunction();
    if (!is_operator(",")) return first;
    ExpressionPtr list = make(Kind::kList);
    list->name = "tuple";
    list->parts.push_back(std::move(first));
    while (take_operator(",")) {
      if (done() || is_operator(")") || is_operator("=") || is_name("in")) break;
      list->parts.push_back(with_condition ? conditional() : disjunction());
    }
    return list;
  }
  /// The filters after a '|', of a block.
  ExpressionPtr filters() {
    ExpressionPtr value;
    do {
      value = filter(std::move(value));
    } while (take_operator("|"));
    return value;
  }

 private:
  ExpressionPtr make(Kind kind) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = peek().line;
    return made;
  }
  ExpressionPtr made_of(Kind kind, std::string name, ExpressionPtr a, ExpressionPtr b = nullptr) const {
    ExpressionPtr made = make(kind);
    made->name = std::move(name);
    made->line = a->line;
    made->parts.push_back(std::move(a));
    if (b) made->parts.push_back(std::move(b));
    return made;
  }

  ExpressionPtr conditional() {
    const Depth depth(*this);
    ExpressionPtr value = disjunction();
    while (take_name("if")) {
      ExpressionPtr made = make(Kind::kConditional);
      made->parts.push_back(std::move(value));
      made->parts.push_back(disjunction());
      made->parts.push_back(take_name("else") ? conditional() : nullptr);
      value = std::move(made);
    }
    return value;
  }
  ExpressionPtr disjunction() {
    ExpressionPtr value = conjunction();
    while (take_name("or")) value = made_of(Kind::kOr, "or", std::move(value), conjunction());
    return value;
  }
  ExpressionPtr conjunction() {
    ExpressionPtr value = negation();
    while (take_name("and")) value = made_of(Kind::kAnd, "and", std::move(value), negation());
    return value;
  }
  ExpressionPtr negation() {
    const Depth depth(*this);
    if (take_name("not")) return made_of(Kind::kUnary, "not", negation());
    return comparison();
  }
  ExpressionPtr comparison() {
    ExpressionPtr value = sum(), made;
    for (;;) {
      std::string op;
      for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (op.empty() && take_operator(known)) op = known;
      }
      if (op.empty() && take_name("in")) op = "in";
      if (op.empty() && is_name("not") && next_is_name("in")) {
        take(), take();
        op = "not in";
      }
      if (op.empty()) return made ? std::move(made) : std::move(value);
      if (!made) made = made_of(Kind::kComparison, "", std::move(value));
      made->names.push_back(op);
      made->parts.push_back(sum());
    }
  }
  template <size_t kCount>
  ExpressionPtr binary(const std::array<std::string_view, kCount>& operators, ExpressionPtr (Words::*operand)()) {
    ExpressionPtr value = (this->*operand)();
    for (;;) {
      const auto op = std::find_if(operators.begin(), operators.end(), [&](std::string_view text) { return is_operator(text); });
      if (op == operators.end()) return value;
      take();
      value = made_of(Kind::kBinary, std::string(*op), std::move(value), (this->*operand)());
    }
  }
  ExpressionPtr sum() { return binary(std::array<std::string_view, 2>{"+", "-"}, &Words::joined); }
  ExpressionPtr joined() { return binary(std::array<std::string_view, 1>{"~"}, &Words::product); }
  ExpressionPtr product() { return binary(std::array<std::string_view, 4>{"*", "/", "//", "%"}, &Words::raised); }
  ExpressionPtr raised() { return binary(std::array<std::string_view, 1>{"**"}, &Words::filtered); }
  ExpressionPtr filtered() { return unary(true); }
  ExpressionPtr unary(bool with_filters) {
    const Depth depth(*this);
    ExpressionPtr value;
    if (take_operator("-")) {
      value = made_of(Kind::kUnary, "-", unary(false));
    } else if (take_operator("+")) {
      value = made_of(Kind::kUnary, "+", unary(false));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    while (with_filters) {
      if (take_operator("|")) {
        value = filter(std::move(value));
      } else if (take_name("is")) {
        value = test(std::move(value));
      } else if (is_operator("(")) {
        value = call(std::move(value));
      } else {
        break;
      }
    }
    return value;
  }

  ExpressionPtr literal(Value value) {
    ExpressionPtr made = make(Kind::kLiteral);
    made->literal = std::move(value);
    take();
    return made;
  }
  ExpressionPtr primary() {
    const Word& word = peek();
    switch (word.kind) {
      case Word::Kind::kInteger: {
        const long long value = std::strtoll(word.text.c_str(), nullptr, 10);
        if (value == std::numeric_limits<long long>::max()) fail(cat("the number ", word.text, " is too large"));
        return literal(static_cast<int64_t>(value));
      }
      case Word::Kind::kFloat: return literal(std::strtod(word.text.c_str(), nullptr));
      case Word::Kind::kText: {
        std::string text;
        ExpressionPtr made = make(Kind::kLiteral);
        while (peek().kind == Word::Kind::kText) text += take().text;
        made->literal = Value(std::move(text));
        return made;
      }
      case Word::Kind::kName: return name_or_constant();
      default: break;
    }
    if (is_operator("(")) return parenthesis();
    if (is_operator("[")) return list();
    if (is_operator("{")) return dict();
    fail(cat("expected an expression, not '", word.text, "'"));
  }
  ExpressionPtr name_or_constant() {
    const std::string& text = peek().text;
    if (text == "true" || text == "True") return literal(true);
    if (text == "false" || text == "False") return literal(false);
    if (text == "none" || text == "None") return literal(Value());
    for (const std::string_view keyword : {"and", "or", "not", "in", "is", "if", "else"}) {
      if (text == keyword) fail(cat("expected an expression, not '", text, "'"));
    }
    ExpressionPtr made = make(Kind::kName);
    made->name = take().text;
    return made;
  }
  ExpressionPtr parenthesis() {
    take();
    if (is_operator(")")) {
      ExpressionPtr empty = make(Kind::kList);
      empty->name = "tuple";
      take();
      return empty;
    }
    ExpressionPtr value = tuple();
    expect(")");
    return value;
  }
  ExpressionPtr list() {
    ExpressionPtr made = make(Kind::kList);
    take();
    while (!is_operator("]")) {
      made->parts.push_back(expression());
      if (!take_operator(",")) break;
    }
    expect("]");
    return made;
  }
  ExpressionPtr dict() {
    ExpressionPtr made = make(Kind::kDict);
    take();
    while (!is_operator("}")) {
      made->parts.push_back(expression());
      expect(":");
      made->parts.push_back(expression());
      if (!take_operator(",")) break;
    }
    expect("}");
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (take_operator(".")) {
        if (peek().kind == Word::Kind::kInteger) {
          value = made_of(Kind::kItem, "", std::move(value), primary());
        } else {
          value = made_of(Kind::kAttribute, name(), std::move(value));
        }
      } else if (is_operator("[")) {
        value = item(std::move(value));
      } else if (is_operator("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }
  ExpressionPtr item(ExpressionPtr value) {
    expect("[");
    ExpressionPtr first = is_operator(":") ? nullptr : expression();
    if (!is_operator(":")) {
      expect("]");
      return made_of(Kind::kItem, "", std::move(value), std::move(first));
    }
    ExpressionPtr made = made_of(Kind::kSlice, "", std::move(value));
    made->parts.push_back(std::move(first));
    for (int i = 0; i < 2; ++i) {
      const bool given = take_operator(":") && !is_operator(":") && !is_operator("]");
      made->parts.push_back(given ? expression() : nullptr);
    }
    expect("]");
    return made;
  }
  /// Appends "(a, b, name=c)" to a call, filter or test.
  void arguments(Expression& of) {
    expect("(");
    while (!is_operator(")")) {
      if (is_operator("*") || is_operator("**")) fail("arguments that are lists or dictionaries (*, **) are not supported");
      ExpressionPtr value = expression();
      if (value->kind == Kind::kName && take_operator("=")) {
        of.named.emplace_back(value->name, expression());
      } else {
        if (!of.named.empty()) fail("an argument by position follows one by name");
        of.parts.push_back(std::move(value));
      }
      if (!take_operator(",")) break;
    }
    expect(")");
  }
  ExpressionPtr call(ExpressionPtr value) {
    ExpressionPtr made = made_of(Kind::kCall, "", std::move(value));
    arguments(*made);
    return made;
  }
  ExpressionPtr filter(ExpressionPtr value) {
    ExpressionPtr made = make(Kind::kFilter);
    made->name = name();
    made->parts.push_back(std::move(value));
    if (is_operator("(")) arguments(*made);
    return made;
  }
  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = take_name("not");
    ExpressionPtr made = make(Kind::kTest);
    made->name = name();
    made->parts.push_back(std::move(value));
    const Word& word = peek();
    const bool word_ends =
        word.kind == Word::Kind::kName && (word.text == "else" || word.text == "or" || word.text == "and" || word.text == "if" ||
                                           word.text == "is" || word.text == "in" || word.text == "not");
    const bool operand = word.kind == Word::Kind::kText || word.kind == Word::Kind::kInteger || word.kind == Word::Kind::kFloat ||
                         (word.kind == Word::Kind::kName && !word_ends) || is_operator("[") || is_operator("{");
    if (is_operator("(")) {
      arguments(*made);
    } else if (operand) {
      made->parts.push_back(postfix(primary()));
    }
    return negated ? made_of(Kind::kUnary, "not", std::move(made)) : std::move(made);
  }

  /// Guards the stack.
  struct Depth {
    explicit Depth(Words& words) : words(words) {
      if (++words.depth_ > kDeepest) words.fail("the expression is nested too deeply");
    }
    ~Depth() { --words.depth_; }
    Words& words;
  };

  const std::string& name_;
  std::vector<Word> words_;
  size_t at_ = 0;
  int depth_ = 0;
};

/// The statements of a template.
class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : name_(name), pieces_(split_template(source, name)) {}

  Block run() {
    std::string end;
    Block all = block({}, end, 0, "");
    return all;
  }

 private:
  using Ends = std::vector<std::string_view>;

  [[noreturn]] void fail(int line, const std::string& message) const { fail_at(name_, line, message); }

  /// Statements up to one whose first word is in `ends` (for an empty list: up to the end), which is put into `end`; words_ stands after
  /// it.
  Block block(const Ends& ends, std::string& end, int line, std::string_view of) {
    if (++depth_ > kDeepest) fail(line, "blocks are nested too deeply");
    Block made;
    while (at_ < pieces_.size()) {
      const Piece& piece = pieces_[at_++];
      if (piece.kind == Piece::Kind::kText) {
        made.push_back({.kind = Statement::Kind::kText, .line = piece.line, .text = piece.text});
        continue;
      }
      words_ = std::make_unique<Words>(piece, name_);
      if (piece.kind == Piece::Kind::kPrint) {
        Statement print{.kind = Statement::Kind::kPrint, .line = piece.line};
        print.value = words_->tuple();
        words_->expect_end();
        made.push_back(std::move(print));
        continue;
      }
      const std::string first = words_->name();
      if (std::find(ends.begin(), ends.end(), first) != ends.end()) {
        end = first;
        --depth_;
        return made;
      }
      made.push_back(statement(first, piece.line));
    }
    if (!ends.empty()) fail(line, cat("'", of, "' has no '", ends.back(), "'"));
    --depth_;
    return made;
  }
  Block block_until(std::string_view last, int line, std::string_view of) {
    std::string end;
    Block made = block({last}, end, line, of);
    words_->take_name(of);  // {% endmacro name %}
    return made;
  }

  Statement statement(const std::string& first, int line) {
    if (first == "if") return branches(line);
    if (first == "for") return loop(line);
    if (first == "set") return set(line);
    if (first == "macro") return macro(line);
    if (first == "filter") {
      Statement made{.kind = Statement::Kind::kFilter, .line = line};
      made.value = words_->filters();
      words_->expect_end();
      made.block = block_until("endfilter", line, "filter");
      return made;
    }
    if (first == "generation") {
      Statement made{.kind = Statement::Kind::kBlock, .line = line};
      words_->expect_end();
      made.block = block_until("endgeneration", line, "generation");
      return made;
    }
    if (first == "break" || first == "continue") {
      if (loops_ == 0) fail(line, cat("'", first, "' outside of a loop"));
      words_->expect_end();
      return {.kind = first == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, .line = line};
    }
    fail(line, cat("the statement '", first, "' is not supported; known: if, for, set, macro, filter, generation, break, continue, raw"));
  }

  Statement branches(int line) {
    Statement made{.kind = Statement::Kind::kIf, .line = line};
    std::string end = "if";
    while (end != "endif") {
      ExpressionPtr condition = end == "else" ? nullptr : words_->tuple();
      words_->expect_end();
      const Ends ends = end == "else" ? Ends{"endif"} : Ends{"elif", "else", "endif"};
      Block inside = block(ends, end, line, "if");
      made.branches.emplace_back(std::move(condition), std::move(inside));
    }
    words_->expect_end();
    return made;
  }

  Statement loop(int line) {
    Statement made{.kind = Statement::Kind::kFor, .line = line};
    const bool bracket = words_->take_operator("(");
    do {
      made.names.push_back(words_->name());
    } while (words_->take_operator(","));
    if (bracket) words_->expect(")");
    if (!words_->take_name("in")) words_->fail(cat("expected 'in', not '", words_->peek().text, "'"));
    made.value = words_->tuple(false);
    if (words_->take_name("if")) made.condition = words_->expression();
    if (words_->is_name("recursive")) words_->fail("recursive loops are not supported");
    words_->expect_end();
    ++loops_;
    std::string end;
    made.block = block({"else", "endfor"}, end, line, "for");
    --loops_;
    words_->expect_end();
    if (end == "else") made.otherwise = block_until("endfor", line, "for");
    return made;
  }

  Statement set(int line) {
    Statement made{.kind = Statement::Kind::kSet, .line = line};
    do {
      made.names.push_back(words_->name());
      if (words_->take_operator(".")) made.attribute = words_->name();
    } while (words_->take_operator(","));
    if (!made.attribute.empty() && made.names.size() > 1) fail(line, "'set' of several names cannot set an attribute");
    if (words_->take_operator("=")) {
      made.value = words_->tuple();
      words_->expect_end();
      return made;
    }
    if (made.names.size() > 1) fail(line, "'set' of several names needs a value");
    made.kind = Statement::Kind::kSetBlock;
    if (words_->take_operator("|")) made.value = words_->filters();
    words_->expect_end();
    made.block = block_until("endset", line, "set");
    return made;
  }

  Statement macro(int line) {
    Statement made{.kind = Statement::Kind::kMacro, .line = line};
    made.text = words_->name();
    words_->expect("(");
    while (!words_->is_operator(")")) {
      made.names.push_back(words_->name());
      made.defaults.push_back(words_->take_operator("=") ? words_->expression() : nullptr);
      if (!words_->take_operator(",")) break;
    }
    words_->expect(")");
    words_->expect_end();
    const int loops = std::exchange(loops_, 0);
    std::string end;
    made.block = block({"endmacro"}, end, line, "macro");
    loops_ = loops;
    words_->take_name(made.text);
    words_->expect_end();
    return made;
  }

  const std::string& name_;
  std::vector<Piece> pieces_;
  size_t at_ = 0;
  std::unique_ptr<Words> words_;  // of the present statement
  int loops_ = 0, depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source, const std::string& name) { return Parser(source, name).run(); }

}  // namespace galley::text::jinja
