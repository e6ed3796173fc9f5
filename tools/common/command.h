#pragma once
// A command and its options: the part of CLI11 that tools use. Only tools/common includes CLI/CLI.hpp, which adds 400 functions to each
// file that includes it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace galley::tools {

/// An option of a command. All functions return *this.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}
  /// The heading in --help under which the option is listed.
  CommandOption& group(const std::string& name);
  /// What --help prints for the value: FILE.
  CommandOption& type_name(const std::string& name);
  /// Replaces the help text.
  CommandOption& description(const std::string& text);
  /// The last of several values counts.
  CommandOption& take_last();
  /// All values count, also those of a repeated flag.
  CommandOption& take_all();
  /// Values end at the next word: a repeatable option takes one word each time.
  CommandOption& one_word_each();
  /// Takes from `least` to `most` words.
  CommandOption& expected(int least, int most);
  CommandOption& expected(int words) { return expected(words, words); }
  /// --help prints the present value of the variable as default.
  CommandOption& show_default();
  /// Values outside of [least, most] are usage errors.
  CommandOption& in_range(int least, int most);
  CommandOption& in_range(double least, double most);
  /// Numbers below or equal to 0 are usage errors.
  CommandOption& positive();
  /// Other words are usage errors.
  CommandOption& one_of(const std::vector<std::string>& words);

 private:
  CLI::Option* option_;
};

/// A command of a command line: the program itself, or a verb of it. Parsing writes values into the variables, which must outlive it.
/// `names`: "-o,--output", or "RECIPE" for positional arguments; a flag "--dump{min}" takes an optional value.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}
  CommandOption add_option(const std::string& names, std::string& value, const std::string& help);
  CommandOption add_option(const std::string& names, std::vector<std::string>& values, const std::string& help);
  CommandOption add_option(const std::string& names, int& value, const std::string& help);
  CommandOption add_option(const std::string& names, int64_t& value, const std::string& help);
  CommandOption add_option(const std::string& names, double& value, const std::string& help);
  CommandOption add_flag(const std::string& names, bool& value, const std::string& help);
  /// Counts how often the flag is given.
  CommandOption add_flag(const std::string& names, int& count, const std::string& help);
  CommandOption add_flag(const std::string& names, std::string& value, const std::string& help);
  CommandOption add_flag(const std::string& names, std::vector<std::string>& values, const std::string& help);
  /// An option that exists.
  CommandOption option(const std::string& name);
  /// A verb, after which options of this command may follow too.
  Command add_verb(const std::string& name, const std::string& about);
  /// At most one verb may be given.
  void allow_one_verb();
  /// Called after parsing if the command was given.
  void on_given(std::function<void()> action);

 private:
  CLI::App* app_;
};

}  // namespace galley::tools
