#include "libcore/text/definition.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/text/json_node.h"
#include "libcore/text/readers.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFolderConfig = "tokenizer_config.json";
constexpr std::string_view kTypes = "tokenizer_json, bpe, tiktoken, wordpiece, sentencepiece, vocabulary";

std::string name_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return path.substr(slash == std::string::npos ? 0 : slash + 1);
}

std::string join_path(const std::string& folder, std::string_view name) { return cat(folder, "/", name); }

std::optional<std::string> first_file(const std::string& folder, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (file_exists(join_path(folder, name))) return join_path(folder, name);
  }
  return std::nullopt;
}

SourceFile read_source(const std::string& path) {
  constexpr int64_t kLargest = int64_t{1} << 28;  // The largest published tokenizer.json has 33 MB.
  return {name_of(path), read_file(path, kLargest), path};
}

std::string type_of_file(const std::string& path) {
  const std::string name = name_of(path);
  if (name == "vocab.json" || name == "encoder.json" || name == "merges.txt" || name == "vocab.bpe") return "bpe";
  if (name.ends_with(".json")) return "tokenizer_json";
  if (name.ends_with(".tiktoken")) return "tiktoken";
  if (name.ends_with(".model")) return "sentencepiece";
  if (name.ends_with("vocab.txt")) return "wordpiece";
  fail(ErrorCode::kInput, path,
       ": the name does not say what kind of tokenizer it is: name a folder, a file *.json, *.tiktoken, *.model or ",
       "*vocab.txt, or set the type");
}

/// The file of a folder that says most about its tokenizer.
std::string main_file(const std::string& folder, const std::string& type) {
  const auto is = [&](std::string_view kind) { return type == "auto" || type == kind; };
  std::optional<std::string> path;
  if (is("tokenizer_json")) path = first_file(folder, {"tokenizer.json"});
  if (!path && is("tiktoken")) {
    for (const FolderEntry& entry : list_folder(folder)) {
      if (!path && !entry.is_folder && entry.name.ends_with(".tiktoken")) path = join_path(folder, entry.name);
    }
  }
  if (!path && is("bpe")) path = first_file(folder, {"vocab.json", "encoder.json"});
  if (!path && is("sentencepiece")) path = first_file(folder, {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"});
  if (!path && is("wordpiece")) path = first_file(folder, {"vocab.txt"});
  if (path) return *path;
  const std::string_view expected = type == "tokenizer_json"  ? "tokenizer.json"
                                    : type == "tiktoken"      ? "*.tiktoken"
                                    : type == "bpe"           ? "vocab.json or encoder.json"
                                    : type == "sentencepiece" ? "tokenizer.model, spiece.model or sentencepiece.bpe.model"
                                    : type == "wordpiece"
                                        ? "vocab.txt"
                                        : "tokenizer.json, *.tiktoken, vocab.json with merges.txt, encoder.json with "
                                          "vocab.bpe, tokenizer.model, spiece.model, sentencepiece.bpe.model or vocab.txt";
  fail(ErrorCode::kInput, folder, ": no tokenizer in this folder: ", expected, " is expected");
}

/// Adds vocabulary and merges; `path` names either.
void add_bpe_files(const std::string& path, const ReadOptions& options, Definition& definition) {
  const std::string folder = parent_folder(path);
  std::string vocabulary = path, merges = options.merges;
  if (name_of(path).ends_with(".txt") || name_of(path).ends_with(".bpe")) {
    const auto found = first_file(folder, {"vocab.json", "encoder.json"});
    if (!found)
      throw Error(ErrorCode::kInput, "needs its vocabulary: there is neither vocab.json nor encoder.json in its folder").at({.file = path});
    vocabulary = *found;
    if (merges.empty()) merges = path;
  } else if (merges.empty()) {
    const auto found = first_file(folder, {"merges.txt", "vocab.bpe"});
    if (!found)
      throw Error(ErrorCode::kInput, "needs its merges: there is neither merges.txt nor vocab.bpe in its folder").at({.file = path});
    merges = *found;
  }
  definition.files = {read_source(vocabulary), read_source(merges)};
}

}  // namespace

const SourceFile* Definition::find(std::string_view name) const {
  for (const SourceFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

std::string Definition::str() const {
  Json json{{"type", type}};
  if (!pattern.empty()) json["pattern"] = pattern;
  if (!lowercase) json["lowercase"] = false;
  if (!unknown.empty()) json["unknown"] = unknown;
  Json list = Json::array();
  for (const SourceFile& file : files) {
    const bool is_text = replace_invalid_utf8(file.contents) == file.contents;
    list.push_back(Json{{"name", file.name}});
    list.back()[is_text ? "text" : "base64"] = is_text ? file.contents : to_base64(file.contents);
  }
  json["files"] = std::move(list);
  return json.dump();
}

Definition parse_definition(std::string_view text, const std::string& place) {
  const JsonNode node = JsonNode::parse(text, place);
  Definition definition;
  definition.type = node.text("type");
  definition.pattern = node.text("pattern", "");
  definition.lowercase = node.flag("lowercase", true);
  definition.unknown = node.text("unknown", "");
  for (const JsonNode& file : node.at("files").elements()) {
    SourceFile& added = definition.files.emplace_back();
    added.name = file.text("name");
    added.place = cat(place, ": ", added.name);
    if (file.has("text")) {
      added.contents = file.text("text");
    } else if (!from_base64(file.text("base64"), added.contents) && !file.text("base64").empty()) {
      file.fail("is not base64, or is cut off");
    }
  }
  const size_t least = definition.type == "bpe" ? 2 : 1;
  if (definition.files.size() < least)
    node.at("files").fail(cat(definition.files.size(), " files are too few for a tokenizer ", definition.type));
  return definition;
}

Definition read_definition(const std::string& path, const ReadOptions& options) {
  if (options.type != "auto" && (", " + std::string(kTypes) + ", ").find(", " + options.type + ", ") == std::string::npos)
    fail(ErrorCode::kInput, "unknown type of tokenizer '", options.type, "': known are auto, ", kTypes);
  Definition definition;
  const std::string main = is_folder(path) && options.type != "vocabulary" ? main_file(path, options.type) : path;
  GALLEY_CHECK_INPUT(file_exists(main), main, ": no such file or folder: a tokenizer is read from it");
  definition.type = options.type == "auto" ? type_of_file(main) : options.type;
  definition.pattern = options.pattern;
  if (definition.type == "bpe") {
    add_bpe_files(main, options, definition);
  } else {
    definition.files = {read_source(main)};
  }
  if (definition.type == "vocabulary") definition.unknown = options.unknown;
  const bool has_flags = definition.type == "wordpiece" || definition.type == "sentencepiece";
  if (const std::string config = join_path(parent_folder(main), kFolderConfig); has_flags && file_exists(config))
    definition.files.push_back(read_source(config));
  if (definition.type == "wordpiece") definition.lowercase = options.lowercase;
  return definition;
}

std::unique_ptr<Tokenizer> make_tokenizer(Definition definition) {
  GALLEY_ASSERT(!definition.files.empty());
  const SourceFile& main = definition.files.front();
  const SourceFile* config = definition.find(kFolderConfig);
  const std::string& type = definition.type;
  std::unique_ptr<Tokenizer> tokenizer;
  if (type == "tokenizer_json") {
    tokenizer = read_tokenizer_json(main);
  } else if (type == "bpe") {
    tokenizer = read_bpe_files(main, definition.files.at(1), pattern_named(definition.pattern.empty() ? "gpt2" : definition.pattern));
  } else if (type == "tiktoken") {
    tokenizer = read_tiktoken(main, definition.pattern);
  } else if (type == "wordpiece") {
    const bool lowercase = definition.lowercase;
    tokenizer =
        read_word_piece(main, config ? JsonNode::parse(config->contents, config->place).flag("do_lower_case", lowercase) : lowercase);
  } else if (type == "sentencepiece") {
    tokenizer = read_sentencepiece(main, config);
  } else if (type == "vocabulary") {
    tokenizer = read_word_list(main, definition.unknown);
  } else {
    fail(ErrorCode::kInput, main.place, ": unknown type of tokenizer '", type, "': known are ", kTypes);
  }
  tokenizer->definition_ = std::make_shared<const Definition>(std::move(definition));
  return tokenizer;
}

std::unique_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& path) {
  return make_tokenizer({.type = "tokenizer_json", .files = {{name_of(path), std::string(text), path}}, .pattern = "", .unknown = ""});
}

std::unique_ptr<const Tokenizer> read_tokenizer(const std::string& path, const ReadOptions& options) {
  return make_tokenizer(read_definition(path, options));
}

}  // namespace galley::text
