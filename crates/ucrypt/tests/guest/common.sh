#!/bin/sh
# BusyBox prefers its own programs to those in /bin, unless their path is given.
# What the scenarios share. Run as: common.sh SCENARIO, in a directory of its own, with -eux.

printf passphrase > key

# Whatever a scenario started ends with it.
servers=""
end() {
    status=$?
    set +ex
    for server in $servers; do kill "$server"; done
    for server in $servers; do wait "$server"; done
    exit $status
}
trap end EXIT

# format IMAGE [OPTION...]: a LUKS2 header by ucrypt.
format() {
    image=$1
    shift
    ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key "$@" "$image"
}

# serve OUTPUT ARGUMENT...: starts `ucrypt serve`; $server is its process. Waits until it is ready.
serve() {
    output=$1
    shift
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

# The device that a server printed.
device_of() {
    sed -n 's/^ublk: //p' "$1"
}

# stop PROCESS: it ends by itself, with success.
stop() {
    kill "$1"
    wait "$1"
}

# refused CODE WORD COMMAND...: it fails with this exit code, and its message has the word.
refused() {
    code=$1 word=$2
    shift 2
    status=0
    "$@" 2> refusal || status=$?
    cat refusal
    [ "$status" = "$code" ]
    grep -q -- "$word" refusal
}

# verify FILE [OPTION...]: fio writes all of it, in order and out of order, and reads it back.
verify() {
    file=$1
    shift
    fio --name=verify --filename="$file" --ioengine=libaio --direct=1 --iodepth=16 \
        --rw=randwrite --bsrange=4k-128k --size=12M --verify=crc32c --verify_fatal=1 --fsync=64 \
        --randseed=1 --minimal "$@" > fio.out || { cat fio.out; return 1; }
}

# shellcheck disable=SC1090 # one of scenarios/
. "$1"
