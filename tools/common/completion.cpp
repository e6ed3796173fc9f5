#include "tools/common/completion.h"

#include "libcore/base/error.h"

namespace galley::tools {
namespace {

// bash splits words at = and : (COMP_WORDBREAKS) and replaces only the part that follows: the function joins the words again and cuts the
// joined part from each reply. Keys end with = or ., where the word goes on.
constexpr const char* kBashFunction = R"bash(_galley() {
  local program=("${COMP_WORDS[0]}") start=1 words=() prefix= i
  if [[ ${COMP_WORDS[0]##*/} == galley ]]; then
    if ((COMP_CWORD == 1)); then
      local folder verbs
      folder=$(dirname "$(type -P "${COMP_WORDS[0]}")")
      verbs=$(cd "$folder" && printf '%s\n' galley-* | sed 's/^galley-//')
      mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "${COMP_WORDS[1]}")
      return
    fi
    program+=("${COMP_WORDS[1]}")
    start=2
  fi
  for ((i = start; i <= COMP_CWORD; ++i)); do
    if ((i > start)) && [[ ${COMP_WORDS[i]} =~ ^[=:]+$ ]]; then
      words[-1]+=${COMP_WORDS[i]}
      prefix=${words[-1]}
    elif ((i > start + 1)) && [[ ${COMP_WORDS[i - 1]} =~ ^[=:]+$ ]]; then
      prefix=${words[-1]}
      words[-1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
      prefix=
    fi
  done
  mapfile -t COMPREPLY < <("${program[@]}" --complete-words "${words[@]}" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace; fi
  COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
}
complete -o default -F _galley)bash";

constexpr const char* kZshOfGalley = R"zsh(#compdef galley
_galley_verbs() {
  local program=${commands[$words[1]]:-$words[1]}
  local -a found
  if ((CURRENT > 2)); then
    found=("${(@f)$($program ${words[2]} --complete-words "${(@)words[3,CURRENT]}" 2>/dev/null)}")
    compadd -S '' -- $found
    _files
  else
    found=(${program:A:h}/galley-*(N:t))
    compadd -- ${found#galley-}
  fi
}
if [[ ${funcstack[1]} == _galley ]]; then _galley_verbs "$@"; else compdef _galley_verbs galley; fi
)zsh";

constexpr const char* kFishOfGalley = R"fish(function __galley_words
    set -l words (commandline -opc) (commandline -ct)
    if test (count $words) -gt 2
        $words[1] $words[2] --complete-words $words[3..-1] 2>/dev/null
    else
        for program in (dirname (command -s $words[1]))/galley-*
            string replace -r '.*/galley-' '' $program
        end
    end
end
complete -c galley -a '(__galley_words)'
)fish";

[[noreturn]] void refuse_shell(const std::string& shell) {
  fail(ErrorCode::kUsage, "--completion ", shell, " is not supported; it must be bash, zsh or fish");
}

}  // namespace

std::string completion_script(const std::string& tool, const std::string& shell) {
  if (shell == "bash") return std::string(kBashFunction) + " " + tool + "\n";
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
  refuse_shell(shell);
}

std::string galley_completion_script(const std::string& shell, const std::vector<std::string>& tools) {
  if (shell == "zsh") return kZshOfGalley;
  if (shell == "fish") return kFishOfGalley;
  if (shell != "bash") refuse_shell(shell);
  std::string script = std::string(kBashFunction) + " galley";
  for (const std::string& tool : tools) script += " " + tool;
  return script + "\n";
}

}  // namespace galley::tools
