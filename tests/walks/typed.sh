# What somebody types in a walk: `typed COMMAND` shows it, runs it and counts it; a command that fails ends the walk.
# `answered TEXT COMMAND` also types TEXT at its prompt. `ended` says how many commands it took, and how long.
set -eu
commands=0
began=$(date +%s)

typed() {
    commands=$((commands + 1))
    echo "$(id -un)> $*"
    eval "$*" </dev/null
}

answered() {
    text=$1
    shift
    commands=$((commands + 1))
    echo "$(id -un)> $*"
    echo "$text" | eval "$*"
}

ended() {
    echo "walk: $commands commands, $(($(date +%s) - began)) s"
}
