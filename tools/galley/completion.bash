# Completion of galley in bash: its verbs, then the words that galley-VERB offers.
_galley_verbs() {
  local program=${COMP_WORDS[0]} folder
  if ((COMP_CWORD > 1)); then
    mapfile -t COMPREPLY < <("$program" "${COMP_WORDS[1]}" --complete-words "${COMP_WORDS[@]:2:COMP_CWORD-1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
    return
  fi
  folder=$(dirname "$(type -P "$program")")
  mapfile -t COMPREPLY < <(cd "$folder" && compgen -W "$(printf '%s\n' galley-* | sed 's/^galley-//')" -- "${COMP_WORDS[1]}")
}
complete -o default -F _galley_verbs galley
