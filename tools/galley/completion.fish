# Completion of galley in fish: its verbs, then the words that galley-VERB offers.
function __galley_words
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
