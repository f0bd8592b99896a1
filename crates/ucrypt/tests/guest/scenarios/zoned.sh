# A zoned device is written in order, in whatever order encryption completes. dm-crypt, which
# supports zones, checks the result.
zones=/dev/nullb0
[ "$(cat /sys/block/nullb0/queue/zoned)" = host-managed ]
dd if=/dev/urandom of=random bs=1M count=12
printf %0128d 7 > hex
table="0 $(blockdev --getsz $zones) crypt aes-xts-plain64 $(cat hex) 0 $zones 0"
for dispatch in unbound same-cpu adaptive; do
    blkzone reset $zones
    # Across the borders of several zones.
    ucrypt write --table "$table" --dispatch $dispatch --direct $zones < random
    echo "$table" | dmsetup create zoned
    dd if=/dev/mapper/zoned bs=1M count=12 iflag=direct | cmp - random
    dmsetup remove zoned
done
