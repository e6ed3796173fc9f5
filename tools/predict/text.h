#pragma once
// galley-predict on text: continues prompts, and shows how a tokenizer reads text.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/infer/generate.h"
#include "libcore/infer/session.h"

namespace galley::tools {

struct TextOptions {
  std::vector<std::string> prompts;     ///< --prompt
  std::string prompts_file;             ///< --prompts: one prompt per line
  std::vector<std::string> chats;       ///< --chat: messages of a user, each of its own conversation
  std::string system;                   ///< --system: the first message of every conversation
  bool interactive = false;             ///< --interactive: prompts from standard input, one per line; a conversation with a chat template
  bool show_prompt = false;             ///< --show-prompt: the exact text and ids instead of a continuation
  std::vector<std::string> tokenize;    ///< --tokenize
  std::vector<std::string> detokenize;  ///< --detokenize: ids, separated by commas
  std::vector<std::string> texts;       ///< --text
  std::string texts_file;               ///< --text-file: a text a line
  std::vector<std::string> pairs;       ///< --text-pair: the second text of each
  std::string pairs_file;               ///< --text-pair-file: the second texts, a line each
  bool embed = false;                   ///< --embed: vectors of the texts instead of classes

  bool predicts() const { return !texts.empty() || !texts_file.empty() || has_pairs(); }
  bool has_pairs() const { return !pairs.empty() || !pairs_file.empty(); }
  bool any() const { return continues() || shows_tokens() || show_prompt; }
  bool continues() const { return !prompts.empty() || !prompts_file.empty() || !chats.empty() || interactive; }
  bool shows_tokens() const { return !tokenize.empty() || !detokenize.empty(); }
};

/// Where a text tool writes: one line of JSON per result, or text.
struct TextOutput {
  bool json = false;
  std::string provenance;                         ///< JSON, for each line.
  std::function<void(const std::string&)> print;  ///< To standard output, at once.
  std::function<void(const std::string&)> save;   ///< The line of JSON of each result, for --save; empty: none.

  /// A result: saves its line of JSON, and prints that or, without `json`, its text.
  void result(nlohmann::ordered_json line, const std::string& text) const;
};

/// An error in a text, whose first line is this line of `file`: its place becomes one of the file. `line` 0: the text is the value of an
/// option, and the error a mistake on the command line.
Error error_in_file(const Error& error, const std::string& file, int line);

/// --tokenize and --detokenize: needs no weights. Throws Error (kUsage) for an id that the vocabulary does not have.
void show_tokens(const text::Tokenizer& tokenizer, const TextOptions& options, const TextOutput& output);
/// The texts of --text and --text-file, their second texts where there are some, and what they are called in messages. Throws Error
/// (kInput) if a file has none, (kUsage) if not every text has a second one.
struct NamedTexts {
  std::vector<std::string> texts, pairs, names;
  std::vector<int> lines;  ///< In the file of --text-file; 0: a text of the command line.
  /// The second text; null if texts have none.
  const std::string* pair(size_t i) const { return pairs.empty() ? nullptr : &pairs[i]; }
};
NamedTexts texts_of(const TextOptions& options);

/// Continues all prompts, `batch` at a time, and prints them as they come. Returns the exit code: 130 or 143 after a signal.
int continue_prompts(Session& session, const TextOptions& options, int64_t batch, const TextOutput& output);
/// --dry-run: checks the prompts and prints the memory of their continuation.
void check_continuation(Session& session, const TextOptions& options, int64_t batch, const TextOutput& output);

}  // namespace galley::tools
