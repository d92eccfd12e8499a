#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_completions.sh COMPLETIONS_DIR PROGRAM: bash, and zsh where it is installed, complete every option and subcommand
# that a program's --help lists.
set -euo pipefail
completions=$1 program=$2
faults=0

words_of() { "$program" "$@" --help | grep -oE -- '(^|[ ,[])--[a-z][a-z_-]*' | grep -oE -- '--.*' | sort -u; }
verbs() { "$program" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\).*/\1/p'; }

# in_bash TYPED WORD...: what bash offers for the last word.
in_bash() {
  bash -c '
    source "$1/weft.bash"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _weft "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    printf "%s\n" "${COMPREPLY[@]}"
  ' bash "$completions" "$@"
}

# in_zsh TYPED WORD...: zsh's own matching is left out, and what it would be offered is printed.
in_zsh() {
  zsh -f -c '
    completions=$1
    shift
    autoload -Uz compinit
    fpath=($completions $fpath)
    compadd() { shift; print -l -- ${(M)@:#${PREFIX}*}; }
    _files() { true; }
    words=("$@") CURRENT=$# PREFIX=${@[-1]}
    autoload -Uz _weft
    _weft
  ' zsh "$completions" "$@"
}

# compare SHELL WANTED OFFERED TYPED
compare() {
  if [[ -z $2 || $2 != "$3" ]]; then
    echo "$1 completes \"$4\" to: ${3//$'\n'/ }; and it should: ${2//$'\n'/ }"
    faults=1
  fi
}

shells=(bash)
if command -v zsh >/dev/null; then shells+=(zsh); fi
for shell in "${shells[@]}"; do
  compare "$shell" "$(words_of)" "$("in_$shell" "$program" --)" "$program --"
  while read -r verb; do
    [[ -n $verb ]] || continue
    compare "$shell" "$verb" "$("in_$shell" "$program" "$verb")" "$program $verb"
    compare "$shell" "$(words_of "$verb")" "$("in_$shell" "$program" "$verb" --)" "$program $verb --"
  done < <(verbs)
done
((faults)) || echo "in ${shells[*]}"
exit "$faults"
