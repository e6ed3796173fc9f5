#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "libcore/graph/attributes.h"
#include "libcore/graph/graph.h"

namespace galley {
namespace {

/// Reads the text format of `print`, one character at a time, and keeps the position for error messages.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph run() {
    expect("galley graph 1");
    end_line();
    while (at_ < text_.size()) {
      line_start_ = at_;
      if (take("output ")) {
        const std::string name = string();
        expect(" = ");
        const ValueId id = value();
        if (graph_.find_output(name) != kNoValue) wrong(cat("two outputs have the name '", name, "'"));
        graph_.add_output(name, id);
      } else {
        definition();
      }
      end_line();
    }
    try {
      verify(graph_);
    } catch (const InternalError& error) {
      fail(ErrorCode::kInput, "the text is not a valid graph: ", error.what());
    }
    for (Node& node : graph_.nodes()) {
      const Placement rule = placement_of(*node.op, context_of(graph_, node));
      for (const ValueId id : node.outputs) {
        if (graph_.type(id).placement != rule) node.cut = weaker(node.cut, graph_.type(id).placement);
      }
    }
    return std::move(graph_);
  }

  /// Parses the whole text as the attributes of an operator.
  std::unique_ptr<Options> attributes_alone(const OpDef& op) {
    std::map<std::string, std::string> given;
    while (at_ < text_.size()) {
      if (!given.empty()) expect(" ");
      attribute(given);
    }
    return attributes_of(op, given);
  }

 private:
  [[noreturn]] void wrong(const std::string& message) const {
    const auto line = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n') + 1;
    throw Error(ErrorCode::kInput, cat("graph text, line ", line, ", column ", at_ - line_start_ + 1, ": ", message));
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) wrong(cat("expected '", word, "'"));
  }
  void end_line() {
    if (!take("\n")) wrong("expected the end of the line");
    line_start_ = at_;
  }
  /// Takes characters up to, but not including, one of `stops`.
  std::string until(std::string_view stops) {
    const size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    std::string word(text_.substr(at_, end - at_));
    at_ = end;
    return word;
  }
  std::string string() {
    expect("\"");
    std::string word;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\n') wrong("a string has no closing quote");
      char c = text_[at_++];
      if (c == '\\') {
        if (at_ >= text_.size()) wrong("a string has no closing quote");
        c = text_[at_++];
        if (c == 'n') c = '\n';
      }
      word += c;
    }
    expect("\"");
    return word;
  }
  template <class T>
  T number(const std::string& word) {
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) wrong(cat("'", word, "' is not a number"));
    return value;
  }
  size_t label() {
    expect("%");
    return number<size_t>(until(" ,)\n"));
  }
  ValueId value() {
    if (take("-")) return kNoValue;
    const size_t name = label();
    const auto found = values_.find(name);
    if (found == values_.end()) wrong(cat("%", name, " is used before it is defined"));
    return found->second;
  }

  TensorType type() {
    TensorType type;
    try {
      type.dtype = parse_dtype(until(" \n"));
    } catch (const Error& error) {
      wrong(error.message());
    }
    expect(" [");
    while (!take("]")) {
      if (type.shape.rank() > 0) expect(",");
      const auto size = number<int64_t>(until(",]\n"));
      if (size < 0 || type.shape.rank() >= Shape::kMaxRank) wrong("a size is negative, or there are too many");
      type.shape.push_back(size);
    }
    try {
      static_cast<void>(type.elements());
      for (std::string_view word : {"channels_last_3d", "channels_last", "blocked("}) {
        if (!text_.substr(at_).starts_with(cat(" ", word))) continue;
        ++at_;
        type.format = MemoryFormat::parse(word == "blocked(" ? until(")\n") + ")" : until(" ;\n"));
        if (word == "blocked(") expect(")");
        break;
      }
      static_cast<void>(type.format.order(type.shape.rank()));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInput) throw;
      wrong(error.message());
    }
    if (take(" (")) {
      for (;;) {
        std::string name = until(",)\n");
        type.names.push_back(name == "_" ? "" : name);
        if (!take(",")) break;
      }
      expect(")");
      if (static_cast<int>(type.names.size()) != type.shape.rank()) wrong("there must be one name per dimension");
    }
    if (take(" held(")) {
      do {
        const size_t axis = place_in(kPlacementAxes, until("=,)\n"), "an axis of ranks");
        expect("=");
        type.placement.held[axis] = static_cast<Held>(place_in(kHeldNames, until(",)\n"), "a placement"));
      } while (take(","));
      expect(")");
    }
    return type;
  }
  template <class Names>
  size_t place_in(const Names& names, const std::string& word, const char* what) const {
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) wrong(cat("'", word, "' is not ", what));
    return static_cast<size_t>(found - names.begin());
  }

  void define(size_t name, ValueId id) {
    if (!values_.emplace(name, id).second) wrong(cat("%", name, " is defined twice"));
  }

  void definition() {
    std::vector<size_t> labels{label()};
    while (take(", ")) labels.push_back(label());
    expect(" = ");
    const std::string word = until(" (\n");
    if (take(" ")) {
      for (ValueRole role : {ValueRole::kInput, ValueRole::kParameter, ValueRole::kBuffer, ValueRole::kState, ValueRole::kCarried}) {
        if (word != role_name(role)) continue;
        const std::string name = string();
        expect(" : ");
        if (graph_.find_input(name) != kNoValue) wrong(cat("two inputs have the name '", name, "'"));
        define(labels.front(), graph_.add_input(name, type(), role).id());
        return;
      }
      wrong(cat("'", word, "' is not a kind of input"));
    }
    node(word, labels);
  }

  void node(const std::string& op, const std::vector<size_t>& labels) {
    Node node;
    node.op = find_op_or_null(op);
    if (node.op == nullptr) wrong(cat("there is no operator '", op, "'"));
    expect("(");
    while (!take(")")) {
      if (!node.inputs.empty()) expect(", ");
      node.inputs.push_back(value());
    }
    std::map<std::string, std::string> given;
    while (!take(" : ")) {
      expect(" ");
      attribute(given);
    }
    node.attributes = attributes_of(*node.op, given);
    for (size_t o = 0; o < labels.size(); ++o) {
      if (o > 0) expect("; ");
      const ValueId id = graph_.new_value(type());
      define(labels[o], id);
      node.outputs.push_back(id);
    }
    if (take(" @")) node.path = string();
    if (take(" #backward")) node.phase = Phase::kBackward;
    if (take(" #update")) node.phase = Phase::kUpdate;
    graph_.nodes().push_back(std::move(node));
  }

  /// Parses NAME=TEXT.
  void attribute(std::map<std::string, std::string>& given) {
    const std::string name = until("=\n");
    expect("=");
    given[name] = attribute_text();
  }

  std::unique_ptr<Options> attributes_of(const OpDef& op, std::map<std::string, std::string>& given) {
    std::unique_ptr<Options> attributes;
    if (op.make_attrs != nullptr) {
      attributes = op.make_attrs();
      read_attributes(*attributes, given);
    }
    if (!given.empty()) wrong(cat(op.name, " has no attribute '", given.begin()->first, "'"));
    return attributes;
  }

  /// The text of an attribute without changes; strings may contain spaces.
  std::string attribute_text() {
    const size_t start = at_;
    bool in_string = false;
    for (; at_ < text_.size() && text_[at_] != '\n' && (in_string || text_[at_] != ' '); ++at_) {
      if (in_string && text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        in_string = !in_string;
      }
    }
    at_ = std::min(at_, text_.size());
    return std::string(text_.substr(start, at_ - start));
  }

  void read_attributes(Options& attributes, std::map<std::string, std::string>& given);

  std::string_view text_;
  size_t at_ = 0, line_start_ = 0;
  Graph graph_;
  std::map<size_t, ValueId> values_;
  friend class FieldReader;
};

/// Sets the options of an attribute struct from their texts, and removes the texts that it used from the map.
class FieldReader : public OptionVisitor {
 public:
  FieldReader(Parser& parser, std::map<std::string, std::string>& given) : parser_(parser), given_(given) {}
  using OptionVisitor::choice;
  using OptionVisitor::option;

  void option(const OptionInfo& info, bool& value) override {
    if (const auto text = take(info)) {
      if (*text != "true" && *text != "false") parser_.wrong(cat(info.name, " must be true or false, not ", *text));
      value = *text == "true";
    }
  }
  void option(const OptionInfo& info, int64_t& value) override {
    if (const auto text = take(info)) value = parser_.number<int64_t>(*text);
  }
  void option(const OptionInfo& info, double& value) override {
    if (const auto text = take(info)) value = parser_.number<double>(*text);
  }
  void option(const OptionInfo& info, std::string& value) override {
    if (const auto text = take(info)) value = unquoted(*text);
  }
  void option(const OptionInfo& info, std::vector<int64_t>& value) override {
    items(info, value, [&](const std::string& item) { return parser_.number<int64_t>(item); });
  }
  void option(const OptionInfo& info, std::vector<double>& value) override {
    items(info, value, [&](const std::string& item) { return parser_.number<double>(item); });
  }
  void option(const OptionInfo& info, std::vector<std::string>& value) override {
    items(info, value, [&](const std::string& item) { return unquoted(item); });
  }
  void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) override {
    const auto text = take(info);
    if (!text) return;
    const auto found = std::find(names.begin(), names.end(), *text);
    if (found == names.end()) parser_.wrong(cat(info.name, " cannot be ", *text));
    value = static_cast<int>(found - names.begin());
  }

 private:
  std::optional<std::string> take(const OptionInfo& info) {
    const auto found = given_.find(std::string(info.name));
    if (found == given_.end()) return std::nullopt;
    std::string text = std::move(found->second);
    given_.erase(found);
    return text;
  }
  std::string unquoted(const std::string& text) {
    if (text.size() < 2 || text.front() != '"' || text.back() != '"') parser_.wrong(cat(text, " is not a quoted string"));
    std::string out;
    for (size_t i = 1; i + 1 < text.size(); ++i) {
      if (text[i] == '\\' && i + 2 < text.size()) {
        ++i;
        out += text[i] == 'n' ? '\n' : text[i];
      } else {
        out += text[i];
      }
    }
    return out;
  }
  template <class T, class Read>
  void items(const OptionInfo& info, std::vector<T>& value, Read read) {
    const auto text = take(info);
    if (!text) return;
    if (text->size() < 2 || text->front() != '[' || text->back() != ']') parser_.wrong(cat(info.name, " must be a list, not ", *text));
    value.clear();
    std::string item;
    bool in_string = false;
    for (size_t i = 1; i < text->size(); ++i) {
      const char c = (*text)[i];
      const bool last = i + 1 == text->size();
      if (!in_string && (c == ',' || last)) {
        if (!item.empty() || !last || !value.empty()) value.push_back(read(item));
        item.clear();
        continue;
      }
      if (c == '"') in_string = !in_string;
      item += c;
      if (c == '\\' && !last) item += (*text)[++i];
    }
    if (in_string) parser_.wrong("a string has no closing quote");
  }

  Parser& parser_;
  std::map<std::string, std::string>& given_;
};

void Parser::read_attributes(Options& attributes, std::map<std::string, std::string>& given) {
  FieldReader reader(*this, given);
  try {
    attributes.options(reader);
  } catch (const Error& error) {  // a value with its own grammar, e.g. the steps of a chain
    if (error.code() == ErrorCode::kInput) throw;
    wrong(error.message());
  }
}

}  // namespace

Graph parse_graph(std::string_view text) { return Parser(text).run(); }

std::unique_ptr<Options> parse_attributes(const OpDef& op, std::string_view text) { return Parser(text).attributes_alone(op); }

}  // namespace galley
