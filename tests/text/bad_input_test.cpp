// Damaged files and texts are one error, with the file and the place.

#include <gtest/gtest.h>

#include <functional>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/text/readers.h"
#include "libcore/text/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/text/golden.h"

namespace galley::text {
namespace {

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    return error.text();
  }
  return "no error";
}
#define EXPECT_ERROR(statement, part)                                              \
  do {                                                                             \
    const std::string error = error_of([&] { statement; });                        \
    EXPECT_NE(error.find(part), std::string::npos) << #statement << ": " << error; \
  } while (false)

TEST(BadText, IsAnErrorWithItsPlace) {
  const auto tokenizer = read_tokenizer(golden_folder() + "/gpt2.json");
  const EncodeOptions options{.name = "f.txt"};
  for (const std::string_view bad :
       {"\xC0\xAF", "\xE0\x80\x80", "\xF0\x80\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\x80", "\xE2\x82"}) {
    EXPECT_ERROR(tokenizer->encode("a\n\u00E9b" + std::string(bad), options), "f.txt:2:3");
    EXPECT_ERROR(tokenizer->tokens(bad, options), "f.txt:1:1");
    EXPECT_ERROR(character_tokenizer(bad), "the vocabulary:1:1");
    EXPECT_EQ(byte_tokenizer()->encode(bad).size(), bad.size());
  }
}

TEST(BadIds, AreErrors) {
  for (const char* name : {"gpt2.json", "bert.json", "unigram.json", "tik_gpt2.tiktoken"}) {
    const auto tokenizer = read_tokenizer(golden_folder() + "/" + name, {.pattern = "gpt2"});
    const auto size = static_cast<int32_t>(tokenizer->size());
    EXPECT_ERROR(tokenizer->decode(std::vector<int32_t>{0, size}), "out of range");
    EXPECT_ERROR(tokenizer->decode(std::vector<int32_t>{-1}), "out of range");
    EXPECT_ERROR(tokenizer->stream()->push(size), "out of range");
    EXPECT_ERROR(tokenizer->piece(size), "out of range");
  }
}

std::string with(const std::string& model, const std::string& rest = "") { return R"({"model":)" + model + rest + "}"; }

TEST(BadTokenizerJson, NamesTheFileAndThePlace) {
  const auto expect = [](const std::string& json, const std::string& part) {
    const std::string error = error_of([&] { parse_tokenizer_json(json, "t.json"); });
    EXPECT_TRUE(error.starts_with("t.json")) << error;
    EXPECT_NE(error.find(part), std::string::npos) << json << "\n" << error;
  };
  const std::string words = R"({"type":"WordLevel","unk_token":"u","vocab":{"u":0,"a":1}})";
  expect("", "t.json:1:1");
  expect("{\n \"model\": {", "t.json:2");
  expect("[]", "must be an object");
  expect("{}", "'model' is missing");
  expect(with(R"({"type":"WordLevel","vocab":{"\ud800":0}})"), "surrogate");
  expect(with(R"({"type":"WordLevel","vocab":{"a":0,"b":0}})"), "model.vocab: the id 0 belongs to 'a' and to 'b'");
  expect(with(R"({"type":"WordLevel","vocab":{"a":-1}})"), "out of range");
  expect(with(R"({"type":"WordLevel","vocab":{"a":4000000000}})"), "out of range");
  expect(with(R"({"type":"WordLevel","vocab":{"a":"0"}})"), "must be an integer");
  expect(with(R"({"type":"WordLevel","unk_token":"u","vocab":{"a":0}})"), "model.unk_token: 'u' is not in the vocabulary");
  expect(with(R"({"type":"Markov","vocab":{}})"), "the model 'Markov' is not implemented");
  expect(with(R"({"type":"BPE","vocab":{"a":0}})"), "'merges' is missing");
  expect(with(R"({"type":"BPE","vocab":{"a":0},"merges":["a b"]})"), "model.merges: [0]: the piece 'b' of the merge 'a b'");
  expect(with(R"({"type":"BPE","vocab":{"a":0},"merges":["a a"]})"), "the piece 'aa'");
  expect(with(R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})"), "[0] is not a merge");
  expect(with(R"({"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]})"), "model.dropout");
  expect(with(R"({"type":"Unigram","unk_id":3,"vocab":[["a",0]]})"), "model.unk_id: 3 is out of range");
  expect(with(R"({"type":"Unigram","vocab":[["a"]]})"), "model.vocab: [0]");
  expect(with(words, R"(,"added_tokens":[{"id":0,"content":"a"}])"), "added_tokens[0]: 'a' has the id 0 here and 1 in the vocabulary");
  expect(with(words, R"(,"added_tokens":[{"id":1,"content":"<x>"}])"), "added_tokens[0]: the id 1 belongs to");
  expect(with(words, R"(,"normalizer":{"type":"Rot13"})"), "normalizer: the normalizer 'Rot13' is not implemented");
  expect(with(words, R"(,"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"X"}]})"), "normalizer.normalizers[1]");
  expect(with(words, R"(,"normalizer":{"type":"Precompiled","precompiled_charsmap":"////fw=="})"), "precompiled_charsmap");
  expect(with(words, R"(,"normalizer":{"type":"Precompiled","precompiled_charsmap":"?"})"), "base64");
  expect(with(words, R"(,"pre_tokenizer":{"type":"UnicodeScripts"})"), "the pre-tokenizer 'UnicodeScripts' is not implemented");
  expect(with(words, R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"), "'('");
  expect(with(words, R"(,"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Isolate"})"), "behavior 'Isolate'");
  expect(with(words, R"(,"post_processor":{"type":"P"})"), "the post-processor 'P' is not implemented");
  expect(with(words, R"(,"post_processor":{"type":"BertProcessing","sep":["s",9],"cls":["c",0]})"), "the id 9 is not in the vocabulary");
  expect(with(words, R"(,"decoder":{"type":"D"})"), "the decoder 'D' is not implemented");
}

TEST(BadFiles, NameTheFileAndTheLine) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text) {
    write_file(folder.path() + "/" + name, text);
    return folder.path() + "/" + name;
  };
  EXPECT_ERROR(read_tokenizer(folder.path()), "no tokenizer in this folder");
  EXPECT_ERROR(read_tokenizer(folder.path() + "/none.json"), "none.json");
  EXPECT_ERROR(read_tokenizer(file("x.tiktoken", "YQ== 0\n")), "set pattern to one of gpt2, llama3");
  EXPECT_ERROR(read_tokenizer(file("gpt2.tiktoken", "YQ== 0\nYg=")), "gpt2.tiktoken:2");
  EXPECT_ERROR(read_tokenizer(file("gpt2.tiktoken", "YQ== 0\nYg== x\n")), "gpt2.tiktoken:2");
  EXPECT_ERROR(read_tokenizer(file("gpt2.tiktoken", "YQ== 0\nYg== 0\n")), "gpt2.tiktoken:2");
  EXPECT_ERROR(read_tokenizer(file("gpt2.tiktoken", "YQ== 0\n")), "tokens of some bytes");
  EXPECT_ERROR(read_tokenizer(file("vocab.txt", "[UNK]\na\n\n")), "vocab.txt:3");
  EXPECT_ERROR(read_tokenizer(file("vocab.txt", "[UNK]\na\na\n")), "vocab.txt:3");
  EXPECT_ERROR(read_tokenizer(file("vocab.txt", "a\n")), "[UNK]");
  EXPECT_ERROR(read_tokenizer(file("vocab.txt", "a\n\xFF\n")), "vocab.txt:2:1");
  EXPECT_ERROR(read_tokenizer(file("vocab.json", R"({"a": 0})")), "neither merges.txt nor vocab.bpe");
  file("merges.txt", "#version: 0.2\na b\n");
  EXPECT_ERROR(read_tokenizer(file("vocab.json", R"({"a": 0})")), "merges.txt:2");
  file("merges.txt", "#version: 0.2\na b c\n");
  EXPECT_ERROR(read_tokenizer(file("vocab.json", R"({"a": 0})")), "is not a merge");
  EXPECT_ERROR(read_tokenizer(file("vocab.json", "[]")), "vocab.json");
  EXPECT_ERROR(read_tokenizer(folder.path() + "/merges.txt"), "vocab.json: error: must be an object of pieces");
  EXPECT_ERROR(read_tokenizer(folder.path() + "/vocab.json", {.merges = folder.path() + "/m.txt"}), "m.txt");
  EXPECT_ERROR(read_tokenizer(folder.path(), {.type = "sentencepiece"}),
               "tokenizer.model, spiece.model or sentencepiece.bpe.model is expected");
  EXPECT_ERROR(read_tokenizer(folder.path() + "/none.json"), "none.json: no such file or folder");
  EXPECT_ERROR(read_tokenizer(file("t.model", "nonsense")), "t.model");
  EXPECT_ERROR(read_tokenizer(file("t.xyz", "")), "set the type");
  EXPECT_ERROR(read_tokenizer(folder.path(), {.type = "x"}), "unknown type of tokenizer 'x'");
  EXPECT_ERROR(read_tokenizer(file("w.txt", "a\n"), {.type = "vocabulary"}), "w.txt");
}

TEST(BadSaved, IsAnErrorThatNamesTheWeights) {
  const auto expect = [](const std::string& saved, const std::string& part) {
    const std::string error = error_of([&] { load_tokenizer(saved, "w.safetensors"); });
    EXPECT_NE(error.find("w.safetensors"), std::string::npos) << error;
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect("bpe 5", "'bpe 5' is not a saved tokenizer");
  expect("{", "is not valid JSON");
  expect("{}", "the key 'type' is missing");
  expect(R"({"type":"bpe","files":[]})", "files: 0 files are too few");
  expect(R"({"type":"bpe","files":[{"name":"vocab.json","text":"{}"}]})", "files: 1 files are too few");
  expect(R"({"type":"x","files":[{"name":"x","text":""}]})", "unknown type of tokenizer 'x'");
  expect(R"({"type":"sentencepiece","files":[{"name":"a.model","base64":"?"}]})", "files[0]: is not base64");
  expect(R"({"type":"tokenizer_json","files":[{"name":"tokenizer.json","text":"{\n]"}]})", "w.safetensors: tokenizer.json:2:1");
  EXPECT_ERROR(load_tokenizer("char aba", "w"), "'a'");
  EXPECT_ERROR(load_tokenizer("char ", "w"), "empty");
}

// Whatever is cut off or changed, a reader throws Error or reads: it neither crashes nor hangs.
TEST(BadFiles, AnyDamageIsAnError) {
  for (const char* name : {"bert.json", "llama2.json", "unigram.json"}) {
    const std::string good = read_file(golden_folder() + "/" + name);
    for (size_t i = 0; i < 60; ++i) {
      std::string bad = good.substr(0, good.size() * i / 60);
      EXPECT_THROW(parse_tokenizer_json(bad, name), Error);
      bad = good;
      bad[good.size() * i / 60] ^= static_cast<char>(1 + i % 100);
      try {
        parse_tokenizer_json(bad, name)->encode("some text \u00E9");
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace galley::text
