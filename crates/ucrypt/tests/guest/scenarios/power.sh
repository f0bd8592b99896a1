# The power of a disk fails, and its cache is lost. Writes acknowledged as durable must be there,
# whether they were flushed or written through. No device waits for a new server.
# shellcheck disable=SC2154 # common.sh sets $server
config=/sys/kernel/config/nullb/power
mkdir $config
for setting in zoned=0 memory_backed=1 size=64 cache_size=48; do
    echo ${setting#*=} > $config/${setting%=*}
done
echo 1 > $config/power
image=/dev/power
format $image --sector-size 512
block() {
    printf %04096d "$1"
}
# are_there FIRST COUNT: each of these blocks holds its number.
are_there() {
    ucrypt read --key-file key --offset $((4096 * $1)) --length $((4096 * $2)) $image > found
    for number in $(seq "$1" $(($1 + $2 - 1))); do block "$number"; done | cmp - found
}
# Kills the server, and turns the disk's power off and on.
fail() {
    kill -KILL "$server"
    wait "$server" || true
    until_gone "$disk"
    echo 0 > $config/power
    echo 1 > $config/power
}

# A write without a flush is lost: the cache does lose data.
serve out $image --key-file key --direct --ublk
disk=$(device_of out)
block 1 | dd of="$disk" bs=4k seek=1 oflag=direct conv=fsync
block 2 | dd of="$disk" bs=4k seek=2 oflag=direct
fail
are_there 1 1
if are_there 2 1; then false; fi

# write WRITER: writes the writer's own blocks and notes each once it is durable. Writer 1 flushes,
# writer 2 writes through.
write() {
    how=conv=fsync
    [ "$1" = 1 ] || how=oflag=direct,dsync
    number=$((1000 * $1))
    while block $number | /bin/dd of="$disk" bs=4k seek=$number conv=notrunc,nocreat $how; do
        echo $number
        number=$((number + 1))
    done >> "durable.$1" 2> /dev/null
}
for direct in "" --direct; do
    # shellcheck disable=SC2086 # words
    serve out $image --key-file key $direct --ublk
    disk=$(device_of out)
    : > durable.1
    : > durable.2
    write 1 &
    first=$!
    write 2 &
    second=$!
    for writer in 1 2; do
        while [ "$(wc -l < durable.$writer)" -lt 10 ]; do sleep 0.1; done
    done
    fail
    # The writes fail now.
    wait $first $second || true
    for writer in 1 2; do
        are_there $((1000 * writer)) "$(wc -l < durable.$writer)"
    done
done
echo 0 > $config/power
rmdir $config
