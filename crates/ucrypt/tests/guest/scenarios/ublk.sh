# A ublk device is a disk: its limits, data, flush, discard, zeroes, and its end.
# shellcheck disable=SC2154 # common.sh sets $server
truncate -s 48M image
format image --sector-size 512
serve out image --key-file key --allow-discards --ublk
disk=$(device_of out)
queue=/sys/block/$(basename "$disk")/queue
[ "$(cat "$queue/logical_block_size")" = 512 ]
[ "$(cat "$queue/physical_block_size")" = 4096 ]
[ "$(cat "$queue/write_cache")" = "write back" ]
[ "$(cat "$queue/fua")" = 1 ]
[ "$(cat "$queue/discard_max_bytes")" != 0 ]
[ "$(cat "$queue/write_zeroes_max_bytes")" != 0 ]
[ "$(find "$queue/../mq" -mindepth 1 -maxdepth 1 -type d | wc -l)" = "$(nproc)" ]

verify "$disk"
# Writes of a few sectors, each of them durable.
verify "$disk" --size=1M --bsrange=512-2k --sync=dsync

# Zeroes are written where they should be, and nowhere else.
dd if=/dev/urandom of=random bs=64k count=16
dd if=random of="$disk" bs=64k conv=fsync
/bin/blkdiscard --zeroout --offset 262144 --length 131072 "$disk"
dd if=/dev/zero of=random bs=64k seek=4 count=2 conv=notrunc
dd if="$disk" bs=64k count=16 iflag=direct | cmp - random
# A discard frees blocks of the image.
before=$(du -k image | cut -f 1)
/bin/blkdiscard --offset 8388608 --length 4194304 "$disk"
sync
after=$(du -k image | cut -f 1)
[ "$after" -lt "$before" ]

# A file system on the disk keeps its data.
mkfs.ext4 -q "$disk"
mkdir mnt
mount -t ext4 "$disk" mnt
cp random mnt/file
umount mnt
mount -t ext4 "$disk" mnt
cmp random mnt/file
umount mnt
# A program that has the disk open is waited for, but not for ever, and reads nothing then.
exec 3< "$disk"
kill "$server"
status=0
wait "$server" || status=$?
[ "$status" = 5 ]
[ ! -e "$disk" ]
[ "$(dd bs=4k count=1 iflag=direct <&3 | wc -c)" = 0 ]
exec 3<&-

# Read-only, and without discards.
serve out image --key-file key --readonly --ublk=5
[ "$(device_of out)" = /dev/ublkb5 ]
[ "$(blockdev --getro /dev/ublkb5)" = 1 ]
[ "$(cat /sys/block/ublkb5/queue/discard_max_bytes)" = 0 ]
if dd if=random of=/dev/ublkb5 bs=4k count=1; then false; fi
mount -t ext4 -o ro /dev/ublkb5 mnt
cmp random mnt/file
umount mnt
refused 5 exists ucrypt serve --backend mem:16M --ublk=5
stop "$server"
