# An open volume is a ublk device where the kernel has ublk, and outlives its server on request.
truncate -s 48M image
format image
dd if=/dev/urandom of=random bs=64k count=16
link=$(ucrypt open --key-file key image disk)
[ "$link" = /dev/ucrypt/disk ]
readlink "$link" | grep /dev/ublkb
dd if=random of="$link" bs=64k conv=fsync
refused 4 "keeps its size" ucrypt resize disk --size 8
exec 3< "$link"
refused 5 "in use" ucrypt close disk
cmp -n 65536 random - <&3
exec 3<&-
# So is a device that a program has open by a node of another name, as in a container.
numbers=$(cat "/sys/block/$(basename "$(readlink "$link")")/dev")
mknod other b "${numbers%:*}" "${numbers#*:}"
exec 3< other
refused 5 "in use" ucrypt close disk
cmp -n 65536 random - <&3
exec 3<&-
# And a disk one of whose partitions is open: a table with one, of 100 blocks from block 16 on.
dd if=/dev/zero of=table bs=4096 count=1
printf '\000\000\000\000\203\000\000\000\020\000\000\000\144\000\000\000' |
    dd of=table bs=1 seek=446 conv=notrunc
printf '\125\252' | dd of=table bs=1 seek=510 conv=notrunc
dd if=table of="$link" conv=notrunc,fsync
blockdev --rereadpt "$link"
exec 3< "$(readlink "$link")p1"
refused 5 "in use" ucrypt close disk
[ "$(dd bs=4096 count=1 <&3 | wc -c)" = 4096 ]
exec 3<&-
mkfs.ext4 -q "$link"
blockdev --rereadpt "$link"
mkdir mnt
mount "$link" mnt
refused 5 "in use" ucrypt close disk
cp random mnt/file
ucrypt close --deferred disk
cmp random mnt/file
umount mnt
while ucrypt status disk; do sleep 0.1; done
# A dangling link counts, too: a later device with the same number would make it a wrong volume.
[ ! -L "$link" ]
[ ! -e "$link" ]

# The process of the only background server.
background_server() {
    grep -l serve-in-backgroun[d] /proc/[0-9]*/cmdline | cut -d / -f 3 | head -n 1
}
ucrypt open --key-file key --ublk-wait image disk
node=$(readlink /dev/ucrypt/disk)
mount "$node" mnt
cmp random mnt/file
kill -KILL "$(background_server)"
# This write waits for the next server.
dd if=random of=mnt/another bs=64k conv=fsync &
writer=$!
ucrypt open --key-file key --ublk-wait image disk
[ "$(readlink /dev/ucrypt/disk)" = "$node" ]
wait $writer
cmp random mnt/another
umount mnt
ucrypt close disk
[ ! -e "$node" ]
[ ! -L /dev/ucrypt/disk ]

# A server whose start fails after it has taken the device over leaves it to the next one.
ucrypt open --key-file key --ublk-wait image disk
node=$(readlink /dev/ucrypt/disk)
mount "$node" mnt
kill -KILL "$(background_server)"
dd if=random of=mnt/third bs=64k conv=fsync &
writer=$!
code=0
ucrypt open --foreground --key-file key --ublk-wait image disk > /dev/full 2> errors || code=$?
cat errors
[ "$code" = 1 ]
[ ! -L /dev/ucrypt/disk ]
ucrypt open --key-file key --ublk-wait image disk
[ "$(readlink /dev/ucrypt/disk)" = "$node" ]
wait $writer
cmp random mnt/third
umount mnt
ucrypt close disk
[ ! -e "$node" ]

# Any key opens a plain volume: what waits for the right one is not encrypted with another by itself.
truncate -s 8M plain
dd if=/dev/urandom of=right bs=32 count=1
dd if=/dev/urandom of=wrong bs=32 count=1
plain="--type plain --cipher aes-xts-plain64 --key-size 256 --key-file"
# shellcheck disable=SC2086 # options
ucrypt open $plain right --ublk-wait plain disk
node=$(readlink /dev/ucrypt/disk)
kill -KILL "$(background_server)"
dd if=random of="$node" bs=64k oflag=direct &
writer=$!
# shellcheck disable=SC2086 # options
refused 5 "ublk-recover=${node#/dev/ublkb}" ucrypt open $plain wrong --ublk-wait plain disk
kill -0 $writer
[ ! -L /dev/ucrypt/disk ]
# shellcheck disable=SC2086 # options
serve out $plain right plain "--ublk-recover=${node#/dev/ublkb}"
wait $writer
stop "$server"
# shellcheck disable=SC2086 # options
ucrypt read $plain right --length 1048576 plain | cmp - random

# The name of a closed volume does not lead to the next volume.
truncate -s 48M image2
format image2
for turn in first second; do
    ucrypt open --key-file key image $turn
    [ -b /dev/ucrypt/$turn ]
    ucrypt close $turn
    [ ! -L /dev/ucrypt/$turn ]
done
ucrypt open --key-file key image first
ucrypt close first
ucrypt open --key-file key image2 second
[ ! -L /dev/ucrypt/first ]

# SIGTERM removes the link, too.
kill "$(background_server)"
while ucrypt status second; do sleep 0.1; done
[ ! -L /dev/ucrypt/second ]

# Without --ublk-wait only the name of a killed server is left, and it is free for the next server.
ucrypt open --key-file key image disk
kill -KILL "$(background_server)"
ucrypt open --key-file key image disk
[ "$(echo /dev/ublkc* | wc -w)" = 1 ]
ucrypt close disk

# The link of a killed server is not taken for that of the next volume, whose device has its number.
ucrypt open --key-file key image killed
kill -KILL "$(background_server)"
link=$(ucrypt open --key-file key image living)
[ "$(readlink /dev/ucrypt/killed)" = "$(readlink "$link")" ]
mkfs.ext4 -q -F "$link"
mount "$link" mnt
ucrypt umount mnt 2>&1 | grep "living stays open"
ucrypt close living
[ ! -L "$link" ]
refused 4 "was killed" ucrypt close killed
[ ! -L /dev/ucrypt/killed ]

# Two may read an image, the first by a device that would wait for another server.
ucrypt open --readonly --ublk-wait --key-file key image one
ucrypt open --readonly --key-file key image two
[ "$(readlink /dev/ucrypt/one)" != "$(readlink /dev/ucrypt/two)" ]
cmp -n 65536 /dev/ucrypt/one /dev/ucrypt/two
ucrypt close one two
# Of two that would wait, it is the one without a server that the next server takes over.
server_of() {
    ucrypt status --json "$1" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'
}
for name in one two; do ucrypt open --readonly --ublk-wait --key-file key image $name; done
for name in one two; do
    node=$(readlink /dev/ucrypt/$name)
    killed=$(server_of $name)
    kill -KILL "$killed"
    # Then the kernel needs a moment more to see that the device has none.
    while grep -q . "/proc/$killed/cmdline"; do sleep 0.1; done
    sleep 2
    ucrypt open --readonly --ublk-wait --key-file key image $name
    [ "$(readlink /dev/ucrypt/$name)" = "$node" ]
done
ucrypt close one two

# While a volume is suspended its device's requests wait, and nobody closes it; with its key they go on.
link=$(ucrypt open --key-file key image disk)
ucrypt luksSuspend disk
dd if=random of="$link" bs=64k oflag=direct conv=notrunc &
writer=$!
dd if="$link" bs=64k skip=16 count=16 iflag=direct of=/dev/null &
reader=$!
sleep 2
kill -0 $writer
kill -0 $reader
ucrypt status disk | grep -i suspended
refused 5 "in use" ucrypt close disk
printf wrong > wrong
refused 2 "" ucrypt luksResume --key-file wrong disk
ucrypt luksResume --key-file key disk
wait $writer
wait $reader
dd if="$link" bs=64k count=16 iflag=direct | cmp - random
ucrypt close disk
