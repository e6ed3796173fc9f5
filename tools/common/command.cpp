#include "tools/common/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <utility>

#include "libcore/base/error.h"
#include "tools/common/option_words.h"

namespace galley::tools {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

/// The words of options with one_of.
std::map<const CLI::Option*, std::vector<std::string>>& all_words() {
  static std::map<const CLI::Option*, std::vector<std::string>> words;
  return words;
}

/// Refuses values of the option that do not `fit`. The exception passes through CLI11, whose own messages name neither remedy nor type.
void must_be(CLI::Option* option, const std::string& what, const std::string& in_help, std::function<bool(const std::string&)> fit) {
  option->check(CLI::Validator(
      [option, what, fit = std::move(fit)](const std::string& word) {
        if (!fit(word)) fail(ErrorCode::kUsage, option->get_name(), " ", word, " is not supported; it must be ", what);
        return std::string();
      },
      in_help));
}

template <class T>
CLI::Option* number(CLI::Option* option, const char* what) {
  must_be(option, what, "", [](const std::string& word) {
    T value{};
    return CLI::detail::lexical_cast(word, value);
  });
  return option;
}

}  // namespace

void refuse_word(const std::string& option, const std::string& word, const std::vector<std::string>& words) {
  const std::string near = nearest(word, words);
  throw Error(ErrorCode::kUsage, cat(option, " ", word, " is not supported; it must be one of ", joined(words, ", ")))
      .suggest(near.empty() ? "" : cat("did you mean '", near, "'?"));
}

const std::vector<std::string>& words_of(const CLI::Option* option) {
  static const std::vector<std::string> none;
  const auto found = all_words().find(option);
  return found == all_words().end() ? none : found->second;
}

CommandOption& CommandOption::group(const std::string& name) {
  option_->group(name);
  return *this;
}

CommandOption& CommandOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandOption& CommandOption::description(const std::string& text) {
  option_->description(text);
  return *this;
}

CommandOption& CommandOption::take_last() {
  option_->take_last();
  return *this;
}

CommandOption& CommandOption::take_all() {
  option_->take_all();
  return *this;
}

CommandOption& CommandOption::one_word_each() {
  option_->allow_extra_args(false);
  return *this;
}

CommandOption& CommandOption::expected(int least, int most) {
  if (least == most) {
    option_->expected(least);
  } else {
    option_->expected(least, most);
  }
  return *this;
}

CommandOption& CommandOption::show_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::in_range(int least, int most) {
  must_be(option_, cat("a whole number from ", least, " to ", most), cat("[", least, " - ", most, "]"), [=](const std::string& word) {
    int value = 0;
    return CLI::detail::lexical_cast(word, value) && value >= least && value <= most;
  });
  return *this;
}

CommandOption& CommandOption::in_range(double least, double most) {
  must_be(option_, cat("a number from ", least, " to ", most), cat("[", least, " - ", most, "]"), [=](const std::string& word) {
    double value = 0;
    return CLI::detail::lexical_cast(word, value) && value >= least && value <= most;
  });
  return *this;
}

CommandOption& CommandOption::positive() {
  must_be(option_, "a number above 0", "POSITIVE", [](const std::string& word) {
    double value = 0;
    return CLI::detail::lexical_cast(word, value) && value > 0;
  });
  return *this;
}

CommandOption& CommandOption::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::Validator(
      [option = option_, words](const std::string& word) {
        if (std::find(words.begin(), words.end(), word) == words.end()) refuse_word(option->get_name(), word, words);
        return std::string();
      },
      "{" + joined(words, ",") + "}"));
  all_words()[option_] = words;
  return *this;
}

CommandOption Command::add_option(const std::string& names, std::string& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}

CommandOption Command::add_option(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  return CommandOption(app_->add_option(names, values, help));
}

CommandOption Command::add_option(const std::string& names, int& value, const std::string& help) {
  return CommandOption(number<int>(app_->add_option(names, value, help), "a whole number"));
}

CommandOption Command::add_option(const std::string& names, int64_t& value, const std::string& help) {
  return CommandOption(number<int64_t>(app_->add_option(names, value, help), "a whole number"));
}

CommandOption Command::add_option(const std::string& names, double& value, const std::string& help) {
  return CommandOption(number<double>(app_->add_option(names, value, help), "a number"));
}

CommandOption Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return CommandOption(app_->add_flag(names, value, help));
}

CommandOption Command::add_flag(const std::string& names, int& count, const std::string& help) {
  return CommandOption(app_->add_flag(names, count, help));
}

CommandOption Command::add_flag(const std::string& names, std::string& value, const std::string& help) {
  return CommandOption(app_->add_flag(names, value, help));
}

CommandOption Command::add_flag(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  return CommandOption(app_->add_flag(names, values, help));
}

CommandOption Command::option(const std::string& name) { return CommandOption(app_->get_option(name)); }

Command Command::add_verb(const std::string& name, const std::string& about) {
  CLI::App* verb = app_->add_subcommand(name, about);
  verb->fallthrough();
  return Command(*verb);
}

void Command::allow_one_verb() { app_->require_subcommand(0, 1); }

void Command::on_given(std::function<void()> action) { app_->callback(std::move(action)); }

}  // namespace galley::tools
