# SPDX-License-Identifier: Apache-2.0
# Completion of gpushm in fish. The program itself knows its commands, options and names.
function __gpushm_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l current (commandline --current-token --cut-at-cursor)
    for line in ($words[1] complete -- $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path "$current"
            case :directories
                __fish_complete_directories "$current"
            case '*'
                echo $line
        end
    end
end
complete --command gpushm --no-files --arguments '(__gpushm_complete)'
