#include "libcore/recipe/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_set>

#include "libcore/base/utf8.h"

namespace galley {
namespace {

// Error messages show at most this many characters of a line, and nothing if the place is after them.
constexpr size_t kExcerptWidth = 160;

std::string_view line_of(std::string_view text, int line) {
  size_t begin = 0;
  for (int i = 1; i < line; ++i) {
    begin = text.find('\n', begin);
    if (begin == std::string_view::npos) return "";
    ++begin;
  }
  std::string_view rest = text.substr(begin);
  rest = rest.substr(0, rest.find('\n'));
  if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
  return rest;
}

int characters(std::string_view utf8) {
  return static_cast<int>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

[[noreturn]] void fail_at(const TextPlace& place, std::string message, std::string remedy = "") {
  Error error(ErrorCode::kRecipe, std::move(message));
  if (!remedy.empty()) error.suggest(std::move(remedy));
  throw place.mark(error);
}

// Rejects text that must not reach yaml-cpp: tabs, control characters, bytes that are not UTF-8; and deeply nested brackets or brackets
// with very many commas, since its scanner queues all tokens of a bracket before the first event.
void check_text(const std::shared_ptr<const TextSource>& source, const YamlLimits& limits) {
  const std::string& text = source->text;
  const auto place = [&](int line, int column) { return TextPlace{source, line, column, 1}; };
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    Error error(ErrorCode::kRecipe, cat("the file has ", text.size(), " bytes; a recipe may have at most ", limits.bytes));
    error.at({source->name, 0, 0});
    throw error;
  }
  int line = 1, column = 1;
  int64_t brackets = 0, commas = 0;
  for (size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text.size();) {
    const char c = text[i];
    if (c == '\t') fail_at(place(line, column), "a tab; YAML is indented with spaces", "use spaces (\\t within double quotes)");
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r') || c == 0x7F) {
      fail_at(place(line, column), cat("control character ", static_cast<int>(c), ": a recipe is plain text"));
    }
    const size_t length = utf8_length(text, i);
    if (length == 0) fail_at(place(line, column), "a byte that is not UTF-8", "save the file in UTF-8");
    if (c == '[' || c == '{') {
      if (++brackets > 4 * limits.depth) fail_at(place(line, column), cat("nested deeper than ", limits.depth, " levels"));
    } else if (c == ']' || c == '}') {
      brackets = std::max<int64_t>(0, brackets - 1);
    } else if (c == ',' && brackets > 0 && ++commas > limits.nodes) {
      fail_at(place(line, column), cat("more than ", limits.nodes, " values"));
    }
    i += length;
    column += static_cast<int>(length);
    if (c == '\n') {
      ++line;
      column = 1;
      // Brackets in comments and quotes may be unpaired, so limit the count that carries over to the next line.
      brackets = std::min(brackets, 2 * limits.depth);
    }
  }
}

// yaml-cpp (0.6 to 0.8) turns the escapes \N and \_ into a single byte, 85 or A0. The source is valid UTF-8, so a byte outside a
// sequence has no other origin.
std::string with_escapes_in_utf8(const std::string& value) {
  if (find_invalid_utf8(value) == std::string_view::npos) return value;
  std::string text;
  for (size_t i = 0; i < value.size();) {
    const size_t length = utf8_length(value, i);
    if (length == 0) text += '\xC2';
    text.append(value, i, std::max<size_t>(length, 1));
    i += std::max<size_t>(length, 1);
  }
  return text;
}

// The suggestion for an escape that yaml-cpp rejects with this message; empty for other messages.
std::string remedy_of(std::string_view message) {
  if (message.starts_with("the referenced anchor is not defined"))
    return "a '*' at the beginning refers to an anchor; write a selector in quotes, e.g. '*q_proj'";
  if (message.starts_with("unknown escape character")) return "write \\\\ for a backslash, or put the text in single quotes";
  if (message.starts_with("bad character found while scanning hex")) return "\\x takes 2 hexadecimal digits, \\u takes 4, \\U takes 8";
  if (message.starts_with("invalid unicode"))
    return "one \\U and 8 digits, at most \\U0010FFFF, write any character; surrogates (D800 to DFFF) are not characters";
  return "";
}

struct Anchored {
  YamlNode node;
  int64_t size = 0, height = 0;
  bool complete = false;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::shared_ptr<const TextSource> source, const YamlLimits& limits) : source_(std::move(source)), limits_(limits) {
    // Index of line starts: searching the text for every scalar would take quadratic time.
    const std::string& text = source_->text;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines_.push_back(std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
  }

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      fail_at(place(mark), "the file has a second document; a recipe is one document", "remove the line '---' and the text after it");
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark&, const std::string&) override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (wants_key()) fail_at(place(mark), "a key is missing or null", "write the key in quotes if it is a text");
    YamlNode node;
    node.place = place(mark);
    add(std::move(node), anchor, 1, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    check_tag(mark, tag, true);
    if (value.find('\0') != std::string::npos) {
      fail_at(place(mark), "a zero byte (\\0); names and paths cannot contain one", "remove the escape");
    }
    YamlNode node = YamlNode::scalar_of(with_escapes_in_utf8(value), tag == "!");
    node.place = place(mark);
    const std::string_view line = line_at(node.place.line);
    const size_t rest =
        line.size() >= static_cast<size_t>(node.place.column - 1) ? line.size() - (static_cast<size_t>(node.place.column) - 1) : 1;
    const size_t written = value.size() + (node.quoted ? 2 : 0);
    node.place.width = static_cast<int>(std::max<size_t>(1, std::min(rest, written)));
    if (wants_key()) {
      if (anchor) remember(anchor, node, 1, 0);
      return take_key(std::move(node));
    }
    add(std::move(node), anchor, 1, 0);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end() || !found->second.complete) fail_at(place(mark), "an alias within the value of its own anchor (a cycle)");
    const Anchored& target = found->second;
    if (wants_key() && target.node.is_scalar()) {
      YamlNode key = target.node;
      key.place = place(mark);
      return take_key(std::move(key));
    }
    if (wants_key()) fail_at(place(mark), "a key must be text, not a list or a map");
    if (static_cast<int64_t>(stack_.size()) + target.height > limits_.depth) too_deep(place(mark));
    count(target.size, place(mark));
    YamlNode node = target.node;  // copied after the count, which checks the limits
    attach(std::move(node), target.size, target.height);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::list_of());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::map_of());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override {
    Frame& frame = stack_.back();
    // Merge keys: keys of the map itself take precedence, then the first of several merged maps.
    for (YamlNode& merged : frame.merges) {
      for (YamlNode::Entry& entry : merged.entries) {
        if (frame.keys.insert(entry.key).second) frame.node.entries.push_back(std::move(entry));
      }
    }
    close();
  }

 private:
  struct Frame {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    int64_t size = 1, height = 0;
    bool has_key = false;
    bool merge = false;  // the key is `<<`
    YamlNode key;
    std::unordered_set<std::string> keys;
    std::vector<YamlNode> merges;
  };

  TextPlace place(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1, 1}; }
  std::string_view line_at(int line) const {
    return line >= 1 && static_cast<size_t>(line) <= lines_.size() ? lines_[static_cast<size_t>(line) - 1] : "";
  }
  bool wants_key() const { return !stack_.empty() && stack_.back().node.is_map() && !stack_.back().has_key; }
  [[noreturn]] void too_deep(const TextPlace& where) const { fail_at(where, cat("nested deeper than ", limits_.depth, " levels")); }

  void check_tag(const YAML::Mark& mark, const std::string& tag, bool scalar) const {
    const TextPlace where = place(mark);
    const std::string_view line = line_at(where.line);
    const size_t at = static_cast<size_t>(where.column - 1);
    const bool marked = at < line.size() && line[at] == '!';
    if (marked || !(tag.empty() || tag == "?" || (scalar && tag == "!"))) {
      fail_at(where, cat("a tag", tag.size() > 1 ? cat(" (", tag, ")") : "", "; types come from the schema"), "remove the tag");
    }
  }

  void count(int64_t nodes, const TextPlace& where) {
    if (nodes > limits_.nodes - nodes_) fail_at(where, cat("more than ", limits_.nodes, " values, aliases expanded"));
    nodes_ += nodes;
  }

  void remember(YAML::anchor_t anchor, const YamlNode& node, int64_t size, int64_t height) {
    count(size, node.place);
    anchors_[anchor] = {node, size, height, true};
  }

  void take_key(YamlNode key) {
    Frame& frame = stack_.back();
    frame.merge = key.scalar == "<<" && !key.quoted;
    if (!frame.merge && !frame.keys.insert(key.scalar).second) {
      const YamlNode::Entry* first = frame.node.entry(key.scalar);
      Error error(ErrorCode::kRecipe,
                  cat("duplicate key '", key.scalar, "'", first ? cat(" (first on line ", first->place.line, ")") : ""));
      error.key(key.scalar).suggest("remove one of the two");
      throw key.place.mark(error);
    }
    if (static_cast<int64_t>(key.scalar.size()) > limits_.key_bytes)
      fail_at(key.place, cat("a key of ", key.scalar.size(), " bytes; at most ", limits_.key_bytes, " are allowed"));
    if (static_cast<int64_t>(frame.keys.size()) > limits_.keys) fail_at(key.place, cat("more than ", limits_.keys, " keys in one map"));
    frame.key = std::move(key);
    frame.has_key = true;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode node) {
    check_tag(mark, tag, false);
    if (wants_key()) fail_at(place(mark), "a key must be text, not a list or a map");
    if (static_cast<int64_t>(stack_.size()) >= limits_.depth) too_deep(place(mark));
    node.place = place(mark);
    count(1, node.place);
    if (anchor) anchors_[anchor].complete = false;
    Frame frame;
    frame.node = std::move(node);
    frame.anchor = anchor;
    stack_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    if (frame.anchor) remember(frame.anchor, frame.node, frame.size, frame.height + 1);
    attach(std::move(frame.node), frame.size, frame.height + 1);
  }

  void add(YamlNode node, YAML::anchor_t anchor, int64_t size, int64_t height) {
    count(size, node.place);
    if (anchor) remember(anchor, node, size, height);
    attach(std::move(node), size, height);
  }

  void attach(YamlNode node, int64_t size, int64_t height) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    frame.size += size;
    frame.height = std::max(frame.height, height);
    if (frame.node.is_list()) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    frame.has_key = false;
    if (!frame.merge) {
      frame.node.entries.push_back({frame.key.scalar, frame.key.place, std::move(node)});
      return;
    }
    std::vector<YamlNode> maps;
    if (node.is_list()) {
      maps = std::move(node.items);
    } else {
      maps.push_back(std::move(node));
    }
    for (YamlNode& map : maps) {
      if (!map.is_map()) fail_at(frame.key.place, "'<<' must be an alias of a map, or a list of such aliases");
      frame.merges.push_back(std::move(map));
    }
  }

  std::shared_ptr<const TextSource> source_;
  YamlLimits limits_;
  std::vector<std::string_view> lines_;
  int documents_ = 0;
  int64_t nodes_ = 0;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  YamlNode root_;
};

}  // namespace

Error& TextPlace::mark(Error& error) const {
  if (!source) return error;
  const std::string_view text = line_of(source->text, line);
  const size_t before = std::min(text.size(), static_cast<size_t>(std::max(0, column - 1)));
  error.at({source->name, line, characters(text.substr(0, before)) + 1});
  if (!text.empty() && before < kExcerptWidth) {
    const std::string_view marked = text.substr(before, static_cast<size_t>(std::max(1, width)));
    // Cut between UTF-8 characters.
    size_t end = std::min(text.size(), kExcerptWidth);
    while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    error.excerpt(std::string(text.substr(0, end)), std::max(1, std::min(characters(marked), static_cast<int>(kExcerptWidth - before))));
  }
  return error;
}

std::string TextPlace::str() const { return source ? Place{source->name, line, 0}.str() : ""; }

YamlNode YamlNode::scalar_of(std::string text, bool quoted) {
  YamlNode node;
  node.kind = Kind::kScalar;
  node.scalar = std::move(text);
  node.quoted = quoted;
  return node;
}
YamlNode YamlNode::list_of() {
  YamlNode node;
  node.kind = Kind::kList;
  return node;
}
YamlNode YamlNode::map_of() {
  YamlNode node;
  node.kind = Kind::kMap;
  return node;
}

const YamlNode::Entry* YamlNode::entry(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}
const YamlNode* YamlNode::find(std::string_view key) const {
  const Entry* found = entry(key);
  return found ? &found->value : nullptr;
}
YamlNode* YamlNode::find(std::string_view key) { return const_cast<YamlNode*>(std::as_const(*this).find(key)); }

YamlNode& YamlNode::at(std::string_view key) {
  if (!is_map()) {
    kind = Kind::kMap;
    scalar.clear();
    items.clear();
  }
  if (YamlNode* found = find(key)) return *found;
  entries.push_back({std::string(key), {}, {}});
  return entries.back().value;
}

void YamlNode::erase(std::string_view key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

bool YamlNode::operator==(const YamlNode& other) const {
  if (kind != other.kind || scalar != other.scalar || items != other.items || entries.size() != other.entries.size()) return false;
  return std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
    const YamlNode* same = other.find(entry.key);
    return same && *same == entry.value;
  });
}

void check_utf8(std::string_view text, const TextPlace& place, const std::string& what) {
  if (find_invalid_utf8(text) == std::string_view::npos) return;
  fail_at(place, cat(what, " has a byte that is not UTF-8: a recipe is UTF-8 text"),
          "rename the file or folder, or write the text in UTF-8");
}

YamlNode parse_yaml(std::shared_ptr<const TextSource> source, const YamlLimits& limits) {
  check_text(source, limits);
  TreeBuilder builder(source, limits);
  std::istringstream stream(source->text);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& exception) {
    const TextPlace place{source, std::max(0, exception.mark.line + 1), std::max(0, exception.mark.column + 1), 1};
    fail_at(place, cat("not valid YAML: ", exception.msg), remedy_of(exception.msg));
  }
  return builder.take();
}

}  // namespace galley
