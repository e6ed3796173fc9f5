#pragma once
// One reader per kind of file; make_tokenizer (definition.h) chooses among them.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/definition.h"
#include "libcore/text/pipeline.h"

namespace galley::text {

/// tokenizer.json of Hugging Face's tokenizers. `truncation` and `padding` are not applied: lengths are the data pipeline's.
std::unique_ptr<Tokenizer> read_tokenizer_json(const SourceFile& file);
/// The same from its text; `path` names it in messages.
std::unique_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& path);

/// vocab.json and merges.txt (GPT-2's encoder.json and vocab.bpe). Pieces that are neither bytes nor merged and are spelled <...> are
/// special.
std::unique_ptr<Tokenizer> read_bpe_files(const SourceFile& vocabulary, const SourceFile& merges, const KnownPattern& pattern);

/// Lines of a token in base64, a space and its rank. Special tokens of the published encodings are added by the file's name.
std::unique_ptr<Tokenizer> read_tiktoken(const SourceFile& file, const std::string& pattern);

/// BERT's vocab.txt: one piece per line.
std::unique_ptr<Tokenizer> read_word_piece(const SourceFile& file, bool lowercase);

/// A SentencePiece model, by SentencePiece's library. `config`: tokenizer_config.json, or nullptr. Throws (kInput) where this build has no
/// such library.
std::unique_ptr<Tokenizer> read_sentencepiece(const SourceFile& file, const SourceFile* config);

/// word_tokenizer (tokenizer.h), as an object that is not const yet.
std::unique_ptr<Tokenizer> make_word_tokenizer(const std::vector<std::string>& words, const std::string& unknown);
/// One word per line.
std::unique_ptr<Tokenizer> read_word_list(const SourceFile& file, const std::string& unknown);

/// The parts of byte-level BPE: of a vocabulary that spells bytes as GPT-2 does. Null if a byte has no token.
std::unique_ptr<ByteBpe> make_byte_bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, bool whole);

/// The bytes of base64 text with its padding; false if it is not base64.
bool from_base64(std::string_view text, std::string& bytes);
std::string to_base64(std::string_view bytes);

/// Lines of a text file without their ends ("\n" or "\r\n"), checked to be UTF-8. The last line may be empty, then it is left out.
std::vector<std::string> lines_of(const SourceFile& file);

}  // namespace galley::text
