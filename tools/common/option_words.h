#pragma once
// Options whose value is one of a few words.

#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace galley::tools {

/// Throws Error (kUsage): the option's value must be one of the words; names the nearest.
[[noreturn]] void refuse_word(const std::string& option, const std::string& word, const std::vector<std::string>& words);
/// The words of an option with CommandOption::one_of; {} for others.
const std::vector<std::string>& words_of(const CLI::Option* option);

}  // namespace galley::tools
