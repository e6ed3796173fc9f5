#pragma once
// One reader a kind of file; read_tokenizer (tokenizer.h) chooses among them.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/pipeline.h"

namespace galley::text {

/// tokenizer.json of Hugging Face's tokenizers. `truncation` and `padding` are not applied: lengths are the data pipeline's.
std::unique_ptr<const Tokenizer> read_tokenizer_json(const std::string& path);
/// The same from its text; `path` names it in messages.
std::unique_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& path);

/// vocab.json and merges.txt (GPT-2's encoder.json and vocab.bpe). Pieces that are neither bytes nor merged and are spelled <...> are
/// special.
std::unique_ptr<const Tokenizer> read_bpe_files(const std::string& vocabulary, const std::string& merges, const KnownPattern& pattern);

/// Lines of a token in base64, a space and its rank. Special tokens of the published encodings are added by the file's name.
std::unique_ptr<const Tokenizer> read_tiktoken(const std::string& path, const std::string& pattern);

/// BERT's vocab.txt: a piece a line.
std::unique_ptr<const Tokenizer> read_word_piece(const std::string& path, bool lowercase);

/// A SentencePiece model, by SentencePiece's library. Throws (kInput) where this build has none.
std::unique_ptr<const Tokenizer> read_sentencepiece(const std::string& path);

/// A word a line.
std::unique_ptr<const Tokenizer> read_word_list(const std::string& path, const std::string& unknown);

/// The parts of byte-level BPE: of a vocabulary that spells bytes as GPT-2 does. Null if a byte has no token.
std::unique_ptr<ByteBpe> make_byte_bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, bool whole);

/// The bytes of base64 text with its padding; false if it is none.
bool from_base64(std::string_view text, std::string& bytes);

/// Lines of a text file without their ends ("\n" or "\r\n"), checked to be UTF-8. The last line may be empty, then it is left out.
std::vector<std::string> read_lines(const std::string& path);

}  // namespace galley::text
