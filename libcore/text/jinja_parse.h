#pragma once
// Templates as trees: the subset of Jinja that chat templates use. Statements: if, for (with a condition and else), set (also as a block,
// and of attributes of a namespace), macro, filter, break, continue, generation. Whitespace as with trim_blocks and lstrip_blocks, which
// transformers sets.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/text/jinja_value.h"

namespace galley::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Expression {
  enum class Kind {
    kLiteral,     // literal
    kName,        // name
    kList,        // parts; name: "tuple" or ""
    kDict,        // parts: key, value, key, value, ...
    kAttribute,   // parts[0].name
    kItem,        // parts[0][parts[1]]
    kSlice,       // parts[0][parts[1]:parts[2]:parts[3]]; parts may be null
    kCall,        // parts[0](parts[1], ..., named)
    kFilter,      // parts[0]|name(parts[1], ..., named); parts[0] is null in a filter block
    kTest,        // parts[0] is name(parts[1], ..., named)
    kUnary,       // name: -, +, not
    kBinary,      // name: + - * / // % ** ~
    kComparison,  // parts[0] names[0] parts[1] names[1] parts[2] ...: == != < > <= >= in, not in
    kAnd,
    kOr,           // of parts[0], parts[1]
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  Value literal;
  std::string name;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Block = std::vector<Statement>;
struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // value
    kIf,        // branches: a condition (null: else) and a block each
    kFor,       // for names in value if condition: block, else otherwise
    kSet,       // names = value, or targets[0].names[0] = value
    kSetBlock,  // names[0] = the text of block, through the filters in value
    kMacro,     // macro text(names = defaults): block
    kFilter,    // the text of block through the filters in value
    kBlock,     // block (generation)
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  ExpressionPtr value, condition;
  std::vector<std::string> names;
  std::string attribute;  // kSet: of the namespace names[0]
  std::vector<ExpressionPtr> defaults;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block block, otherwise;
};

/// Throws Error (kInput) at NAME:LINE for what it does not know.
Block parse_template(std::string_view source, const std::string& name);

}  // namespace galley::text::jinja
