#pragma once
// What a tokenizer is made of: the contents of its files. As one line of text it travels in weight files.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/tokenizer.h"

namespace galley::text {

/// The contents of one file of a tokenizer.
struct SourceFile {
  std::string name;      ///< Without folders: "vocab.json".
  std::string contents;  ///< Any bytes.
  std::string place;     ///< What messages call it: its path.
};

/// Files and how to read them. Equal definitions make equal tokenizers.
struct Definition {
  std::string type;               ///< As ReadOptions::type, but not auto.
  std::vector<SourceFile> files;  ///< The main one first, then merges; tokenizer_config.json where its flags count.
  std::string pattern;
  bool lowercase = true;
  std::string unknown;

  /// The first file of one of these names, or nullptr.
  const SourceFile* find(std::string_view name) const;
  /// JSON with the contents of the files; those that are not UTF-8 in base64.
  std::string str() const;
};

/// Chooses and reads the files. Throws (kInput) where one is missing or the kind is not clear.
Definition read_definition(const std::string& path, const ReadOptions& options);
/// What Definition::str wrote. Throws (kInput), naming `place`, for any other text.
Definition parse_definition(std::string_view text, const std::string& place);
/// Makes the tokenizer. Throws (kInput), with the file and the place in it, if a file is damaged.
std::unique_ptr<Tokenizer> make_tokenizer(Definition definition);

}  // namespace galley::text
