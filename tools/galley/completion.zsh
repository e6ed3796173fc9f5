#compdef galley
# Completion of galley in zsh: its verbs, then the words that galley-VERB offers.
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
