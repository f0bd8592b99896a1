#!/bin/sh
# guest.sh SECONDS: writers to a file system on a volume on a loop device.
set -eu
fail() {
    echo "FAILED: $*"
    dmesg | tail -30
    exit 1
}

# sum FIELD: the sum of a field of /proc/PID/task/*/stat, counted behind the name.
sum() {
    cat /proc/"$server"/task/*/stat | sed 's/.*) //' | awk -v field="$1" '{ n += $field } END { print n }'
}

device=$(ucrypt open --as loop --key-file key /dev/disk/image volume)
server=$(ucrypt status --json volume | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
grep -E 'VmRSS|VmLck|Threads' /proc/"$server"/status
free -m | sed -n '1,2p'

# Required of the server: it is killed last, its memory is locked, and every thread is an I/O
# flusher. It has a mount namespace only if the root is no initramfs, so that note is ignored.
[ "$(cat /proc/"$server"/oom_score_adj)" = -1000 ] || fail "it may be killed"
[ "$(awk '/VmLck/ { print $2 }' /proc/"$server"/status)" -gt 4096 ] || fail "it is not locked"
notes=$(ucrypt status volume | grep note: | grep -v 'mount namespace' || :)
[ -z "$notes" ] || fail "$notes"
for thread in /proc/"$server"/task/*/stat; do
    # PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE
    flags=$(sed 's/.*) //' "$thread" | awk '{ print $7 }')
    [ $((flags & 0x180000)) = $((0x180000)) ] || fail "$thread has flags $flags"
done

mkfs.ext4 -q "$device"
mkdir /mnt
mount -t ext4 "$device" /mnt
major=$(sum 10)
minor=$(sum 8)

# Tells the host that this machine still gets on.
(
    disk=$(basename "$(readlink -f /dev/disk/image)")
    while sleep 2; do
        written=$(awk '{ print $7 }' /sys/block/"$disk"/stat)
        [ "$written" = "${before:-}" ] || echo "$written sectors written"
        before=$written
    done
) &
teller=$!

end=$(($(date +%s) + $1))
rounds=0
while [ "$(date +%s)" -lt "$end" ] || [ "$rounds" = 0 ]; do
    writers=""
    for writer in 1 2 3 4; do
        # Together the writers write twice the memory that is left.
        yes "$writer $rounds" | head -c 50m | tee /mnt/"$writer" | md5sum > /tmp/"$writer" &
        writers="$writers $!"
        # Small files make metadata dirty, too.
        (mkdir -p /mnt/d"$writer"; for i in $(seq 100); do echo "$i" > /mnt/d"$writer"/"$i"; done) &
        writers="$writers $!"
    done
    # shellcheck disable=SC2086 # a list of process ids
    wait $writers
    for writer in 1 2 3 4; do
        md5sum < /mnt/"$writer" | cmp - /tmp/"$writer" || fail "file $writer is another"
    done
    rm -r /mnt/[1-4] /mnt/d[1-4]
    rounds=$((rounds + 1))
done
sync
echo "$rounds rounds; page faults: $(($(sum 10) - major)) major, $(($(sum 8) - minor)) minor"
[ "$(sum 10)" = "$major" ] || fail "the server had to wait for pages"
dmesg | grep -iE 'blocked for more|out of memory|page allocation failure' && fail "see above"
kill "$teller"
umount /mnt
ucrypt close volume
echo passed
