# The power fails, of a disk whose cache is lost then: what was answered as durable is there, whether
# it was flushed or written through. Nothing waits for a new server.
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
# The server is killed, and the power is gone and comes back.
fail() {
    kill -KILL "$server"
    wait "$server" || true
    until_gone "$disk"
    echo 0 > $config/power
    echo 1 > $config/power
}

# What nobody flushed is lost: there is something to be lost.
serve out $image --key-file key --direct --ublk
disk=$(device_of out)
block 1 | dd of="$disk" bs=4k seek=1 oflag=direct conv=fsync
block 2 | dd of="$disk" bs=4k seek=2 oflag=direct
fail
are_there 1 1
if are_there 2 1; then false; fi

# write WRITER: blocks of its own, each noted once it is durable; by a flush, or written through.
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
    # Their writes fail now.
    wait $first $second || true
    for writer in 1 2; do
        are_there $((1000 * writer)) "$(wc -l < durable.$writer)"
    done
done
echo 0 > $config/power
rmdir $config
