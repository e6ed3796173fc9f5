// Reads tokenizer.json. A component is one row of a table: its name and what makes it of its members.

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/text/json_node.h"
#include "libcore/text/readers.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

/// The components of a section: itself, or those of a Sequence, also nested.
void flatten(const JsonNode& node, std::string_view list, std::vector<JsonNode>& out) {
  if (node.text("type") != "Sequence") {
    out.push_back(node);
    return;
  }
  for (const JsonNode& inner : node.at(list).elements()) flatten(inner, list, out);
}
std::vector<JsonNode> components(const JsonNode& file, std::string_view section, std::string_view list) {
  std::vector<JsonNode> out;
  if (file.has(section)) flatten(file.at(section), list, out);
  return out;
}

template <class Made>
struct Row {
  std::string_view type;
  std::function<Made(const JsonNode&)> make;
};
template <class Made>
Made make_component(const std::vector<Row<Made>>& rows, const JsonNode& node, std::string_view what) {
  const std::string type = node.text("type");
  std::string names;
  for (const Row<Made>& row : rows) {
    if (row.type == type) return row.make(node);
    names += cat(names.empty() ? "" : ", ", row.type);
  }
  node.fail(cat("the ", what, " '", type, "' is not implemented; implemented are ", names, " and Sequence"));
}

bool is_regex(const JsonNode& pattern) { return pattern.has("Regex"); }
std::shared_ptr<const Matcher> matcher(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  if (is_regex(pattern)) return regex_matcher(pattern.text("Regex"));
  return string_matcher(pattern.text("String"));
}

Split behavior_of(const JsonNode& node) {
  const std::string name = node.text("behavior", "Isolated");
  if (name == "Removed") return Split::kRemoved;
  if (name == "Isolated") return Split::kIsolated;
  if (name == "MergedWithPrevious") return Split::kMergedWithPrevious;
  if (name == "MergedWithNext") return Split::kMergedWithNext;
  if (name == "Contiguous") return Split::kContiguous;
  node.fail(cat("the behavior '", name, "' is not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous"));
}

std::string base64(const JsonNode& node) {
  std::string bytes;
  if (!from_base64(node.text(), bytes)) node.fail("is not base64, or is cut off");
  return bytes;
}

const std::vector<Row<Normalizer>>& normalizer_rows() {
  static const std::vector<Row<Normalizer>> rows{
      {"BertNormalizer",
       [](const JsonNode& node) {
         const bool lower = node.flag("lowercase", true);
         return bert_normalizer(
             {node.flag("clean_text", true), node.flag("handle_chinese_chars", true), node.flag("strip_accents", lower), lower});
       }},
      {"NFC", [](const JsonNode&) { return normal_form(NormalForm::kNfc); }},
      {"NFD", [](const JsonNode&) { return normal_form(NormalForm::kNfd); }},
      {"NFKC", [](const JsonNode&) { return normal_form(NormalForm::kNfkc); }},
      {"NFKD", [](const JsonNode&) { return normal_form(NormalForm::kNfkd); }},
      {"Lowercase", [](const JsonNode&) { return lowercase(); }},
      {"StripAccents", [](const JsonNode&) { return strip_accents(); }},
      {"Strip", [](const JsonNode& node) { return strip(node.flag("strip_left", true), node.flag("strip_right", true)); }},
      {"Replace", [](const JsonNode& node) { return replace(matcher(node), node.text("content")); }},
      {"Prepend", [](const JsonNode& node) { return prepend(node.text("prepend")); }},
      {"Nmt", [](const JsonNode&) { return nmt(); }},
      {"ByteLevel", [](const JsonNode&) { return byte_level_normalizer(); }},
      {"Precompiled", [](const JsonNode& node) { return precompiled(base64(node.at("precompiled_charsmap"))); }},
  };
  return rows;
}

PreTokenizer make_metaspace(const JsonNode& node) {
  const std::string scheme = node.text("prepend_scheme", node.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    node.fail(cat("the prepend_scheme '", scheme, "' is not one of first, always, never"));
  const Prepend prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  return metaspace(node.text("replacement", "▁"), prepend, node.flag("split", true));
}

std::shared_ptr<const Matcher> gpt2_matcher() { return regex_matcher(std::string(pattern_named("gpt2").text)); }

const std::vector<Row<PreTokenizer>>& pre_tokenizer_rows() {
  static const std::vector<Row<PreTokenizer>> rows{
      {"ByteLevel",
       [](const JsonNode& node) {
         return byte_level(node.flag("add_prefix_space", true), node.flag("use_regex", true) ? gpt2_matcher() : nullptr);
       }},
      {"BertPreTokenizer", [](const JsonNode&) { return bert_pre_tokenizer(); }},
      {"Whitespace", [](const JsonNode&) { return whitespace(); }},
      {"WhitespaceSplit", [](const JsonNode&) { return whitespace_split(); }},
      {"Split", [](const JsonNode& node) { return split(matcher(node), behavior_of(node), node.flag("invert", false)); }},
      {"Punctuation", [](const JsonNode& node) { return punctuation(behavior_of(node)); }},
      {"Digits", [](const JsonNode& node) { return digits(node.flag("individual_digits", false)); }},
      {"Metaspace", make_metaspace},
      {"CharDelimiterSplit",
       [](const JsonNode& node) {
         const std::string delimiter = node.text("delimiter");
         if (delimiter.empty() || char_length(delimiter.data()) != delimiter.size()) node.at("delimiter").fail("must be one character");
         const char* p = delimiter.data();
         return character_delimiter(next_char(p));
       }},
      {"FixedLength",
       [](const JsonNode& node) {
         const int64_t length = node.integer("length", 5);
         if (length < 1) node.at("length").fail("must be at least 1");
         return fixed_length(length);
       }},
  };
  return rows;
}

const std::vector<Row<DecodeStep>>& decoder_rows() {
  static const std::vector<Row<DecodeStep>> rows{
      {"ByteLevel", [](const JsonNode&) { return decode_byte_level(); }},
      {"WordPiece", [](const JsonNode& node) { return decode_word_piece(node.text("prefix", "##"), node.flag("cleanup", true)); }},
      {"Metaspace",
       [](const JsonNode& node) {
         const bool never = node.has("prepend_scheme") ? node.text("prepend_scheme") == "never" : !node.flag("add_prefix_space", true);
         return decode_metaspace(node.text("replacement", "▁"), !never);
       }},
      {"BPEDecoder", [](const JsonNode& node) { return decode_bpe(node.text("suffix", "</w>")); }},
      {"Replace", [](const JsonNode& node) { return decode_replace(matcher(node), node.text("content")); }},
      {"Fuse", [](const JsonNode&) { return decode_fuse(); }},
      {"Strip", [](const JsonNode& node) { return decode_strip(node.text("content"), node.integer("start", 0), node.integer("stop", 0)); }},
      {"ByteFallback", [](const JsonNode&) { return decode_byte_fallback(); }},
      {"CTC",
       [](const JsonNode& node) {
         return decode_ctc(node.text("pad_token", "<pad>"), node.text("word_delimiter_token", "|"), node.flag("cleanup", true));
       }},
  };
  return rows;
}

/// Adds an object of pieces and ids.
void read_vocabulary(const JsonNode& node, Vocabulary& vocabulary) {
  if (!node.json().is_object()) node.fail("must be an object of pieces and ids");
  for (const auto& [piece, id] : node.json().items()) {
    if (!id.is_number_integer()) node.fail(cat("the id of '", piece, "' must be an integer"));
    try {
      vocabulary.add(piece, id.get<int64_t>());
    } catch (const Error& error) {
      node.fail(error.message());
    }
  }
}

/// The two pieces of a merge: "a b" in old files, ["a", "b"] in new ones.
std::pair<std::string, std::string> pieces_of(const nlohmann::json& merge, const JsonNode& list, size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  list.fail(cat("[", index, "] is not a merge: \"a b\" or [\"a\", \"b\"] is expected"));
}

std::vector<Merge> read_merges(const JsonNode& list, const Vocabulary& vocabulary, const std::string& prefix) {
  if (!list.json().is_array()) list.fail("must be a list");
  std::vector<Merge> merges;
  std::string merged;
  for (const auto& merge : list.json()) {
    const size_t index = merges.size();
    const auto pieces = pieces_of(merge, list, index);
    const std::string &left = pieces.first, &right = pieces.second;
    const auto id_of = [&](const std::string& piece) {
      const auto id = vocabulary.find(piece);
      if (!id) list.fail(cat("[", index, "]: the piece '", piece, "' of the merge '", left, " ", right, "' is not in the vocabulary"));
      return static_cast<uint32_t>(*id);
    };
    if (right.size() < prefix.size()) list.fail(cat("[", index, "]: '", right, "' lacks the prefix '", prefix, "'"));
    merged = left + right.substr(prefix.size());
    merges.push_back({id_of(left), id_of(right), id_of(merged), static_cast<uint32_t>(index)});
  }
  return merges;
}

std::optional<int32_t> unknown_of(const JsonNode& model, const Vocabulary& vocabulary) {
  const auto piece = model.optional_text("unk_token");
  if (!piece) return std::nullopt;
  const auto id = vocabulary.find(*piece);
  if (!id) model.at("unk_token").fail(cat("'", *piece, "' is not in the vocabulary"));
  return id;
}

/// Whether pre-tokenization is a known pattern and then bytes, which ByteBpe does in one pass.
bool find_byte_pattern(const std::vector<JsonNode>& steps, const KnownPattern*& pattern) {
  if (steps.empty() || steps.size() > 2 || steps.back().text("type") != "ByteLevel" || steps.back().flag("add_prefix_space", true))
    return false;
  const bool own = steps.back().flag("use_regex", true);
  pattern = own ? &pattern_named("gpt2") : nullptr;
  if (steps.size() == 1) return true;
  const JsonNode& split = steps.front();
  if (own || split.text("type") != "Split" || !is_regex(split.at("pattern"))) return false;
  pattern = find_pattern(split.at("pattern").text("Regex"));
  const Split behavior = behavior_of(split);
  // A known pattern leaves nothing between its matches.
  return pattern && split.flag("invert", false) == (behavior == Split::kRemoved) &&
         (behavior == Split::kRemoved || behavior == Split::kIsolated);
}

void read_bpe(const JsonNode& model, const std::vector<JsonNode>& steps, Parts& parts) {
  if (model.has("dropout") && model.at("dropout").number() != 0)
    model.at("dropout").fail("is not implemented: tokens would be random; set it to null");
  read_vocabulary(model.at("vocab"), parts.vocabulary);
  CharBpeOptions options;
  options.unknown = unknown_of(model, parts.vocabulary);
  options.fuse_unknown = model.flag("fuse_unk", false);
  options.byte_fallback = model.flag("byte_fallback", false);
  options.whole = model.flag("ignore_merges", false);
  options.continuing_prefix = model.text("continuing_subword_prefix", "");
  options.end_suffix = model.text("end_of_word_suffix", "");
  const std::vector<Merge> merges = read_merges(model.at("merges"), parts.vocabulary, options.continuing_prefix);
  parts.kind = "BPE";
  const KnownPattern* pattern = nullptr;
  if (options.continuing_prefix.empty() && options.end_suffix.empty() && find_byte_pattern(steps, pattern)) {
    parts.bytes = {make_byte_bpe(parts.vocabulary, merges, options.whole), pattern};
    if (parts.bytes.bpe) {
      parts.kind = "byte-level BPE";
      return;
    }
    parts.bytes.pattern = nullptr;
  }
  parts.make_model = [merges, options](const Vocabulary& vocabulary) { return char_bpe(vocabulary, merges, options); };
}

void read_unigram(const JsonNode& model, Parts& parts) {
  std::vector<double> scores;
  const JsonNode list = model.at("vocab");
  if (!list.json().is_array()) list.fail("must be a list of pieces and scores");
  for (const auto& entry : list.json()) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      list.fail(cat("[", scores.size(), "] is not a piece and its score"));
    try {
      parts.vocabulary.add(entry[0].get<std::string>(), static_cast<int64_t>(scores.size()));
    } catch (const Error& error) {
      list.fail(cat("[", scores.size(), "]: ", error.message()));
    }
    scores.push_back(entry[1].get<double>());
  }
  std::optional<int32_t> unknown;
  if (model.has("unk_id")) {
    const int64_t id = model.at("unk_id").integer();
    if (id < 0 || id >= static_cast<int64_t>(scores.size()))
      model.at("unk_id").fail(cat(id, " is out of range: ", scores.size(), " pieces"));
    unknown = static_cast<int32_t>(id);
  }
  parts.kind = "Unigram";
  parts.make_model = [scores, unknown, fallback = model.flag("byte_fallback", false)](const Vocabulary& vocabulary) {
    std::vector<double> all = scores;
    return unigram(vocabulary, std::move(all), unknown, fallback);
  };
}

void read_model(const JsonNode& model, const std::vector<JsonNode>& steps, Parts& parts) {
  // Old files leave the type out; only BPE has merges, and only Unigram a list.
  const std::string type = model.text("type", model.has("merges") ? "BPE" : model.has("unk_id") ? "Unigram" : "WordPiece");
  if (type == "BPE") return read_bpe(model, steps, parts);
  if (type == "Unigram") return read_unigram(model, parts);
  if (type != "WordPiece" && type != "WordLevel")
    model.fail(cat("the model '", type, "' is not implemented; implemented are BPE, WordPiece, WordLevel, Unigram"));
  read_vocabulary(model.at("vocab"), parts.vocabulary);
  parts.kind = type;
  const auto unknown = unknown_of(model, parts.vocabulary);
  if (type == "WordLevel") {
    parts.make_model = [unknown](const Vocabulary& vocabulary) { return word_level(vocabulary, unknown); };
    return;
  }
  if (!unknown) model.fail("the key 'unk_token' is missing");
  parts.make_model = [unknown, prefix = model.text("continuing_subword_prefix", "##"),
                      longest = model.integer("max_input_chars_per_word", 100)](const Vocabulary& vocabulary) {
    return word_piece(vocabulary, *unknown, prefix, longest);
  };
}

void read_added(const JsonNode& file, Parts& parts) {
  if (!file.has("added_tokens")) return;
  for (const JsonNode& node : file.at("added_tokens").elements()) {
    const int64_t id = node.at("id").integer();
    const std::string content = node.text("content");
    const auto known = parts.vocabulary.find(content);
    if (known && *known != id) node.fail(cat("'", content, "' has the id ", id, " here and ", *known, " in the vocabulary"));
    if (!known) {
      try {
        parts.vocabulary.add(content, id);
      } catch (const Error& error) {
        node.fail(error.message());
      }
    }
    const bool special = node.flag("special", false);
    parts.added.push_back({static_cast<int32_t>(id), content, node.flag("single_word", false), node.flag("lstrip", false),
                           node.flag("rstrip", false), node.flag("normalized", !special), special});
  }
}

std::vector<TemplateItem> read_template(const JsonNode& list, const JsonNode& tokens, bool is_pair) {
  std::vector<TemplateItem> items;
  for (const JsonNode& node : list.elements()) {
    if (node.has("Sequence")) {
      const JsonNode sequence = node.at("Sequence");
      const std::string id = sequence.text("id");
      if (id != "A" && !(is_pair && id == "B")) sequence.fail(cat("the sequence '", id, "' must be A", is_pair ? " or B" : ""));
      items.push_back({id == "A" ? TemplateItem::kFirst : TemplateItem::kSecond, {}, static_cast<int32_t>(sequence.integer("type_id", 0))});
      continue;
    }
    const JsonNode special = node.at("SpecialToken");
    TemplateItem item{TemplateItem::kTokens, {}, static_cast<int32_t>(special.integer("type_id", 0))};
    for (const JsonNode& id : tokens.at(special.text("id")).at("ids").elements()) item.ids.push_back(static_cast<int32_t>(id.integer()));
    items.push_back(std::move(item));
  }
  return items;
}

/// [CLS] A [SEP], and B [SEP]; RoBERTa puts two [SEP] between and has one type.
PostProcessor around(const JsonNode& node, bool roberta) {
  const auto id_of = [&](std::string_view key) {
    const std::vector<JsonNode> pair = node.at(key).elements();
    if (pair.size() != 2) node.at(key).fail("must be a piece and its id");
    return static_cast<int32_t>(pair[1].integer());
  };
  const int32_t cls = id_of("cls"), sep = id_of("sep"), second = roberta ? 0 : 1;
  PostProcessor post;
  post.single = {{TemplateItem::kTokens, {cls}, 0}, {TemplateItem::kFirst, {}, 0}, {TemplateItem::kTokens, {sep}, 0}};
  post.pair = post.single;
  if (roberta) post.pair.push_back({TemplateItem::kTokens, {sep}, 0});
  post.pair.push_back({TemplateItem::kSecond, {}, second});
  post.pair.push_back({TemplateItem::kTokens, {sep}, second});
  return post;
}

void read_post_processor(const JsonNode& file, Parts& parts) {
  for (const JsonNode& node : components(file, "post_processor", "processors")) {
    const std::string type = node.text("type");
    if (type == "ByteLevel") continue;  // It changes places in the text only.
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      parts.post = around(node, type == "RobertaProcessing");
    } else if (type == "TemplateProcessing") {
      const JsonNode tokens = node.at("special_tokens");
      parts.post.single = read_template(node.at("single"), tokens, false);
      parts.post.pair = read_template(node.at("pair"), tokens, true);
    } else {
      node.fail(cat("the post-processor '", type,
                    "' is not implemented; implemented are TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence"));
    }
  }
  for (const auto* items : {&parts.post.single, &parts.post.pair}) {
    for (const TemplateItem& item : *items) {
      for (const int32_t id : item.ids) {
        if (!parts.vocabulary.has(id)) file.at("post_processor").fail(cat("the id ", id, " is not in the vocabulary"));
      }
    }
  }
}

void read_decoder(const JsonNode& file, Parts& parts) {
  const std::vector<JsonNode> steps = components(file, "decoder", "decoders");
  parts.bytes_decoder = steps.size() == 1 && steps[0].text("type") == "ByteLevel";
  for (const JsonNode& node : steps) parts.decoders.push_back(make_component(decoder_rows(), node, "decoder"));
  if (steps.empty()) parts.decoders.push_back(decode_spaces());
}

std::unique_ptr<Tokenizer> make(const JsonNode& file, const std::string& path) {
  try {
    Parts parts;
    for (const JsonNode& node : components(file, "normalizer", "normalizers"))
      parts.normalizers.push_back(make_component(normalizer_rows(), node, "normalizer"));
    const std::vector<JsonNode> steps = components(file, "pre_tokenizer", "pretokenizers");
    read_model(file.at("model"), steps, parts);
    if (!parts.bytes.bpe) {
      for (const JsonNode& node : steps) parts.pre_tokenizers.push_back(make_component(pre_tokenizer_rows(), node, "pre-tokenizer"));
    }
    read_added(file, parts);
    read_post_processor(file, parts);
    read_decoder(file, parts);
    return make_pipeline(std::move(parts));
  } catch (Error& error) {
    if (error.place().file.empty()) error.at({.file = path});
    throw;
  }
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const SourceFile& file) {
  return make(JsonNode::parse(file.contents, file.place), file.place);
}

}  // namespace galley::text
