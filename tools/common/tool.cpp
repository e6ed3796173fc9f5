#include "tools/common/tool.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/passes/pass_runner.h"
#include "libcore/runtime/engine.h"
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

template <class T>
T named(const std::map<std::string, T>& names, const std::string& word, const char* option) {
  const auto found = names.find(word);
  if (found != names.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : names) known += (known.empty() ? "" : ", ") + name;
  fail(ErrorCode::kUsage, option, " ", word, " is not supported; it must be one of ", known);
}

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
  command.add_flag("-V,--version", flags.version, "print version, commit and instruction set").group("Messages");
  command.add_option("--completion", flags.completion, "print the completion script of bash, zsh or fish").group("Messages");
}

Format format_of(const Tool& tool, const std::string& word, const char* option) {
  const Format format = named(kFormats, word, option);
  if (format == Format::kJsonLines && !tool.prints_json_lines())
    fail(ErrorCode::kUsage, option, " jsonl is not supported, because ", tool.name(), " prints one object; use json");
  return format;
}

void apply(const CommonFlags& flags, Tool& tool) {
  CommonOptions& common = tool.common;
  common.format = format_of(tool, flags.format, "--format");
  common.progress = flags.quiet ? ProgressMode::kNone : named(kProgress, flags.progress, "--progress");
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
      fail(ErrorCode::kUsage, "--verbose=", topic, " is not supported; it must be ops, compile or passes");
    }
  }
  for (const std::string& save : flags.save) {
    const size_t colon = save.find(':');
    if (colon == std::string::npos || colon + 1 == save.size()) fail(ErrorCode::kUsage, "--save must be FMT:FILE, got '", save, "'");
    common.save.emplace_back(format_of(tool, save.substr(0, colon), "--save"), save.substr(colon + 1));
  }
}

// bash splits words at = and : (COMP_WORDBREAKS) and replaces only the part after them: the words are joined again, and a reply is cut at
// the joined part. galley's own script tools/galley/completion.bash does the same.
constexpr const char* kBashCompletion = R"(_galley() {
  local words=() prefix= i
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    if ((i > 1)) && [[ ${COMP_WORDS[i]} =~ ^[=:]+$ ]]; then
      words[-1]+=${COMP_WORDS[i]}
      prefix=${words[-1]}
    elif ((i > 2)) && [[ ${COMP_WORDS[i - 1]} =~ ^[=:]+$ ]]; then
      prefix=${words[-1]}
      words[-1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
      prefix=
    fi
  done
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" --complete-words "${words[@]}" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
  COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
}
complete -o default -F _galley )";

std::string completion_script(const std::string& tool, const std::string& shell) {
  if (shell == "bash") {
    return std::string(kBashCompletion) + tool + "\n";
  }
  if (shell == "zsh") {
    // zsh loads the file as the body of the function _TOOL: the first completion has to call the function that it defines.
    return "#compdef " + tool +
           "\n_galley_words() { local -a w; w=(\"${(@f)$(${words[1]} --complete-words \"${(@)words[2,CURRENT]}\" 2>/dev/null)}\"); " +
           "compadd -S '' -- $w; _files; }\nif [[ ${funcstack[1]} == _" + tool +
           " ]]; then _galley_words \"$@\"; else compdef _galley_words " + tool + "; fi\n";
  }
  if (shell == "fish") {
    return "complete -c " + tool + " -a '(" + tool + " --complete-words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'\n";
  }
  fail(ErrorCode::kUsage, "--completion ", shell, " is not supported; it must be bash, zsh or fish");
}

/// The long options that begin with `word`, for completion.
std::vector<std::string> options_from(const CLI::App& app, const std::string& word) {
  std::vector<std::string> found;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (("--" + name).starts_with(word)) found.push_back("--" + name);
    }
  }
  return found;
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
    const std::string word = argc > 2 ? argv[argc - 1] : "";
    std::string out;
    for (const std::string& found : word.starts_with("-") ? options_from(app, word) : tool.complete({argv + 2, argv + argc}))
      out += found + "\n";
    std::fputs(out.c_str(), stdout);
    return kExitDone;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return kExitDone;
  } catch (const CLI::ParseError& error) {
    if (!flags.version && flags.completion.empty()) {
      print_error(Error(ErrorCode::kUsage, usage_message(app, error, argc, argv)), json);
      return static_cast<int>(ErrorCode::kUsage);
    }
  }
  if (flags.version) {
    std::cout << version_text(tool.name()) << "\n";
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
  const int code = tool.run();
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
    return run_tool(argc, argv, *tool, json);
  } catch (const Error& error) {
    return report_error(error, json);
  } catch (const std::bad_alloc&) {
    return report_error(Error(ErrorCode::kResource, "out of memory"), json);
  } catch (const std::exception& error) {
    return report_error(Error(ErrorCode::kInternal, error.what()), json);
  }
}

}  // namespace galley::tools
