#include "tools/common/command.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace galley::tools {

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
  option_->check(CLI::Range(least, most));
  return *this;
}

CommandOption& CommandOption::in_range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

CommandOption& CommandOption::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

CommandOption& CommandOption::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}

CommandOption Command::add_option(const std::string& names, std::string& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}

CommandOption Command::add_option(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  return CommandOption(app_->add_option(names, values, help));
}

CommandOption Command::add_option(const std::string& names, int& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}

CommandOption Command::add_option(const std::string& names, int64_t& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}

CommandOption Command::add_option(const std::string& names, double& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
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
