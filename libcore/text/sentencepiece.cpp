#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/text/json_node.h"
#include "libcore/text/readers.h"

#ifdef GALLEY_WITH_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace galley::text {

#ifdef GALLEY_WITH_SENTENCEPIECE

namespace {

/// What SentencePiece's own program does with a model. Control symbols (<s>, </s>) are special; they are not parsed in texts, and are added
/// where a tokenizer_config.json in the model's folder sets add_bos_token or add_eos_token.
class SentencePiece : public Tokenizer {
 public:
  SentencePiece(const SourceFile& file, const SourceFile* config) {
    const std::string& path = file.place;
    const auto status = processor_.LoadFromSerializedProto(file.contents);
    if (!status.ok())
      throw Error(ErrorCode::kInput, cat("is not a SentencePiece model, or is damaged: ", status.ToString())).at({.file = path});
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      try {
        vocabulary_.add(processor_.IdToPiece(id), id);
      } catch (Error& error) {
        throw error.at({.file = path});
      }
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) mark_special(id);
    }
    if (config == nullptr) return;
    const JsonNode options = JsonNode::parse(config->contents, config->place);
    if (options.flag("add_bos_token", false) && processor_.bos_id() >= 0) before_.push_back(processor_.bos_id());
    if (options.flag("add_eos_token", false) && processor_.eos_id() >= 0) after_.push_back(processor_.eos_id());
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<int> kept;
    for (const int32_t id : ids) {
      vocabulary_.piece(id);  // Throws where there is none; the library would only log it.
      if (!(skip_special && is_special(id))) kept.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(kept, &text);
    GALLEY_CHECK_INPUT(status.ok(), "SentencePiece cannot decode: ", status.ToString());
    return text;
  }
  std::string str() const override { return cat("SentencePiece, ", vocabulary_.pieces(), " tokens"); }

 protected:
  void encode_valid(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override {
    std::vector<int> found;
    const auto status = processor_.Encode({text.data(), text.size()}, &found);
    GALLEY_CHECK_INPUT(status.ok(), options.name, ": SentencePiece cannot encode: ", status.ToString());
    if (options.add_special) ids.insert(ids.end(), before_.begin(), before_.end());
    ids.insert(ids.end(), found.begin(), found.end());
    if (options.add_special) ids.insert(ids.end(), after_.begin(), after_.end());
  }
  std::vector<Token> tokens_of_valid(std::string_view text, const EncodeOptions& options) const override {
    std::vector<Token> tokens;
    const auto put = [&](const std::vector<int32_t>& ids) {
      for (const int32_t id : ids) {
        if (options.add_special) tokens.push_back({id, 0, 0, 0});
      }
    };
    put(before_);
    const auto proto = processor_.EncodeAsImmutableProto({text.data(), text.size()});
    for (size_t i = 0; i < proto.pieces_size(); ++i) {
      const auto piece = proto.pieces(static_cast<int>(i));
      tokens.push_back({static_cast<int32_t>(piece.id()), piece.begin(), piece.end(), 0});
    }
    put(after_);
    return tokens;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<int32_t> before_, after_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentencepiece(const SourceFile& file, const SourceFile* config) {
  return std::make_unique<SentencePiece>(file, config);
}

#else

std::unique_ptr<Tokenizer> read_sentencepiece(const SourceFile& file, const SourceFile*) {
  throw Error(ErrorCode::kInput, "is a SentencePiece model, which this build cannot read: install libsentencepiece-dev and build again")
      .at({.file = file.place});
}

#endif

}  // namespace galley::text
