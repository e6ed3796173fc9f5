// Laws of tokenizers that hold without a reference.

#include "libcore/text/tokenizer.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/text/bpe.h"
#include "libcore/text/readers.h"
#include "libcore/text/scanner.h"
#include "libcore/text/train_bpe.h"
#include "libcore/text/unicode.h"
#include "tests/support/temporary_folder.h"
#include "tests/text/golden.h"

namespace galley::text {
namespace {

std::unique_ptr<const Tokenizer> golden_tokenizer(const std::string& name) { return read_tokenizer(golden_folder() + "/" + name); }

std::string every_code_point() {
  std::string text;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  return text;
}

TEST(ByteLevel, EveryTextComesBack) {
  const std::string all = every_code_point();
  for (const char* name : {"gpt2.json", "llama3.json", "o200k_hub.json", "tekken.json"}) {
    const auto tokenizer = golden_tokenizer(name);
    const EncodeOptions plain{.add_special = false};
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(all, plain)), all) << name;
    for (const std::string& text : golden_texts()) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, plain)), text) << shown(text);
  }
}

TEST(ByteLevel, PlacesFollowEachOther) {
  const auto tokenizer = golden_tokenizer("llama3.json");
  for (const std::string& text : golden_texts()) {
    uint32_t at = 0;
    for (const Token& token : tokenizer->tokens(text, {.add_special = false})) {
      ASSERT_EQ(token.begin, at);
      ASSERT_EQ(tokenizer->decode({&token.id, 1}), replace_invalid_utf8(text.substr(token.begin, token.end - token.begin)));
      at = token.end;
    }
    EXPECT_EQ(at, text.size());
  }
}

TEST(ByteLevel, AMegabyteWithoutASpaceIsOnePiece) {
  const auto tokenizer = golden_tokenizer("gpt2.json");
  for (const std::string part : {"a", "the", "\xE4\xBD\xA0", " ", "9", "\n"}) {
    std::string text;
    while (text.size() < 1 << 20) text += part;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(ByteLevel, SeveralThreadsGetTheSameIds) {
  const auto tokenizer = golden_tokenizer("gpt2.json");
  const std::vector<std::string> texts = golden_texts();
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& own : ids)
    threads.emplace_back([&] {
      for (const std::string& text : texts) tokenizer->encode(text, own);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : ids) EXPECT_EQ(own, ids[0]);
}

// Merging as the definition has it: look at all pairs, merge the leftmost of the lowest rank.
std::vector<uint32_t> merged_by_definition(const MergeTable& table, std::vector<uint32_t> ids) {
  for (;;) {
    uint32_t lowest = MergeTable::kNone;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const uint32_t rank = table.find(ids[i], ids[i + 1]);
      if (rank < lowest) lowest = rank, at = i;
    }
    if (lowest == MergeTable::kNone) return ids;
    ids[at] = table.merged(lowest);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

/// The same for long words, by a set of all pairs in their order.
std::vector<uint32_t> merged_by_set(const MergeTable& table, std::vector<uint32_t> ids) {
  std::set<std::pair<uint32_t, size_t>> pairs;  // rank and place
  std::set<size_t> places;
  for (size_t i = 0; i < ids.size(); ++i) places.insert(places.end(), i);
  const auto pair_at = [&](std::set<size_t>::iterator place) {
    const auto next = std::next(place);
    return std::pair{next == places.end() ? MergeTable::kNone : table.find(ids[*place], ids[*next]), *place};
  };
  const auto add = [&](std::set<size_t>::iterator place) {
    if (pair_at(place).first != MergeTable::kNone) pairs.insert(pair_at(place));
  };
  for (auto place = places.begin(); place != places.end(); ++place) add(place);
  while (!pairs.empty()) {
    const auto [rank, at] = *pairs.begin();
    const auto place = places.find(at), right = std::next(place);
    if (place != places.begin()) pairs.erase(pair_at(std::prev(place)));
    pairs.erase(pair_at(place));
    pairs.erase(pair_at(right));
    places.erase(right);
    ids[at] = table.merged(rank);
    add(place);
    if (place != places.begin()) add(std::prev(place));
  }
  std::vector<uint32_t> merged;
  for (const size_t place : places) merged.push_back(ids[place]);
  return merged;
}

struct Words {
  uint32_t random(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state >> 33) % below);
  }
  /// A table of 30 symbols above `letters` that start at `first`, each made in two ways of one rank, as in a table of ranked tokens.
  MergeTable table(uint32_t first, uint32_t letters) {
    MergeTable made(1);
    uint32_t next = first + letters;
    for (uint32_t i = 0; i < 30; ++i, ++next) {
      const uint32_t rank = random(40) * 30 + i;
      for (int way = 0; way < 2; ++way) made.set(first + random(next - first), first + random(next - first), rank, next);
    }
    return made;
  }
  uint64_t state = 1;
};

/// Merges symbols of these ids, whose lengths are 1, 2 and 3 in turn.
void expect_merged(const MergeTable& table, const std::vector<uint32_t>& ids, const std::vector<uint32_t>& expected) {
  std::vector<Symbol> symbols;
  uint32_t length = 0, whole = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    symbols.push_back({ids[i], static_cast<uint32_t>(1 + i % 3)});
    whole += symbols.back().length;
  }
  Merger().merge(table, symbols);
  std::vector<uint32_t> merged;
  for (const Symbol& symbol : symbols) merged.push_back(symbol.id), length += symbol.length;
  ASSERT_EQ(length, whole);
  ASSERT_EQ(merged, expected);
}

TEST(Merger, WordsFollowTheDefinition) {
  Words words;
  for (int round = 0; round < 300; ++round) {
    const uint32_t first = words.random(2) * 260, letters = 2 + words.random(3);  // In the table's square, and across its end.
    const MergeTable table = words.table(first, letters);
    std::vector<uint32_t> ids(1 + words.random(round < 200 ? 200 : 1500));
    for (uint32_t& id : ids) id = first + words.random(letters);
    SCOPED_TRACE(cat("round ", round, ", ", ids.size(), " symbols"));
    ASSERT_NO_FATAL_FAILURE(expect_merged(table, ids, merged_by_definition(table, ids)));
    ASSERT_NO_FATAL_FAILURE(expect_merged(table, ids, merged_by_set(table, ids)));
  }
}

// Words of one window, of several that can be joined, and of some that cannot.
TEST(Merger, LongWordsFollowTheDefinition) {
  Words words;
  for (int round = 0; round < 60; ++round) {
    const uint32_t letters = 1 + words.random(4);
    const MergeTable table = words.table(0, letters);
    std::vector<uint32_t> ids(16000 + words.random(40000));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = round % 4 == 0 ? static_cast<uint32_t>(i / 3 % letters) : words.random(letters);
    SCOPED_TRACE(cat("round ", round, ", ", ids.size(), " symbols"));
    ASSERT_NO_FATAL_FAILURE(expect_merged(table, ids, merged_by_set(table, ids)));
  }
}

// The last letter decides about all before it: a z = y and a y = z leave one symbol.
TEST(Merger, WhatEndsAWordMayChangeItsBeginning) {
  MergeTable table(2);
  constexpr uint32_t kA = 0, kY = 1, kZ = 2;
  table.set(kA, kZ, 0, kY);
  table.set(kA, kY, 1, kZ);
  for (const size_t count : {100, 1000, 16384, 30000, 50001}) {
    std::vector<uint32_t> ids(count, kA);
    ASSERT_NO_FATAL_FAILURE(expect_merged(table, ids, ids)) << count;
    ids.push_back(kZ);
    ASSERT_NO_FATAL_FAILURE(expect_merged(table, ids, {count % 2 == 0 ? kZ : kY})) << count;
  }
}

TEST(Scanner, PiecesCoverTheText) {
  const std::string all = every_code_point();
  for (const KnownPattern& pattern : known_patterns()) {
    const char* p = all.data();
    const char* end = p + all.size();
    while (p < end) {
      const char* q = pattern.scan(p, end);
      ASSERT_LT(p, q) << pattern.name;
      ASSERT_LE(q, end);
      ASSERT_TRUE(q == end || (static_cast<uint8_t>(*q) & 0xC0) != 0x80) << pattern.name << " cuts a character";
      p = q;
    }
  }
}

TEST(Scanner, WhiteSpaceGivesItsLastCharacterToTheNextWord) {
  const auto pieces = [](std::string_view name, std::string_view text) {
    std::vector<std::string> out;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* q = pattern_named(name).scan(p, end);
      out.emplace_back(p, q);
      p = q;
    }
    return out;
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(pieces("gpt2", "a   b"), (List{"a", "  ", " b"}));
  EXPECT_EQ(pieces("gpt2", "a  \tb"), (List{"a", "  ", "\t", "b"}));
  EXPECT_EQ(pieces("gpt2", "a   "), (List{"a", "   "}));
  EXPECT_EQ(pieces("gpt2", "it's 'S 12ab"), (List{"it", "'s", " '", "S", " 12", "ab"}));
  EXPECT_EQ(pieces("llama3", "IT'S \t\n x1234"), (List{"IT", "'S", " \t\n", " x", "123", "4"}));
  EXPECT_EQ(pieces("qwen2", "12"), (List{"1", "2"}));
  EXPECT_EQ(pieces("llama3", "a\n  "), (List{"a", "\n", "  "}));
  EXPECT_EQ(pieces("cl100k", "a\n  "), (List{"a", "\n  "}));
  EXPECT_EQ(pieces("o200k", "HelloWORLDs's"), (List{"Hello", "WORLDs's"}));
  EXPECT_EQ(pieces("tekken", "x//\n12"), (List{"x", "//\n", "1", "2"}));
}

TEST(Stream, HoldsBackUnfinishedCharacters) {
  const auto bytes = byte_tokenizer();
  const auto stream = bytes->stream();
  EXPECT_EQ(stream->push(0xE2), "");
  EXPECT_EQ(stream->push(0x82), "");
  EXPECT_EQ(stream->push(0xAC), "\u20AC");
  EXPECT_EQ(stream->push(0xC0), "\uFFFD");  // Never begins a character.
  EXPECT_EQ(stream->push(0xF0), "");
  EXPECT_EQ(stream->push(0x80), "\uFFFD\uFFFD");  // Overlong: neither byte can become valid.
  EXPECT_EQ(stream->push(0xF0), "");
  EXPECT_EQ(stream->push(0x9F), "");
  EXPECT_EQ(stream->push('a'), "\uFFFDa");
  EXPECT_EQ(stream->push(0xE2), "");
  EXPECT_EQ(stream->finish(), "\uFFFD");
  EXPECT_EQ(stream->finish(), "");
}

TEST(Special, AreAddedParsedAndSkippedAsAsked) {
  const auto tokenizer = golden_tokenizer("llama3.json");
  const int32_t begin = tokenizer->id("<|begin_of_text|>").value();
  EXPECT_TRUE(tokenizer->is_special(begin));
  const auto with = tokenizer->encode("a"), without = tokenizer->encode("a", {.add_special = false});
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(with[0], begin);
  const std::string spelled = "a<|endoftext|>";
  EXPECT_EQ(tokenizer->encode(spelled).size(), 3u);
  const auto plain = tokenizer->encode(spelled, {.add_special = false, .parse_special = false});
  EXPECT_GT(plain.size(), 3u);
  EXPECT_EQ(tokenizer->decode(plain), spelled);
  EXPECT_EQ(tokenizer->decode(with, true), "a");
  EXPECT_EQ(tokenizer->decode(with, false), "<|begin_of_text|>a");
}

TEST(Characters, AreInTheOrderOfTheirCodePoints) {
  const auto tokenizer = character_tokenizer("b\u00E9a\U0001F600\n\u4F60");
  EXPECT_EQ(tokenizer->encode("\nab\u00E9\u4F60\U0001F600"), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{5, 1}), "\U0001F600a");
  try {
    tokenizer->encode("ab\nbx", {.name = "f.txt"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.place().str(), "f.txt:2:2");
    EXPECT_NE(error.message().find("character 'x'"), std::string::npos);
  }
}

TEST(Words, HaveADefault) {
  const auto tokenizer = word_tokenizer({"<unk>", "a", "film"}, "<unk>");
  EXPECT_EQ(tokenizer->encode(" a fine\nfilm "), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2}), "a film");
  EXPECT_THROW(word_tokenizer({"a"}, "")->encode("b"), Error);
  EXPECT_THROW(word_tokenizer({"a"}, "<unk>"), Error);
}

// The bytes of tokens are those of the text: exactly for tokenizers of bytes and characters, with a space before the text where a tokenizer
// adds one.
TEST(Bytes, OfTokensAreThoseOfTheText) {
  const auto joined = [](const Tokenizer& tokenizer, const std::string& text) {
    std::string bytes;
    for (const int32_t id : tokenizer.encode(text, {.add_special = false})) bytes += tokenizer.bytes(id);
    return bytes;
  };
  for (const char* name : {"gpt2.json", "llama3.json", "tik_gpt2.tiktoken"}) {
    const auto tokenizer = read_tokenizer(golden_folder() + "/" + name, {.pattern = std::string(name).ends_with(".json") ? "" : "gpt2"});
    for (const std::string& text : golden_texts()) EXPECT_EQ(joined(*tokenizer, text), text) << name;
  }
  const std::string text = "st\u00F6p the \u20AC \U0001F600!";
  EXPECT_EQ(joined(*byte_tokenizer(), text), text);
  EXPECT_EQ(joined(*character_tokenizer("\u00F6stpeh \u20AC!\U0001F600"), "st\u00F6p \u20AC"), "st\u00F6p \u20AC");
  EXPECT_EQ(joined(*golden_tokenizer("llama2.json"), text), " " + text) << "with bytes that it has no pieces for";
  EXPECT_EQ(joined(*word_tokenizer({"a", "film"}, ""), "a film"), " a film");
  EXPECT_THROW(byte_tokenizer()->bytes(256), Error);
}

// Weight files carry what saved() writes; the files themselves may be gone.
TEST(Saved, MakesTheSameTokenizerWithoutItsFiles) {
  const std::vector<std::string> texts = golden_texts();
  for (const char* name :
       {"gpt2.json", "gpt2_files", "tik_cl100k.tiktoken", "bert_vocab.txt", "bert.json", "unigram.json", "spm_unigram.model"}) {
    const std::string path = golden_folder() + "/" + name;
    if (!file_exists(path)) FAIL() << path;
    std::unique_ptr<const Tokenizer> first;
    try {
      first = read_tokenizer(path, {.pattern = std::string(name).starts_with("tik_") ? "cl100k" : ""});
    } catch (const Error& error) {
      EXPECT_NE(error.text().find("this build cannot read"), std::string::npos) << error.text();
      continue;
    }
    const std::string saved = first->saved();
    const auto second = load_tokenizer(saved, "weights");
    EXPECT_EQ(second->saved(), saved) << name;
    EXPECT_EQ(second->str(), first->str());
    ASSERT_EQ(second->size(), first->size());
    EXPECT_EQ(second->special_tokens(), first->special_tokens());
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = first->encode(text);
      ASSERT_EQ(second->encode(text), ids) << name << ": " << shown(text);
      EXPECT_EQ(second->decode(ids), first->decode(ids));
    }
    EXPECT_NO_THROW(static_cast<void>(nlohmann::json(saved).dump())) << "it is UTF-8, whatever the files hold";
  }
}

TEST(Saved, FlagsOfTheReaderTravelToo) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/vocab.txt";
  write_file(path, "[UNK]\n[CLS]\n[SEP]\nabc\nABC\n");
  const auto cased = read_tokenizer(path, {.lowercase = false});
  EXPECT_EQ(load_tokenizer(cased->saved(), "w")->encode("ABC"), (std::vector<int32_t>{1, 4, 2}));
  EXPECT_EQ(load_tokenizer(read_tokenizer(path)->saved(), "w")->encode("ABC"), (std::vector<int32_t>{1, 3, 2}));
  write_file(folder.path() + "/tokenizer_config.json", R"({"do_lower_case": false})");
  const std::string saved = read_tokenizer(path)->saved();
  remove_tree(folder.path() + "/tokenizer_config.json");
  EXPECT_EQ(load_tokenizer(saved, "w")->encode("ABC"), (std::vector<int32_t>{1, 4, 2}));
  const auto words = word_tokenizer({"<x>", "a", "film"}, "<x>");
  EXPECT_EQ(load_tokenizer(words->saved(), "w")->encode("a fine film"), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_THROW(load_tokenizer(word_tokenizer({"a"}, "")->saved(), "w")->encode("b"), Error);
}

// What galley.tokenizer held before there were files of tokenizers.
TEST(Saved, FormsOfEarlierVersionsAreRead) {
  const auto characters = load_tokenizer("char \n0123456789", "w");
  EXPECT_EQ(characters->encode("90\n"), (std::vector<int32_t>{10, 1, 0}));
  EXPECT_EQ(characters->saved(), "char \n0123456789");
  EXPECT_EQ(character_tokenizer("\u00E9z\U0001F600a")->saved(), "char az\u00E9\U0001F600");
  EXPECT_EQ(load_tokenizer("byte", "w")->size(), 256);
  EXPECT_EQ(byte_tokenizer()->saved(), "byte");
}

TEST(Train, LearnsWhatTheReferenceLearns) {
  const nlohmann::json expected = golden_json("trained.json");
  for (const char* pattern : {"gpt2", "llama3"}) {
    const nlohmann::json& reference = expected[pattern];
    BpeTrainer trainer({.vocabulary = reference["vocabulary"], .min_count = 2, .pattern = pattern, .special = {"<|endoftext|>"}});
    BpeTrainer reversed({.vocabulary = reference["vocabulary"], .min_count = 2, .pattern = pattern, .special = {"<|endoftext|>"}});
    const std::vector<std::string> texts = golden_texts();
    for (const std::string& text : texts) trainer.add(text, "text");
    for (size_t i = texts.size(); i-- > 0;) reversed.add(texts[i], "text");
    const std::string file = trainer.finish();
    EXPECT_EQ(file, reversed.finish());
    const auto json = nlohmann::json::parse(file);
    EXPECT_EQ(json["model"]["vocab"], reference["vocab"]);
    EXPECT_EQ(json["model"]["merges"], reference["merges"]);
    const auto tokenizer = parse_tokenizer_json(file, "trained");
    for (const std::string& text : texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(Train, RefusesContradictions) {
  EXPECT_THROW(BpeTrainer({.vocabulary = 255}), Error);
  EXPECT_THROW(BpeTrainer({.pattern = "nope"}), Error);
  EXPECT_THROW(BpeTrainer({.special = {"a"}}), Error);
  EXPECT_THROW(BpeTrainer({}).finish(), Error);
  EXPECT_THROW(BpeTrainer({}).add("\xC0\x80", "f"), Error);
}

}  // namespace
}  // namespace galley::text
