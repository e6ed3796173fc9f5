#pragma once
// Completion scripts. The bash, zsh and fish of a tool call `TOOL --complete-words WORDS...`, which prints the words that may follow.

#include <string>
#include <vector>

namespace galley::tools {

/// The script that completes a tool in "bash", "zsh" or "fish"; throws Error (kUsage) for another shell.
std::string completion_script(const std::string& tool, const std::string& shell);
/// The script of `galley`, which completes its verbs and then what galley-VERB offers; in bash also that of the `tools` (galley-train ...).
std::string galley_completion_script(const std::string& shell, const std::vector<std::string>& tools);

}  // namespace galley::tools
