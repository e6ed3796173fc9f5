// Laws: every key and value has its place; hostile text is rejected quickly, with a place; writing and reading a tree are inverse.

#include "libcore/recipe/yaml_tree.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "libcore/base/file.h"
#include "tests/recipe/allocations.h"
#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

/// Limit of allocations of parse_yaml for a rejected text: eight per node of YamlLimits. Allocations replace time, which depends on the
/// machine.
constexpr int64_t kMostAllocations = 400'000;

YamlNode parse(const std::string& text) { return parse_yaml(std::make_shared<TextSource>(TextSource{"r.yaml", text})); }

Error parse_error(const std::string& text) {
  return error_of([&] { parse(text); });
}

std::string where(const std::string& text) { return parse_error(text).place().str(); }

TEST(YamlTree, PlacesOfKeysAndValues) {
  const YamlNode tree = parse("a: 1\nb:\n  cc: [x, \"y z\"]\n  d: {e: 2}\n");
  EXPECT_EQ(tree.entry("b")->place.line, 2);
  const YamlNode::Entry& cc = *tree.find("b")->entry("cc");
  EXPECT_EQ(cc.place.line, 3);
  EXPECT_EQ(cc.place.column, 3);
  EXPECT_EQ(cc.place.width, 2);
  EXPECT_EQ(cc.value.items[1].scalar, "y z");
  EXPECT_TRUE(cc.value.items[1].quoted);
  EXPECT_EQ(cc.value.items[1].place.column, 11);
  EXPECT_EQ(cc.value.items[1].place.width, 5);
  EXPECT_EQ(tree.find("b")->find("d")->find("e")->place.column, 10);
}

TEST(YamlTree, ScalarsStayText) {
  const YamlNode tree = parse("a: 1e-4\nb: no\nc: 007\nd: ~\ne: ''\nf: 1_000\n");
  EXPECT_EQ(tree.find("a")->scalar, "1e-4");
  EXPECT_EQ(tree.find("b")->scalar, "no");
  EXPECT_EQ(tree.find("c")->scalar, "007");
  EXPECT_TRUE(tree.find("d")->is_null());
  EXPECT_TRUE(tree.find("e")->is_scalar());
  EXPECT_TRUE(parse("").is_null());
  EXPECT_TRUE(parse("# only a comment\n").is_null());
}

TEST(YamlTree, AnchorsAndMergeKeys) {
  const YamlNode tree = parse("x-a: &a {p: 1, q: 2}\nx-b: &b {q: 3, r: 4}\nc: {<<: [*a, *b], p: 9}\nd: *a\n");
  EXPECT_EQ(tree.find("c")->find("p")->scalar, "9");
  EXPECT_EQ(tree.find("c")->find("q")->scalar, "2");
  EXPECT_EQ(tree.find("c")->find("r")->scalar, "4");
  EXPECT_EQ(*tree.find("d"), *tree.find("x-a"));
}

TEST(YamlTree, RefusesWithPlace) {
  EXPECT_EQ(where("a: 1\nb: 2\na: 3\n"), "r.yaml:3:1");
  EXPECT_EQ(parse_error("a: 1\nb: 2\na: 3\n").message(), "duplicate key 'a' (first on line 1)");
  EXPECT_EQ(where("a:\n\tb: 1\n"), "r.yaml:2:1");
  EXPECT_EQ(where("a: !!int 3\n"), "r.yaml:1:4");
  EXPECT_EQ(where("a: !x {b: 1}\n"), "r.yaml:1:4");
  EXPECT_EQ(where("a: ! b\n"), "r.yaml:1:4");
  EXPECT_EQ(where("a: 1\n---\nb: 2\n").substr(0, 7), "r.yaml:");
  EXPECT_NE(parse_error("a: 1\n---\nb: 2\n").message().find("second document"), std::string::npos);
  EXPECT_EQ(where("&a [*a]"), "r.yaml:1:5");
  EXPECT_NE(parse_error("a: &a {b: *a}\n").message().find("cycle"), std::string::npos);
  EXPECT_EQ(where("? [a]\n: 1\n"), "r.yaml:1:3");
  EXPECT_EQ(where("a: b\x01\n"), "r.yaml:1:5");
  EXPECT_EQ(where("a: \xC3(\n"), "r.yaml:1:4");
  EXPECT_EQ(where("a: [1, 2\n").substr(0, 7), "r.yaml:");
  EXPECT_EQ(where("<<: 3\n"), "r.yaml:1:1");
  EXPECT_EQ(parse_error("a: *b\n").code(), ErrorCode::kRecipe);
}

TEST(YamlTree, ExcerptPointsAtCharacters) {
  EXPECT_EQ(parse_error("äö: 1\n\"äö\": 2\n").text(),
            "r.yaml:2:1: error: duplicate key 'äö' (first on line 1)\n 2 | \"äö\": 2\n   | ^~~~  remove one of the two");
  EXPECT_EQ(parse_error("ä: !x 1\n").text(),
            "r.yaml:1:4: error: a tag (!x); types come from the schema\n 1 | ä: !x 1\n   |    ^  remove the tag");
}

TEST(YamlTree, BombsAreRefusedWithLittleWork) {
  std::string alias = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c <= 'j'; ++c) {
    alias += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) alias += std::string(i ? "," : "") + "*" + static_cast<char>(c - 1);
    alias += "]\n";
  }
  std::string keys, in_flow = "{", items = "a: [", many_maps;
  for (int i = 0; i < 100'000; ++i) {
    keys += "k" + std::to_string(i) + ":\n";
    items += "1,";
  }
  for (int i = 0; i < 80'000; ++i) in_flow += "key" + std::to_string(i) + ": 1,";
  for (int i = 0; i < 60'000; ++i) many_maps += "- {a: 1}\n";
  std::string block;
  for (int i = 0; i < 900; ++i) block += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  std::string anchors;
  for (int i = 0; i < 60; ++i) anchors += "&a" + std::to_string(i) + " [";
  for (int i = 0; i < 2000; ++i) anchors += "1,";
  anchors += std::string(60, ']');
  const std::vector<std::pair<const char*, std::string>> bombs{
      {"alias", alias},
      {"100k keys", keys},
      {"flow keys", in_flow + "}"},
      {"100k items", items + "]"},
      {"60k maps", many_maps},
      {"flow depth", "a: " + std::string(500'000, '[')},
      {"flow depth, closed", "a: " + std::string(100, '[') + std::string(100, ']')},
      {"block depth", block},
      {"sequence depth",
       [] {
         std::string s;
         for (int i = 0; i < 400'000; ++i) s += "- ";
         return s;
       }()},
      {"lines of brackets",
       [] {
         std::string s = "a: ";
         for (int i = 0; i < 4000; ++i) s += "[[[[[[[[\n ";
         return s;
       }()},
      {"nested anchors", anchors},
      {"size", std::string((1 << 20) + 1, ' ')}};
  for (const auto& [name, text] : bombs) {
    SCOPED_TRACE(name);
    const int64_t before = allocations();
    const Error error = parse_error(text);
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_EQ(error.place().file, "r.yaml");
    EXPECT_LT(allocations() - before, kMostAllocations) << name;
  }
}

TEST(YamlTree, BoundsLetRealRecipesThrough) {
  std::string keys;
  for (int i = 0; i < 1999; ++i) keys += "k" + std::to_string(i) + ": 1\n";
  EXPECT_EQ(parse(keys).entries.size(), 1999u);
  const YamlNode deep = parse("a: " + std::string(60, '[') + std::string(60, ']'));
  EXPECT_TRUE(deep.find("a")->is_list());
  EXPECT_EQ(parse("a: \"[[[[[[[[[[[[\"  # [[[[[\n").find("a")->scalar, "[[[[[[[[[[[[");
}

TEST(YamlTree, TheLongestKeysReadBackAndLongerOnesAreRefused) {
  // In the output, every byte becomes an escape of six characters, and YAML limits a key to 1024 characters (found by fuzzing).
  std::string escaped;
  for (int i = 0; i < 160; ++i) escaped += "\\x01";
  const YamlNode tree = parse("a:\n  \"" + escaped + "\": {b: 1}\n");
  EXPECT_EQ(parse(emit_yaml(tree)), tree);
  const Error error = parse_error("a: 1\n? " + std::string(161, 'k') + "\n: 2\n");
  EXPECT_EQ(error.place().line, 2);
  EXPECT_NE(error.message().find("161 bytes"), std::string::npos) << error.message();
}

struct Escape {
  const char* written;
  const char* character;  // UTF-8
  const char* dumped;     // how emit_yaml writes it between x and y; "": without quotes
};

// All escapes of YAML 1.2 (section 5.7), and \'. The output has an escape if YAML defines the character as not printable, or if it looks
// like a line break or a space.
constexpr Escape kEscapes[] = {{"\\a", "\x07", "\\x07"},
                               {"\\b", "\x08", "\\x08"},
                               {"\\t", "\t", "\\t"},
                               {"\\n", "\n", "\\n"},
                               {"\\v", "\x0B", "\\x0b"},
                               {"\\f", "\x0C", "\\x0c"},
                               {"\\r", "\r", "\\x0d"},
                               {"\\e", "\x1B", "\\x1b"},
                               {"\\ ", " ", ""},
                               {"\\\"", "\"", "\\\""},
                               {"\\/", "/", ""},
                               {"\\\\", "\\", "\\\\"},
                               {"\\N", "\xC2\x85", "\\N"},
                               {"\\_", "\xC2\xA0", "\\_"},
                               {"\\L", "\xE2\x80\xA8", "\\L"},
                               {"\\P", "\xE2\x80\xA9", "\\P"},
                               {"\\x41", "A", ""},
                               {"\\x7f", "\x7F", "\\x7f"},
                               {"\\x80", "\xC2\x80", "\\x80"},
                               {"\\xa0", "\xC2\xA0", "\\_"},
                               {"\\xff", "\xC3\xBF", "\xC3\xBF"},
                               {"\\u00e9", "\xC3\xA9", "\xC3\xA9"},
                               {"\\u0085", "\xC2\x85", "\\N"},
                               {"\\u20AC", "\xE2\x82\xAC", "\xE2\x82\xAC"},
                               {"\\ufeff", "\xEF\xBB\xBF", "\\ufeff"},
                               {"\\uffff", "\xEF\xBF\xBF", "\\uffff"},
                               {"\\uD7FF", "\xED\x9F\xBF", "\xED\x9F\xBF"},
                               {"\\U0001F600", "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
                               {"\\U0010FFFF", "\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
                               {"\\'", "'", "'"},
                               {"\\\n    ", "", ""}};

TEST(YamlTree, EveryEscapeIsReadAndWrittenSoThatItReadsBack) {
  for (const Escape& escape : kEscapes) {
    SCOPED_TRACE(escape.written);
    const std::string value = cat("x", escape.character, "y");
    // As a value, as a key, twice in a row, in a list, and next to characters of two to four bytes.
    const std::string more = cat("\xC3\xA9", escape.written, escape.written, "\xF0\x9F\x98\x80", escape.written);
    const std::string text = cat("n: \"x", escape.written, "y\"\n? \"x", escape.written, "y\"\n: [\"", more, "\"]\n");
    const YamlNode tree = parse(text);
    EXPECT_EQ(tree.find("n")->scalar, value);
    ASSERT_NE(tree.find(value), nullptr);
    EXPECT_EQ(tree.find(value)->items[0].scalar, cat("\xC3\xA9", escape.character, escape.character, "\xF0\x9F\x98\x80", escape.character));
    const std::string dumped = emit_yaml(tree);
    EXPECT_EQ(parse(dumped), tree) << dumped;
    EXPECT_EQ(emit_yaml(parse(dumped)), dumped);
    const std::string expected = *escape.dumped ? cat("n: \"x", escape.dumped, "y\"\n") : cat("n: ", value, "\n");
    EXPECT_EQ(dumped.substr(0, expected.size()), expected);
  }
}

TEST(YamlTree, EscapesThatAreNoTextAreRefusedWithTheirPlace) {
  struct Refused {
    const char* escape;
    const char* place;
    const char* message;
    const char* remedy;
  };
  for (const Refused& refused :
       {Refused{"\\0", "r.yaml:2:4", "a zero byte", "remove the escape"}, Refused{"\\x00", "r.yaml:2:4", "a zero byte", "remove"},
        Refused{"\\u0000", "r.yaml:2:4", "a zero byte", "remove"},
        Refused{"\\q", "r.yaml:2:8", "unknown escape character: q", "write \\\\ for"},
        Refused{"\\x4", "r.yaml:2:10", "hex number", "\\x takes 2"}, Refused{"\\u12g4", "r.yaml:2:12", "hex number", "\\u takes 4"},
        Refused{"\\uD83D\\uDE00", "r.yaml:2:12", "invalid unicode", "\\U and 8 digits"},
        Refused{"\\U00110000", "r.yaml:2:16", "invalid unicode", "at most \\U0010FFFF"}}) {
    SCOPED_TRACE(refused.escape);
    const Error error = parse_error(cat("a: 1\nn: \"x", refused.escape, "y\"\n"));
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_EQ(error.place().str(), refused.place);
    EXPECT_NE(error.message().find(refused.message), std::string::npos) << error.message();
    EXPECT_NE(error.suggestion().find(refused.remedy), std::string::npos) << error.suggestion();
  }
  EXPECT_EQ(where("\"a\\0\": 1\n"), "r.yaml:1:1");  // a key
}

TEST(YamlTree, SeedsOfTheFuzzerReadBack) {
  int seeds = 0;
  for (const auto& file : std::filesystem::directory_iterator(GALLEY_SOURCE_DIR "/tests/fuzz/seeds/yaml")) {
    SCOPED_TRACE(file.path());
    const YamlNode tree = parse(read_file(file.path()));
    EXPECT_EQ(parse(emit_yaml(tree)), tree);
    ++seeds;
  }
  EXPECT_GE(seeds, 3);
}

TEST(YamlTree, EmittedTextReadsBack) {
  const YamlNode tree = parse(
      "a: {type: sgd, lr: 0.1}\nb: [1, [2, x], {c: d}]\nc: \"# no: comment\"\nd: 'null'\ne: null\nf: \"\\n\\u00e4\\x01\"\ng: ''\nh: {}\ni: "
      "[]\n"
      "j: [{type: a, k: [1, 2]}, {type: b}]\n'<<': x\n\"k: l\": '- m'\nn: a, b\no: '-'\np: {q: {r: {s: t}}}\nu: [[{v: 1}], [2]]\nw: 'a  "
      "'\nx: '~'\ny: '*z'\n");
  const std::string text = emit_yaml(tree);
  EXPECT_EQ(parse(text), tree) << text;
  EXPECT_EQ(emit_yaml(parse("a: {type: sgd, lr: 0.1}\np: {q: 1}\nl: [{type: a}, {type: b, c: d}]\n")),
            "a: {type: sgd, lr: 0.1}\np:\n  q: 1\nl:\n  - {type: a}\n  - {type: b, c: d}\n");
  // With origins, every value has its own line.
  EXPECT_EQ(emit_yaml(parse("l: [{type: a, b: 1}]\n"), {.origins = true}),
            "l:\n  - type: a" + std::string(39, ' ') + "# r.yaml:1\n    b: 1" + std::string(42, ' ') + "# r.yaml:1\n");
  EXPECT_EQ(emit_yaml(parse("a: $x")), "a: \"$$x\"\n");
  // Brackets and commas in strings do not count for the parser's limits on nesting, for any folding and number of strings.
  const std::string line(107, '[');
  for (const std::string& given : {"a: \"x" + line + "\n  " + line + "\n  " + line + "\"\n", "a: &b \"{" + line + "\"\nc: [*b, *b, *b]\n",
                                   "a:\n  - \"" + std::string(60000, ',') + "\"\nb: \"[1, {c}]\"\n"}) {
    const YamlNode strings = parse(given);
    EXPECT_EQ(parse(emit_yaml(strings)), strings) << given.substr(0, 200);
  }
  EXPECT_EQ(emit_yaml(parse("b: \"[1, {c}]\"\n")), "b: \"[1, {c}]\"\n");  // unchanged if possible
}

}  // namespace
}  // namespace galley::recipe_test
