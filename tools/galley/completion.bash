# Completion of galley in bash: its verbs, then the words that galley-VERB offers.
_galley_verbs() {
  local program=${COMP_WORDS[0]} folder words=() prefix= i
  if ((COMP_CWORD > 1)); then
    # bash splits words at = and : (COMP_WORDBREAKS) and replaces only the part after them: the words are joined again, and a reply is cut
    # at the joined part.
    for ((i = 2; i <= COMP_CWORD; ++i)); do
      if ((i > 2)) && [[ ${COMP_WORDS[i]} =~ ^[=:]+$ ]]; then
        words[-1]+=${COMP_WORDS[i]}
        prefix=${words[-1]}
      elif ((i > 3)) && [[ ${COMP_WORDS[i - 1]} =~ ^[=:]+$ ]]; then
        prefix=${words[-1]}
        words[-1]+=${COMP_WORDS[i]}
      else
        words+=("${COMP_WORDS[i]}")
        prefix=
      fi
    done
    mapfile -t COMPREPLY < <("$program" "${COMP_WORDS[1]}" --complete-words "${words[@]}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    return
  fi
  folder=$(dirname "$(type -P "$program")")
  mapfile -t COMPREPLY < <(cd "$folder" && compgen -W "$(printf '%s\n' galley-* | sed 's/^galley-//')" -- "${COMP_WORDS[1]}")
}
complete -o default -F _galley_verbs galley
