# SPDX-License-Identifier: Apache-2.0
# Completion of gpushm in bash. The program itself knows its commands, options and names.
_gpushm() {
  local word=${COMP_WORDS[COMP_CWORD]} line
  local -a words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files) compopt -o filenames; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word") ;;
      :directories) compopt -o filenames; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$word") ;;
      *) printf -v line %q "${line%%$'\t'*}"; COMPREPLY+=("$line") ;;
    esac
  done < <("${COMP_WORDS[0]/#\~/$HOME}" complete -- "${words[@]}" 2>/dev/null)
}
complete -F _gpushm gpushm
