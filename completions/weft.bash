# SPDX-License-Identifier: Apache-2.0
# Completes the command lines of weft's programs in bash. The program itself is asked for its words, so that they are
# those of the version that is installed.

_weft() {
  local program=$1 word=$2 help verbs each
  local -a asked=()
  help=$("$program" --help 2>/dev/null) || return
  # What the help lists under "Subcommands:", one a line.
  verbs=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\).*/\1/p' <<<"$help")
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ -n $verbs && " ${verbs//$'\n'/ } " == *" $each "* ]]; then
      asked=("$each")
      break
    fi
  done
  if ((${#asked[@]})); then
    help=$("$program" "${asked[@]}" --help 2>/dev/null) || return
    verbs=
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '(^|[ ,])--[a-z][a-z_-]*' <<<"$help" | tr -d ' ,' | sort -u)" -- "$word")
  elif [[ -n $verbs ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$word")
  fi
}

complete -o default -F _weft weft-check-coroutines weft-conformance weft-info weft-perf weft-stress
