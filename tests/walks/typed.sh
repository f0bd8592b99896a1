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

# The package is there: from here on it takes at most two minutes to an open volume.
installed() {
    installed_at=$(date +%s)
}

opened() {
    took=$(($(date +%s) - installed_at))
    echo "walk: open after $took s"
    [ "$took" -le 120 ] || {
        echo "walk: FAILED: two minutes are what it may take"
        exit 1
    }
}

ended() {
    echo "walk: $commands commands, $(($(date +%s) - began)) s"
}
