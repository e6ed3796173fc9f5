#include "tools/common/tool.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>

#include "libcore/backends/backend.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/passes/pass_runner.h"
#include "libcore/runtime/engine.h"
#include "tools/common/completion.h"
#include "tools/common/option_words.h"
#include "tools/common/provenance.h"
#include "tools/common/ranks.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

const std::map<std::string, Format> kFormats{
    {"table", Format::kTable}, {"md", Format::kMarkdown}, {"csv", Format::kCsv}, {"json", Format::kJson}, {"jsonl", Format::kJsonLines}};
const std::map<std::string, ProgressMode> kProgress{{"auto", ProgressMode::kAuto},
                                                    {"bar", ProgressMode::kBar},
                                                    {"plain", ProgressMode::kPlain},
                                                    {"json", ProgressMode::kJson},
                                                    {"none", ProgressMode::kNone}};

constexpr const char* kExitCodes =
    "exit codes: 0 done, 1 internal error, 2 command line, 3 recipe, 4 file, 5 numeric, 6 goal missed, 7 resource, 8 worker,\n"
    "            9 inconclusive, 75 stopped early and resumable, 130/143 interrupted";

/// Errors must be JSON with --format json and jsonl, even if parsing the command line fails.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const std::string_view value = arg.starts_with("--format=") ? arg.substr(9) : arg == "--format" && i + 1 < argc ? argv[i + 1] : "";
    if (value == "json" || value == "jsonl") return true;
  }
  return false;
}

/// The names but those in `without`.
template <class T>
std::vector<std::string> names_of(const std::map<std::string, T>& names, std::string_view without = "") {
  std::vector<std::string> known;
  for (const auto& [name, value] : names) {
    if (name != without) known.push_back(name);
  }
  return known;
}

/// Names of the formats that the tool prints.
std::vector<std::string> formats_of(const Tool& tool) { return names_of(kFormats, tool.prints_json_lines() ? "" : "jsonl"); }

struct CommonFlags {
  std::string format = "table", progress = "auto", completion;
  std::vector<std::string> save, verbose;
  int v = 0;
  bool quiet = false, version = false;
};

void add_common_options(Command& command, CommonFlags& flags, const Tool& tool) {
  command
      .add_option("--format", flags.format,
                  tool.prints_json_lines() ? "format of the result on stdout: table, md, csv, json, or jsonl (one object per row)"
                                           : "format of the result on stdout: table, md, csv or json")
      .group("Output")
      .take_last();
  command.add_option("--save", flags.save, "save a copy of the result, FMT:FILE, e.g. json:result.json (repeatable)")
      .group("Output")
      .one_word_each();
  command.add_option("--progress", flags.progress, "progress on stderr: auto, bar, plain, json or none").group("Messages").take_last();
  command.add_flag("-v", flags.v, "more messages (-vv: all)").group("Messages");
  command
      .add_flag("--verbose{ops}", flags.verbose,
                "=ops: time every operator and print a table; =compile: reason of each compilation; =passes: changes made by each pass")
      .group("Messages")
      .take_all();
  command.add_flag("-q,--quiet", flags.quiet, "print only warnings and errors").group("Messages");
  command.add_flag("-V,--version", flags.version, "print version, commit and instruction set; with -v, back ends and what they need")
      .group("Messages");
  command.add_option("--completion", flags.completion, "print the completion script of bash, zsh or fish").group("Messages");
}

Format format_of(const Tool& tool, const std::string& word, const char* option) {
  const auto found = kFormats.find(word);
  if (found == kFormats.end()) refuse_word(option, word, formats_of(tool));
  if (found->second == Format::kJsonLines && !tool.prints_json_lines())
    fail(ErrorCode::kUsage, option, " jsonl is not supported, because ", tool.name(), " prints one object; use json");
  return found->second;
}

void apply(const CommonFlags& flags, Tool& tool) {
  CommonOptions& common = tool.common;
  common.format = format_of(tool, flags.format, "--format");
  const auto progress = kProgress.find(flags.progress);
  if (progress == kProgress.end()) refuse_word("--progress", flags.progress, names_of(kProgress));
  common.progress = flags.quiet ? ProgressMode::kNone : progress->second;
  // With JSON on stdout, progress on stderr is JSON too, one object per line.
  if ((common.format == Format::kJson || common.format == Format::kJsonLines) && common.progress == ProgressMode::kAuto)
    common.progress = ProgressMode::kJson;
  common.verbosity = flags.quiet ? -1 : flags.v;
  for (const std::string& topic : flags.verbose) {
    if (topic == "ops") {
      common.verbose_ops = true;
    } else if (topic == "passes") {
      set_pass_log(true);
    } else if (topic == "compile") {
      set_compile_log(true);
    } else {
      const std::string near = nearest(topic, {"ops", "compile", "passes"});
      throw Error(ErrorCode::kUsage, cat("--verbose=", topic, " is not supported; it must be ops, compile or passes"))
          .suggest(near.empty() ? "" : cat("did you mean '", near, "'?"));
    }
  }
  for (const std::string& save : flags.save) {
    const size_t colon = save.find(':');
    if (colon == std::string::npos || colon + 1 == save.size()) fail(ErrorCode::kUsage, "--save must be FMT:FILE, got '", save, "'");
    common.save.emplace_back(format_of(tool, save.substr(0, colon), "--save"), save.substr(colon + 1));
  }
}

/// An option of the command or of its verbs by its name, "--format" or "-o"; null if there is none.
const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  if (const CLI::Option* option = app.get_option_no_throw(name)) return option;
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (const CLI::Option* option = find_option(*below, name)) return option;
  }
  return nullptr;
}

/// The words that an option's value may be; {} if any value is possible.
std::vector<std::string> values_of(const CLI::Option& option, const Tool& tool) {
  const std::string name = option.get_name();
  if (name == "--format") return formats_of(tool);
  if (name == "--progress") return names_of(kProgress);
  if (name == "--verbose") return {"ops", "compile", "passes"};
  if (name == "--dump-recipe") return {"min", "full", "origin"};
  if (name == "--completion") return {"bash", "zsh", "fish"};
  if (name != "--device") return words_of(&option);
  std::vector<std::string> devices;
  for (const BackendRow& row : backend_rows()) devices.emplace_back(row.name);
  return devices;
}

/// The words that may complete the last of `words`: options, the values of an option, or what the tool offers.
std::vector<std::string> completions(const CLI::App& app, const Tool& tool, const std::vector<std::string>& words) {
  const std::string word = words.empty() ? "" : words.back();
  std::vector<std::string> found;
  const auto offer = [&](const std::string& candidate) {
    if (candidate.starts_with(word)) found.push_back(candidate);
  };
  if (word.starts_with("-")) {
    const size_t equals = word.find('=');
    const CLI::Option* option = equals == std::string::npos ? nullptr : find_option(app, word.substr(0, equals));
    if (option != nullptr) {
      for (const std::string& value : values_of(*option, tool)) offer(word.substr(0, equals + 1) + value);
    } else if (equals == std::string::npos) {
      for (const CLI::Option* each : app.get_options()) {
        for (const std::string& name : each->get_lnames()) offer("--" + name);
      }
    }
    return found;
  }
  // The tool completes its own arguments; options and their values are not among them.
  constexpr std::array<std::string_view, 3> kTakeKeys{"--with", "--unset", "--explain"};
  std::vector<std::string> arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool last = i + 1 == words.size();
    if (last || !words[i].starts_with("-") || words[i] == "-") {
      arguments.push_back(words[i]);
      continue;
    }
    const CLI::Option* option = words[i].find('=') == std::string::npos ? find_option(app, words[i]) : nullptr;
    if (option == nullptr || option->get_expected_min() == 0) continue;
    const bool takes_key = std::find(kTakeKeys.begin(), kTakeKeys.end(), words[i]) != kTakeKeys.end();
    if (++i + 1 < words.size() || takes_key) continue;
    for (const std::string& value : values_of(*option, tool)) offer(value);
    return found;  // none: the shell completes names of files
  }
  if (arguments.empty() || arguments.back() != word) arguments.push_back(word);
  return tool.complete(arguments);
}

/// The long options of a command and of the commands below it.
void add_option_names(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) add_option_names(*below, names);
}

/// The first word of the command line that no option, argument or verb took, or "".
std::string first_unexpected(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> left = app.remaining(true);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("-") && std::find(left.begin(), left.end(), word) != left.end()) return word;
  }
  return "";
}

/// What to say of a word that nothing takes: with verbs, a verb is what was meant unless one was given.
std::string unexpected_word(const CLI::App& app, const std::string& word) {
  static const std::map<std::string, std::string> kOtherNames{
      {"list", "ls"}, {"copy", "cp"}, {"print", "show"}, {"check", "validate"}, {"download", "fetch"}};
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) verbs.push_back(verb->get_name());
  if (verbs.empty() || !app.get_subcommands().empty())
    return "unexpected argument '" + word + "'; " + app.get_name() + " --help explains the arguments";
  const auto other = kOtherNames.find(word);
  const bool known = other != kOtherNames.end() && std::find(verbs.begin(), verbs.end(), other->second) != verbs.end();
  const std::string near = known ? other->second : nearest(word, verbs);
  std::string list;
  for (const std::string& verb : verbs) list += (list.empty() ? "known: " : ", ") + verb;
  return app.get_name() + " has no verb '" + word + "'; " + (near.empty() ? list : "did you mean '" + near + "'?");
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string message = error.what();
  std::vector<std::string> names;
  add_option_names(app, names);
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (!word.starts_with("--") || std::find(names.begin(), names.end(), word) != names.end()) continue;
    const std::string near = nearest(word, names);
    if (!near.empty()) return "unknown option " + word + "; did you mean " + near + "?";
    return "unknown option " + word + "; " + app.get_name() + " --help lists all options";
  }
  const std::string word = first_unexpected(app, argc, argv);
  return word.empty() ? message : unexpected_word(app, word);
}

void print_error(const Error& error, bool json) { std::fprintf(stderr, "%s\n", json ? error_json(error).c_str() : error.text().c_str()); }

/// A line for each back end: its name, and what it needs of the machine.
std::string back_ends_text() {
  std::string text;
  for (const BackendRow& row : backend_rows())
    text += cat("device ", row.name, ": ", row.doc, row.requirements != nullptr ? cat("; ", row.requirements()) : "", "\n");
  return text;
}

void install_log(int verbosity, bool json) {
  set_log_sink([verbosity, json](LogLevel level, const std::string& message) {
    if (level == LogLevel::kDebug && verbosity < 2) return;
    if (level == LogLevel::kInfo && verbosity < 0) return;
    if (keep_rank_message(cat(level == LogLevel::kWarning ? "warning: " : "", message))) return;
    if (json) {
      const nlohmann::ordered_json line{{level == LogLevel::kWarning ? "warning" : "message", message}};
      std::fprintf(stderr, "%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
      return;
    }
    std::fprintf(stderr, "%s%s\n", level == LogLevel::kWarning ? "warning: " : "", message.c_str());
  });
}

int run_tool(int argc, char** argv, Tool& tool, bool json) {
  CLI::App app(tool.about(), tool.name());
  app.set_help_flag("-h,--help", "print this help and exit");
  app.footer("examples:\n" + tool.examples() + "\n" + kExitCodes);
  app.get_formatter()->column_width(34);
  CommonFlags flags;
  Command command(app);
  tool.add_options(command);
  add_common_options(command, flags, tool);
  if (argc > 1 && std::string_view(argv[1]) == "--complete-words") {
    std::string out;
    for (const std::string& found : completions(app, tool, {argv + 2, argv + argc})) out += found + "\n";
    std::fputs(out.c_str(), stdout);
    return kExitDone;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    if (!flags.version && flags.completion.empty()) throw Error(ErrorCode::kUsage, usage_message(app, error, argc, argv));
  }
  if (flags.version) {
    std::cout << version_text(tool.name()) << "\n" << (flags.v > 0 ? back_ends_text() : "");
    return kExitDone;
  }
  if (!flags.completion.empty()) {
    std::cout << completion_script(tool.name(), flags.completion);
    return kExitDone;
  }
  apply(flags, tool);
  install_log(tool.common.verbosity, json);
  install_signal_handlers(json);
  if (is_ranked() && !tool.uses_ranks()) {
    throw Error(ErrorCode::kUsage, tool.name() + " runs as one process, but a launcher has started several ranks of it")
        .suggest("start it without mpirun or srun, or with one rank");
  }
  int code = kExitDone;
  try {
    code = tool.run();
  } catch (const Stopped&) {
    code = 128 + stop_signal();
  }
  Ranks::close();
  return code;
}

/// Reports an error and returns the exit code. Ranks do not wait for each other then: mpirun ends the others.
int report_error(Error error, bool json) {
  const int code = static_cast<int>(error.code());
  if (!is_ranked()) {
    print_error(error, json);
    return code;
  }
  if (must_report_error()) {
    if (own_rank() != 0) error.context(cat(" (rank ", own_rank(), ")"));
    print_error(error, json);
  }
  leave(code);
}

}  // namespace

std::vector<std::string> Tool::complete(const std::vector<std::string>&) const { return {}; }

void Tool::print(const std::string& text) const {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    if (errno == EPIPE) {  // the reader (e.g. `head`) has closed the pipe: end by SIGPIPE like other filters
      std::signal(SIGPIPE, SIG_DFL);
      std::raise(SIGPIPE);
    }
    fail(ErrorCode::kResource, "cannot write to standard output");
  }
}

void Tool::check_outputs(std::initializer_list<std::string_view> paths) const {
  // Creates and removes a temporary file; an existing file is not changed.
  for (const std::string_view path : paths) {
    if (!path.empty()) OutputFile probe{std::string(path)};
  }
  for (const auto& [format, path] : common.save) OutputFile probe(path);
}

void Tool::print(const Table& table) const { print(render(table, common.format)); }

void Tool::save(const std::string& json, const Table& table) const {
  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? json : render(table, format));
}

void Tool::save_and_print(const std::string& json, const Table& table) const {
  save(json, table);
  if (common.format == Format::kJson) {
    print(json);
  } else {
    print(table);
  }
}

std::string error_json(const Error& error) {
  nlohmann::ordered_json fields;
  fields["code"] = static_cast<int>(error.code());
  fields["file"] = error.place().file;
  fields["line"] = error.place().line;
  fields["col"] = error.place().column;
  fields["key"] = error.key();
  fields["message"] = error.message();
  fields["suggestion"] = error.suggestion();
  nlohmann::ordered_json object;
  object["error"] = std::move(fields);
  std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (const Error& other : error.others()) text += "\n" + error_json(other);
  return text;
}

int tool_main(int argc, char** argv, std::unique_ptr<Tool> tool) {
  const bool json = wants_json(argc, argv);
  try {
    supervise(tool->name(), json);
    const int code = run_tool(argc, argv, *tool, json);
    announce_end(code);
    return code;
  } catch (const Error& error) {
    return report_error(error, json);
  } catch (const std::bad_alloc&) {
    return report_error(Error(ErrorCode::kResource, "out of memory"), json);
  } catch (const std::exception& error) {
    return report_error(Error(ErrorCode::kInternal, error.what()), json);
  }
}

}  // namespace galley::tools
