#!/bin/sh
# Helpers of the scenarios. Run as: common.sh SCENARIO, in its own directory, with -eux.
# BusyBox prefers its own programs to those in /bin, unless their path is given.

printf passphrase > key

# At the end of a scenario, ends the servers that it started.
servers=""
end() {
    status=$?
    set +ex
    for server in $servers; do kill "$server"; done
    for server in $servers; do wait "$server"; done
    exit $status
}
trap end EXIT

# format IMAGE [OPTION...]: ucrypt writes a LUKS2 header.
format() {
    image=$1
    shift
    ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key "$@" "$image"
}

# serve OUTPUT ARGUMENT...: starts `ucrypt serve`, sets $server to its process, and waits until it
# is ready.
serve() {
    output=$1
    shift
    # What an earlier server said must be gone before this one is looked for.
    : > "$output"
    ucrypt serve "$@" > "$output" 2> "$output.errors" &
    server=$!
    servers="$servers $server"
    while ! grep -q . "$output"; do
        kill -0 "$server" || { cat "$output.errors"; return 1; }
        sleep 0.1
    done
}

# until_gone DEVICE: waits until the kernel has removed it. If that takes a minute, the kernel's log says
# what every task does.
until_gone() {
    for _ in $(seq 600); do
        [ -e "$1" ] || return 0
        sleep 0.1
    done
    cat "/sys/block/$(basename "$1")/inflight" || true
    echo t > /proc/sysrq-trigger
    return 1
}

# device_of OUTPUT: the ublk device that a server printed.
device_of() {
    sed -n 's/^ublk: //p' "$1"
}

# stop PROCESS: the server ends after SIGTERM, with success.
stop() {
    kill "$1"
    wait "$1"
}

# refused CODE WORD COMMAND...: the command fails with this exit code and a message with this word.
refused() {
    code=$1 word=$2
    shift 2
    status=0
    "$@" 2> refusal || status=$?
    cat refusal
    [ "$status" = "$code" ]
    grep -q -- "$word" refusal
}

# verify FILE [OPTION...]: fio writes all of the file in random order, and verifies it.
verify() {
    file=$1
    shift
    fio --name=verify --filename="$file" --ioengine=libaio --direct=1 --iodepth=16 \
        --rw=randwrite --bsrange=4k-128k --size=12M --verify=crc32c --verify_fatal=1 --fsync=64 \
        --randseed=1 --minimal "$@" > fio.out || { cat fio.out; return 1; }
}

# shellcheck disable=SC1090 # one of scenarios/
. "$1"
