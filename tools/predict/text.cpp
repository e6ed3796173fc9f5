#include "tools/predict/text.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/table.h"
#include "libcore/base/units.h"
#include "libcore/data/source.h"
#include "libcore/data/tokenizers.h"
#include "libcore/text/chat.h"
#include "libcore/text/tokenizer.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The parts of a text between separators.
std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

/// The lines of a file, without their ends.
std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines = parts_of(read_file(path), '\n');
  if (lines.back().empty()) lines.pop_back();
  for (std::string& line : lines)
    if (!line.empty() && line.back() == '\r') line.pop_back();
  return lines;
}

/// `name`: of the option that gives the text, or of the file of which it is this line.
std::vector<int64_t> ids_of(const text::Tokenizer& tokenizer, const std::string& text, const std::string& name, int line = 0,
                            bool add_special = true) {
  try {
    const std::vector<int32_t> ids = tokenizer.encode(text, {.add_special = add_special, .name = name});
    return {ids.begin(), ids.end()};
  } catch (const Error& error) {
    throw error_in_file(error, name, line);
  }
}

std::vector<int32_t> parse_ids(const std::string& text, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const int64_t size = tokenizer.size();
  for (const std::string& word : parts_of(text, ',')) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size())
      throw Error(ErrorCode::kUsage, cat("--detokenize: '", word, "' is not an id")).suggest("--detokenize 1,2,3");
    if (!tokenizer.has(id))
      throw Error(ErrorCode::kUsage, cat("--detokenize: ", id, " is not an id of the vocabulary, which has ", size, " tokens"))
          .suggest(cat("ids from 0 to ", size - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

struct Prompt {
  std::string text;
  std::vector<int64_t> ids;
  bool chat = false;  // only the answer is printed
  std::string file;   // of which it is this line, or ""
  int line = 0;
};

/// Throws Error (kUsage), with the line of a file, if a prompt is empty or longer than the model's context.
void check_each(const LanguageModel& model, const std::vector<Prompt>& prompts) {
  for (const Prompt& prompt : prompts) {
    try {
      check_prompts(model, {prompt.ids});
    } catch (const Error& error) {
      throw prompt.line == 0 ? error : Error(error).at({.file = prompt.file, .line = prompt.line});
    }
  }
}

/// A conversation by a chat template, whose text has its special tokens.
class Conversation {
 public:
  /// `system`: the message that says how to answer, or "".
  Conversation(const text::ChatTemplate& chat, const text::Tokenizer& tokenizer, const std::string& system)
      : chat_(chat), tokenizer_(tokenizer) {
    if (!system.empty()) messages_.push_back({"system", system});
  }
  Prompt ask(std::string message, const std::string& name) {
    messages_.push_back({"user", std::move(message)});
    return prompt(name);
  }
  /// The same in at most `most` tokens, if need be without the oldest turns. The system message stays.
  Prompt ask(std::string message, const std::string& name, int64_t most) {
    Prompt asked = ask(std::move(message), name);
    const size_t oldest = messages_.front().role == "system" ? 1 : 0;
    for (; std::ssize(asked.ids) > most && messages_.size() > oldest + 1; asked = prompt(name)) {
      const auto turn = messages_.begin() + static_cast<std::ptrdiff_t>(oldest);
      messages_.erase(turn, turn + 2);  // a question and its answer
      if (!std::exchange(shortened_, true))
        log(LogLevel::kWarning, cat("the conversation is longer than ", most, " tokens: the model no longer reads its oldest turns"));
    }
    return asked;
  }
  void answer(std::string text) { messages_.push_back({"assistant", std::move(text)}); }
  /// Takes back a message that could not be answered.
  void forget() { messages_.pop_back(); }

 private:
  Prompt prompt(const std::string& name) const {
    Prompt prompt{chat_.render(messages_), {}, true};
    prompt.ids = ids_of(tokenizer_, prompt.text, name, 0, /*add_special=*/false);
    return prompt;
  }

  const text::ChatTemplate& chat_;
  const text::Tokenizer& tokenizer_;
  std::vector<text::ChatMessage> messages_;
  bool shortened_ = false;
};

/// A line for each token.
std::string pieces_of(const Prompt& prompt, const text::Tokenizer& tokenizer) {
  std::string text;
  for (const int64_t id : prompt.ids) text += cat(id, "\t", Json(tokenizer.piece(id)).dump(), "\n");
  return text;
}

void show(const Prompt& prompt, const text::Tokenizer& tokenizer, const TextOutput& output) {
  output.result({{"text", prompt.text}, {"ids", prompt.ids}}, pieces_of(prompt, tokenizer));
}

/// Continues the prompts of one batch.
class Continuation {
 public:
  Continuation(Session& session, const TextOutput& output)
      : model_(session), options_(generate_options(session.recipe())), output_(output) {}

  const LanguageModel& model() const { return model_; }
  /// Tokens of a prompt whose answer fits into the context too, if that leaves half of the context to the prompt.
  int64_t most_prompt_tokens() const { return model_.context() - std::min(options_.max_new_tokens, model_.context() / 2); }
  void keep_packed_weights() { model_.keep_packed_weights(); }
  std::vector<Generation> run(const std::vector<Prompt>& prompts) {
    std::vector<std::vector<int64_t>> ids;
    for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
    const bool streams = !output_.json && prompts.size() == 1;
    GenerateCallbacks callbacks;
    callbacks.stop = [] { return stop_signal() != 0; };
    // The prompt waits for the first text, so that an error before it leaves the output empty.
    std::string waiting = streams && !answers_alone(prompts.front()) ? prompts.front().text : "";
    bool in_line = false;  // of a text that is not complete
    if (streams) {
      callbacks.text = [&](size_t, std::string_view text) {
        output_.print(std::exchange(waiting, "") + std::string(text));
        in_line = true;
      };
    }
    std::vector<Generation> results;
    try {
      results = generate(model_, ids, options_, callbacks, done_);
    } catch (const Error&) {
      if (in_line) output_.print("\n");
      throw;
    }
    done_ += static_cast<int64_t>(prompts.size());
    for (size_t i = 0; i < results.size(); ++i) {
      output_.result(json_of(prompts[i], results[i]),
                     streams ? waiting + "\n" : cat(answers_alone(prompts[i]) ? "" : prompts[i].text, results[i].text, "\n"));
    }
    const Generation& first = results.front();
    size_t tokens = 0;
    double per_s = 0;
    for (const Generation& result : results) {
      tokens += result.tokens.size();
      per_s += result.tokens_per_s;
    }
    log(LogLevel::kInfo, cat(results.size() > 1 ? cat(results.size(), " prompts, ") : "", counted(static_cast<int64_t>(tokens), "token"),
                             ", the first after ", human_seconds(first.prefill_ms / 1e3),
                             per_s > 0 ? cat(", then ", human_number(per_s), " per second") : ""));
    return results;
  }

 private:
  /// Whether the prompt is not printed: its text is not the beginning of the result.
  bool answers_alone(const Prompt& prompt) const { return prompt.chat || model_.reads_source(); }
  static Json json_of(const Prompt& prompt, const Generation& result) {
    return {{"prompt", prompt.text},           {"text", result.text},
            {"tokens", result.tokens},         {"stopped", kStopReasonNames[static_cast<size_t>(result.stopped)]},
            {"prefill_ms", result.prefill_ms}, {"tokens_per_s", result.tokens_per_s}};
  }

  LanguageModel model_;
  GenerateOptions options_;
  const TextOutput& output_;
  int64_t done_ = 0;
};

std::vector<Prompt> prompts_of(const TextOptions& options, const text::Tokenizer& tokenizer, const text::ChatTemplate* chat) {
  std::vector<Prompt> prompts;
  if ((!options.chats.empty() || !options.system.empty()) && chat == nullptr)
    throw Error(ErrorCode::kRecipe, "the model has no chat template")
        .key("predict.chat_template")
        .suggest("name its file, chat_template.jinja or tokenizer_config.json; --prompt continues a text as it stands");
  for (const std::string& message : options.chats) prompts.push_back(Conversation(*chat, tokenizer, options.system).ask(message, "--chat"));
  for (const std::string& text : options.prompts) prompts.push_back({text, ids_of(tokenizer, text, "--prompt")});
  if (!options.prompts_file.empty()) {
    int line = 0;
    for (const std::string& text : lines_of(options.prompts_file)) {
      ++line;
      if (text.empty()) continue;
      prompts.push_back({text, ids_of(tokenizer, text, options.prompts_file, line), false, options.prompts_file, line});
    }
    if (prompts.empty()) throw Error(ErrorCode::kInput, cat(options.prompts_file, ": no prompt, all lines are empty"));
  }
  return prompts;
}

/// Waits for standard input; false after a signal, which does not interrupt a read.
bool input_is_ready() {
  if (std::cin.rdbuf()->in_avail() > 0) return true;
  if (::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0) std::cerr << "> " << std::flush;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (stop_signal() == 0) {
    if (::poll(&input, 1, 100) > 0) return true;
  }
  return false;
}

/// predict.chat_template or, without it, the template in the folder of the tokenizer; nullopt if it has none.
std::optional<text::ChatTemplate> chat_template(const Recipe& recipe) {
  const std::string& named = recipe.predict.chat_template;
  if (!named.empty()) {
    std::optional<text::ChatTemplate> made = text::ChatTemplate::read(named);
    if (!made) throw Error(ErrorCode::kInput, cat(named, ": has no chat template")).key("predict.chat_template");
    return made;
  }
  const auto* files = dynamic_cast<const FileTokenizer*>(recipe.data.tokenizer.params.get());
  if (files == nullptr || files->path.empty()) return std::nullopt;
  const std::filesystem::path path(expand_paths(recipe.data.root, {files->path}).front());
  const std::filesystem::path folder = std::filesystem::is_directory(path) ? path : path.parent_path();
  return std::filesystem::is_directory(folder) ? text::ChatTemplate::read(folder.string()) : std::nullopt;
}

int exit_code() { return stop_signal() == 0 ? 0 : 128 + stop_signal(); }

}  // namespace

void TextOutput::result(Json line, const std::string& text) const {
  if (!provenance.empty()) line["provenance"] = Json::parse(provenance);
  const auto dumped = [&] { return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  if (save) save(dumped());
  print(json ? dumped() : text);
}

Error error_in_file(const Error& error, const std::string& file, int line) {
  Place place = error.place();
  if (place.line == 0) return error;
  if (line == 0 && file.starts_with("--")) {
    const std::string where = cat(place.line > 1 ? cat("line ", place.line, ", ") : "", "character ", place.column);
    return Error(ErrorCode::kUsage, cat(file, ", ", where, ": ", error.message())).suggest(error.suggestion());
  }
  place.file = file;
  if (line > 0) place.line += line - 1;
  return Error(error).at(place);
}

void show_tokens(const text::Tokenizer& tokenizer, const TextOptions& options, const TextOutput& output) {
  for (const std::string& text : options.tokenize) {
    const Prompt prompt{text, ids_of(tokenizer, text, "--tokenize")};
    Json pieces = Json::array();
    for (const int64_t id : prompt.ids) pieces.push_back(tokenizer.piece(id));
    output.result({{"text", text}, {"ids", prompt.ids}, {"pieces", std::move(pieces)}}, pieces_of(prompt, tokenizer));
  }
  for (const std::string& list : options.detokenize) {
    const std::vector<int32_t> ids = parse_ids(list, tokenizer);
    const std::string text = tokenizer.decode(ids);
    output.result({{"text", text}, {"ids", ids}}, text + "\n");
  }
}

NamedTexts texts_of(const TextOptions& options) {
  NamedTexts all;
  for (const std::string& text : options.texts) {
    all.texts.push_back(text);
    all.names.push_back("--text");
    all.lines.push_back(0);
  }
  all.pairs = options.pairs;
  if (options.has_pairs() && options.pairs.size() != options.texts.size())
    throw Error(ErrorCode::kUsage, cat("--text has ", options.texts.size(), " texts, --text-pair ", options.pairs.size()))
        .suggest("give each text a second one: --text A B --text-pair C D");
  if (options.texts_file.empty() != options.pairs_file.empty() && options.has_pairs())
    throw Error(ErrorCode::kUsage, cat("the ", options.pairs_file.empty() ? "texts of --text-file" : "second texts of --text-pair-file",
                                       " belong to no ", options.pairs_file.empty() ? "second ones" : "first ones"))
        .suggest("give both files, of as many lines");
  if (options.texts_file.empty()) return all;
  const std::vector<std::string> lines = lines_of(options.texts_file);
  std::vector<std::string> pairs;
  if (!options.pairs_file.empty()) {
    pairs = lines_of(options.pairs_file);
    if (pairs.size() != lines.size())
      throw Error(ErrorCode::kInput, cat(options.pairs_file, " has ", pairs.size(), " lines, ", options.texts_file, " has ", lines.size()));
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    all.texts.push_back(lines[i]);
    if (!pairs.empty()) all.pairs.push_back(pairs[i]);
    all.names.push_back(cat(options.texts_file, ":", i + 1));
    all.lines.push_back(static_cast<int>(i) + 1);
  }
  if (all.texts.empty()) throw Error(ErrorCode::kInput, cat(options.texts_file, ": no text, all lines are empty"));
  return all;
}

void check_continuation(Session& session, const TextOptions& options, int64_t batch, const TextOutput& output) {
  LanguageModel model(session);
  const std::optional<text::ChatTemplate> chat =
      options.chats.empty() && !options.interactive ? std::nullopt : chat_template(session.recipe());
  const std::vector<Prompt> prompts = prompts_of(options, model.tokenizer(), chat ? &*chat : nullptr);
  check_each(model, prompts);
  const GenerateOptions generate = generate_options(session.recipe());
  int64_t longest = 1;
  for (const Prompt& prompt : prompts) longest = std::max(longest, std::ssize(prompt.ids));
  const int64_t rows = generate.beams > 1 ? generate.beams : std::clamp<int64_t>(std::ssize(prompts), 1, batch);
  std::string text = "the recipe, its weights and the inputs fit\n";
  if (const auto memory = model.memory(rows, longest, longest + generate.max_new_tokens)) {
    const std::string_view stored = kCacheStorageNames[static_cast<size_t>(session.recipe().predict.generate.cache)];
    text +=
        cat("memory: weights ", human_bytes(memory->weights), ", key-value cache ", human_bytes(memory->cache), " (", stored, ", ", rows,
            rows == 1 ? " sequence" : " sequences", " of ", memory->positions, " tokens), work ", human_bytes(memory->work), "\n");
  }
  output.print(text);
}

int continue_prompts(Session& session, const TextOptions& options, int64_t batch, const TextOutput& output) {
  const text::Tokenizer& tokenizer = session.need_tokenizer();
  const std::optional<text::ChatTemplate> chat =
      options.chats.empty() && !options.interactive ? std::nullopt : chat_template(session.recipe());
  const std::vector<Prompt> prompts = prompts_of(options, tokenizer, chat ? &*chat : nullptr);
  if (options.show_prompt) {
    for (const Prompt& prompt : prompts) show(prompt, tokenizer, output);
    if (!options.interactive) return 0;
  }
  std::unique_ptr<Continuation> continuation;
  if (!options.show_prompt) continuation = std::make_unique<Continuation>(session, output);
  if (continuation) {
    check_each(continuation->model(), prompts);  // before anything is printed
    for (size_t begin = 0; begin < prompts.size() && stop_signal() == 0; begin += static_cast<size_t>(batch)) {
      const size_t end = std::min(prompts.size(), begin + static_cast<size_t>(batch));
      continuation->run({prompts.begin() + static_cast<std::ptrdiff_t>(begin), prompts.begin() + static_cast<std::ptrdiff_t>(end)});
    }
  }
  if (!options.interactive) {
    if (continuation && stop_signal() == 0) continuation->keep_packed_weights();
    return exit_code();
  }
  std::optional<Conversation> conversation;
  if (chat) conversation.emplace(*chat, tokenizer, options.system);
  std::string line;
  while (input_is_ready() && std::getline(std::cin, line)) {
    if (line.empty()) continue;
    try {
      const int64_t most = continuation ? continuation->most_prompt_tokens() : std::numeric_limits<int64_t>::max();
      const Prompt prompt =
          conversation ? conversation->ask(line, "standard input", most) : Prompt{line, ids_of(tokenizer, line, "standard input")};
      if (!continuation) {
        show(prompt, tokenizer, output);
        if (conversation) conversation->forget();
        continue;
      }
      const std::vector<Generation> results = continuation->run({prompt});
      if (conversation) conversation->answer(results.front().text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInput && error.code() != ErrorCode::kUsage) throw;
      const std::string place = error.place().file.empty() ? "" : error.place().str() + ": ";
      const std::string cure = error.suggestion().empty() ? "" : "; " + error.suggestion();
      log(LogLevel::kWarning, cat(place, error.message(), cure));  // the next line may be right
      if (conversation) conversation->forget();
    }
  }
  if (continuation && stop_signal() == 0) continuation->keep_packed_weights();
  return exit_code();
}

}  // namespace galley::tools
