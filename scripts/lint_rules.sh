#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks rules of this repository that no standard tool checks. Prints every violation; fails if there is one.
#
#   scripts/lint_rules.sh               the tracked files of this repository
#   scripts/lint_rules.sh --self-test   plants each violation in a scratch tree and expects it to be found
set -euo pipefail
shopt -s lastpipe  # `report` at the end of a pipe changes `violations` of this shell

violations=0
report() { # TEXT, with the places on standard input
  local places
  places=$(cat)
  if [ -n "$places" ]; then
    printf '%s\n%s\n' "lint: $1:" "$places" >&2
    violations=$((violations + 1))
  fi
}

# Reads file names from standard input and prints those that match a pattern (grep -E, with its options).
names() { grep -E "$@" || true; }

search() { # PATTERN, file names on standard input
  xargs -r -d '\n' grep -nHE "$1" || true
}

licence() {
  names '(\.(cpp|hpp|c|h|rs|sh|py|cmake|map|fbs|supp)|CMakeLists\.txt|Makefile|^\.ci/run|^\.githooks/[a-z-]+)$' |
    while IFS= read -r file; do
      head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0' || echo "$file"
    done
}

# Text between co_await and the end of its statement, lines joined.
co_await_braces() {
  # shellcheck disable=SC2016  # Perl's variables
  names '\.(cpp|hpp)$' | xargs -r -d '\n' perl -0777 -ne '
    s{//[^\n]*}{}g;
    while (/co_await\b([^;]*?)((?:[(,]\s*|\w\s*)\{\s*\.\w+\s*=|\(\s*\{)/g) {
      my $line = 1 + (substr($_, 0, $-[0]) =~ tr/\n//);
      print "$ARGV:$line\n" unless $1 =~ /\[[^\]]*\]\s*(?:\([^)]*\))?\s*\{/;
    }'
}

# Words that the reviews of the text found in place of plain English ("again", "fix", "must", "forever", "not a", "GPU").
words() {
  # shellcheck disable=SC2016  # Perl's variables
  names '(\.(cpp|hpp|c|h|rs|sh|py|cmake|md|fbs|json|yaml)|CMakeLists\.txt|Makefile)$' |
    { grep -vE '^(docs/plan|results|tests/data)/' || true; } |
    xargs -r -d '\n' perl -ne '
      print "$ARGV:$.:$_" if /\b(anew|mend(s|ed|ing)?|for ever|shall|whoever|told|boards?|any more|so many)\b/i || /(?<!there )\bis no (?!longer|more)/i;
      close ARGV if eof;'
}

# A comment of /// reads alone: "Returns nullopt if …" for "Nothing: …", and the name of the subject for "Of …" and "By …".
fragments() {
  names '\.(cpp|hpp)$' | names -v '^tests/' | search '^[[:space:]]*/// ((Of|By) |(Nothing|Null|Nullopt|None|False|True|Empty): )'
}

# Names that docs/glossary.md has replaced: the last column of its tables has `name`, or `name` (path, path…) for a name that is refused
# only in these folders and files. The page itself, decisions, plans, results and test data are not checked.
dead_names() {
  # shellcheck disable=SC2016  # Perl's variables
  names '(\.(cpp|hpp|c|h|rs|sh|py|pyi|cmake|md|fbs|json|yaml)|CMakeLists\.txt|Makefile)$' |
    { grep -vE '^(docs/plan|docs/adr|results|tests/data)/|^docs/glossary\.md$' || true; } |
    perl -e '
      use strict;
      my ($glossary, %use, %scopes) = ("docs/glossary.md");
      open(my $page, "<", $glossary) or exit 0;
      while (<$page>) {
        next unless /^\| (?!Name \||---)/;
        my @cells = split /\s*\|\s*/, $_;
        my ($kept, $dead) = @cells[1, 4];
        next unless defined $dead;
        while ($dead =~ /`([^`]+)`(?: \(([^)]*)\))?/g) {
          $use{$1} = $kept;
          $scopes{$1} = defined $2 ? [split /,\s*/, $2] : [""];
        }
      }
      die "$glossary: no names\n" unless %use;
      my $any = join "|", map { join "\\s+", map quotemeta, split / / } sort { length $b <=> length $a } keys %use;
      for my $file (map { chomp; $_ } <STDIN>) {
        open(my $in, "<", $file) or next;
        while (my $line = <$in>) {
          while ($line =~ /(?<!\w)($any)(?!\w)/g) {
            my $name = $1 =~ s/\s+/ /gr;
            next unless grep { $_ eq "" || $file eq $_ || index($file, "$_/") == 0 } @{$scopes{$name}};
            print "$file:$.: \"$name\"; use \"$use{$name}\"\n";
          }
        }
      }'
}

# Parameters, and variables of loops, that are called by a function word: they are nouns of the domain (CONTRIBUTING.md).
function_words() {
  # shellcheck disable=SC2016  # Perl's variables
  names '\.(cpp|hpp|h|c)$' | { grep -vE '^tests/data/' || true; } |
    xargs -r -d '\n' perl -ne '
      my $code = $_ =~ s{"(?:[^"\\]|\\.)*"}{""}gr =~ s{//.*|/\*.*?(?:\*/|$)}{}gr;
      print "$ARGV:$.:$_" if $code !~ /^\s*\*/ && $code =~ /[\w>&*\]]\s[&*]*(?:of|by|what|found|all)\s*[,)]/ &&
                             $code !~ /\b(?:return|co_await|co_return|throw|new|delete|case|sizeof)\s(?:of|by|what|found|all)\b/ ||
                             $code =~ /\bfor \([^;]*?[\s&*\[](?:of|by|what|found|all)(?:,[^\];]*)?\]? :/;
      close ARGV if eof;'
}

check() {
  local files sources
  files=$(cat)
  # The patterns must not match this file.
  files=$(grep -vx 'scripts/lint_rules.sh' <<<"$files")
  sources=$(names '^(src|apps|include)/.*\.(cpp|hpp)$' <<<"$files")
  licence <<<"$files" | report "no SPDX-License-Identifier in the first three lines"
  co_await_braces <<<"$files" |
    report "braced temporary in a co_await expression; g++ 12 destroys it twice: name it first"
  search '\bsleep_(for|until)\b|\b(u|nano)?sleep ?\(' <<<"$sources" |
    report "sleep; wait for the event, with a deadline"
  if [[ $PWD == /*/* ]]; then  # a path like "/src" would match many others
    { xargs -r -d '\n' grep -nHIF -- "$PWD/" || true; } <<<"$files" | report "a path of this machine"
  fi
  names '\.(cpp|hpp|sh|cmake|py)$' <<<"$files" | search '\b(TODO|FIXME|XXX)\b' | report "unfinished work"
  search 'NOLINT(NEXTLINE|BEGIN)?([^(:A-Z]|$|\([^)]*\)[[:space:]]*$)' <<<"$sources" |
    report "NOLINT without a check's name and a reason: NOLINT(check): why"
  names '\.(cpp|hpp|c)$' <<<"$files" | names -v '^src/base/process/signals\.hpp$' | search '(^|[^[:alnum:]_>])(::|std::)?(kill|killpg) ?\([^)]*,' |
    report "kill(2): -1 and 0 are many processes; use base/process/signals.hpp"
  names '^src/(broker|core|succession/recorder|low)/' <<<"$sources" | names -v '/(limited|member)_log\.cpp$' | search '\bbase::log\(' |
    report "a log line that members may cause without limit: log_about_members, or log_about_broker (limited_log.hpp)"
  words <<<"$files" | report "a word that plain English does not use here (scripts/lint_rules.sh, words)"
  function_words <<<"$files" | report "a parameter or a loop's variable called of, by, what, found or all: use a noun"
  fragments <<<"$files" | report "a comment that does not read alone; begin with a verb (Returns …) or with the subject"
  dead_names <<<"$files" | report "a name that docs/glossary.md has replaced"
  search '#include "(src/|\.\.)' <<<"$(names '\.(cpp|hpp|h|c)$' <<<"$files")" |
    report "an include that bypasses the include roots, by which the compiler enforces the layers"
}

self_test() {
  scratch=""  # global: used by the trap after this function returns
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cd "$scratch"
  mkdir -p src/low src/high docs
  # shellcheck disable=SC2016  # Markdown
  printf '%s\n' '# Glossary' '| Name | What it is | In the interfaces | Names that are not used |' '|---|---|---|---|' \
    '| bucket | It holds water. | `x` | `old_pail`, `water pail`, `tub` (src/low/a.cpp), `vat` (src/high) |' >docs/glossary.md
  local header='// SPDX-License-Identifier: Apache-2.0'
  printf '%s\n' "$header" '#include "low/a.hpp"' '#include "gpushm/error.hpp"' \
    'auto x() { co_await f([&] { return g({.k = 1}); }); const item i{.k = 3}; co_await f(i); }' >src/high/b.cpp
  printf '%s\n' "$header" >src/low/a.cpp
  expect() { # EXPECTED_VIOLATIONS, WHAT
    violations=0
    check < <(find src -type f | sort) 2>found.log
    if [ "$violations" != "$1" ]; then
      echo "self-test: $2: $violations violations instead of $1" >&2
      cat found.log >&2
      exit 1
    fi
    printf '%s\n' "$header" >src/low/a.cpp
  }
  plant() { # WHAT, LINE...
    local what=$1
    shift
    printf '%s\n' "$header" "$@" >src/low/a.cpp
    expect 1 "$what"
  }
  expect 0 "a clean tree"
  plant "designated temporary" 'void y() { co_await f(s, {.k = 3}); }'
  plant "temporary on the next line" 'void y() {' '  co_await f(' '      {.k = 3});' '}'
  plant "named temporary" 'void y() { co_await f(item{.k = 3}); }'
  plant "sleep" 'void y() { std::this_thread::sleep_for(1s); }'
  plant "machine path" "auto p = \"$PWD/x\";"
  plant "unfinished" '// TODO: later'
  plant "bare NOLINT" 'int z;  // NOLINT'
  plant "NOLINT without a reason" 'int z;  // NOLINT(misc-x)'
  plant "include past the roots" '#include "src/high/b.hpp"'
  plant "include of a folder above" '#include "../high/b.hpp"'
  plant "kill" 'void y(int child) { ::kill(child, 9); }'
  plant "killpg" 'void y(int child) { killpg(child, 9); }'
  plant "unlimited log" 'void y() { base::log(log_level::warning, "x"); }'
  plant "function word" 'void y(const lease& of, int n);'
  plant "function word in a lambda" 'auto f = [](auto* what) {};'
  plant "function word in a loop" 'void y() { for (const auto& found : list) {} }'
  plant "function word in a binding" 'void y() { for (const auto& [name, of] : list) {} }'
  plant "old word" '// The socket is made anew.'
  plant "dead name" 'int old_pail = 0;'
  plant "dead phrase" '// It is a water pail.'
  plant "dead name in this file" '// A tub.'
  printf '%s\n' "$header" '// A vat, and old_pails.' >src/low/a.cpp
  expect 0 "a dead name of another folder, and a longer name"
  plant "old phrase" '// It is not used any more.'
  plant "fragment" '/// Of the page.' 'int bytes();'
  plant "value without a verb" '  /// Nothing: there is none.'
  plant "is no" 'auto p = "this is no path";'
  echo 'int z;' >src/low/a.cpp
  expect 1 "no licence"
  echo "lint_rules: each planted violation was found"
}

if [ "${1:-}" = --self-test ]; then
  self_test
  exit 0
fi
cd "$(dirname "$0")/.."
# Deleted files may still be tracked.
check < <(git ls-files | while IFS= read -r file; do [ -f "$file" ] && echo "$file"; done)
[ "$violations" = 0 ]
