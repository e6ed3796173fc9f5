// Ids, places and texts equal those of tiktoken, tokenizers and sentencepiece.

#include "tests/text/golden.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/utf8.h"
#include "libcore/text/readers.h"
#include "libcore/text/tokenizer.h"

namespace galley::text {
namespace {

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  constexpr std::string_view kEnd = ".case.json";
  for (const FolderEntry& entry : list_folder(golden_folder())) {
    if (entry.name.ends_with(kEnd)) names.push_back(entry.name.substr(0, entry.name.size() - kEnd.size()));
  }
  return names;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    expected_ = golden_json(GetParam() + ".case.json");
#ifndef GALLEY_TEST_SENTENCEPIECE
    if (expected_["file"].get<std::string>().ends_with(".model")) GTEST_SKIP() << "this build has no SentencePiece";
#endif
    ReadOptions options;
    options.pattern = expected_.value("pattern", "");
    tokenizer_ = read_tokenizer(golden_folder() + "/" + expected_["file"].get<std::string>(), options);
  }
  nlohmann::json expected_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> texts_ = golden_texts();
};

/// Where normalization joined or replaced text, the reference gives one of its characters, and this one all of them; text that was inserted
/// has an empty place here and that of its neighbor there.
bool same_places(const nlohmann::json& is, const nlohmann::json& expected, bool normalized) {
  if (is == expected) return true;
  if (!normalized || is.size() != expected.size()) return false;
  for (size_t i = 0; i < is.size(); ++i) {
    const bool inserted = is[i][0] == is[i][1];
    if (!inserted && (is[i][0] > expected[i][0] || is[i][1] < expected[i][1])) return false;
  }
  return true;
}

TEST_P(Golden, IdsAreTheReferences) {
  int different = 0;
  for (size_t i = 0; i < texts_.size() && different < 5; ++i) {
    if (expected_["ids"][i].is_null()) continue;  // The reference's tables of Unicode are too old for this text.
    const auto ids = tokenizer_->encode(texts_[i]);
    const auto expected = expected_["ids"][i].get<std::vector<int32_t>>();
    if (ids == expected) continue;
    ++different;
    ADD_FAILURE() << "text " << i << " " << shown(texts_[i]) << "\n  is       " << nlohmann::json(ids) << "\n  expected "
                  << expected_["ids"][i];
  }
}

TEST_P(Golden, TokensHaveTheSameIdsAndValidPlaces) {
  int different = 0;
  for (size_t i = 0; i < texts_.size() && different < 5; ++i) {
    std::vector<int32_t> ids;
    std::vector<std::vector<uint32_t>> places;
    for (const Token& token : tokenizer_->tokens(texts_[i])) {
      ids.push_back(token.id);
      places.push_back({token.begin, token.end});
      ASSERT_LE(token.begin, token.end);
      ASSERT_LE(token.end, texts_[i].size());
    }
    ASSERT_EQ(ids, tokenizer_->encode(texts_[i])) << shown(texts_[i]);
    if (!expected_.contains("offsets") || expected_["offsets"][i].is_null() || same_places(places, expected_["offsets"][i], true)) continue;
    ++different;
    ADD_FAILURE() << "text " << i << " " << shown(texts_[i]) << "\n  is       " << nlohmann::json(places) << "\n  expected "
                  << expected_["offsets"][i];
  }
}

TEST_P(Golden, TextsAreTheReferences) {
  int different = 0;
  const auto check = [&](const nlohmann::json& ids, const std::string& expected) {
    const auto list = ids.get<std::vector<int32_t>>();
    const std::string text = tokenizer_->decode(list);
    if (text == expected) return;
    ++different;
    ADD_FAILURE() << ids << "\n  is       " << shown(text) << "\n  expected " << shown(expected);
  };
  for (size_t i = 0; i < texts_.size() && different < 5; ++i) {
    if (expected_["ids"][i].is_null()) continue;
    const auto& decoded = expected_["decoded"][i];
    check(expected_["ids"][i], decoded.is_null() ? texts_[i] : decoded.get<std::string>());
  }
  for (size_t i = 0; i < expected_["random_ids"].size() && different < 5; ++i)
    check(expected_["random_ids"][i], expected_["random_decoded"][i].get<std::string>());
}

TEST_P(Golden, AStreamGivesTheSameTextInWholeCharacters) {
  const auto stream = tokenizer_->stream();
  for (const auto& ids : expected_["random_ids"]) {
    std::string text;
    const auto list = ids.get<std::vector<int32_t>>();
    for (const int32_t id : list) {
      const std::string part = stream->push(id);
      ASSERT_EQ(find_invalid_utf8(part), std::string::npos) << ids;
      text += part;
    }
    text += stream->finish();
    // SentencePiece's and the byte fallback's text of broken characters depends on all their neighbors.
    if (text.find("\xEF\xBF\xBD") == std::string::npos) {
      ASSERT_EQ(text, tokenizer_->decode(list)) << ids;
    }
  }
}

TEST_P(Golden, PairsAreTheReferences) {
  for (const auto& pair : expected_.value("pairs", nlohmann::json::array())) {
    std::vector<int32_t> ids, types;
    for (const Token& token : tokenizer_->pair(pair["texts"][0].get<std::string>(), pair["texts"][1].get<std::string>())) {
      ids.push_back(token.id);
      types.push_back(token.type);
    }
    ASSERT_EQ(nlohmann::json(ids), pair["ids"]) << pair["texts"];
    ASSERT_EQ(nlohmann::json(types), pair["types"]) << pair["texts"];
  }
}

INSTANTIATE_TEST_SUITE_P(Text, Golden, testing::ValuesIn(case_names()), [](const auto& info) { return info.param; });

TEST(GoldenComponents, DivideAsTheReferenceDoes) {
  for (const auto& entry : golden_json("components.json")) {
    const std::string name = entry["name"];
    std::unique_ptr<const Tokenizer> tokenizer;
    try {
      tokenizer = parse_tokenizer_json(entry["tokenizer"].dump(), name);
    } catch (const Error& error) {
      // Without PCRE2 a pattern that is not known is an error, which says so.
      ASSERT_NE(error.message().find("libpcre2-dev"), std::string::npos) << error.text();
      continue;
    }
    int different = 0;
    for (const auto& row : entry["rows"]) {
      const std::string text = row[0];
      nlohmann::json ids = nlohmann::json::array(), places = nlohmann::json::array();
      for (const Token& token : tokenizer->tokens(text)) {
        ids.push_back(token.id);
        places.push_back({token.begin, token.end});
      }
      const bool changes_text = !entry["tokenizer"]["normalizer"].is_null() || name.starts_with("metaspace");
      if (ids == row[1] && same_places(places, row[2], changes_text)) continue;
      if (++different > 2) break;
      ADD_FAILURE() << name << ": " << shown(text) << "\n  is       " << ids << " " << places << "\n  expected " << row[1] << " " << row[2];
    }
  }
}

}  // namespace
}  // namespace galley::text
