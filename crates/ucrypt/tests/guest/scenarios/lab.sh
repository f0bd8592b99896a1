# The lab measures the kernel's dm-crypt beside ucrypt, with and without its work queues, and leaves no
# device behind.
mkdir room
mount -t tmpfs -o size=256M none room
ucrypt lab run request-merge --quick --size 16M --time 5 --rounds 1 --load built-in --on room \
    --against ucrypt,dm-crypt,dm-crypt-inline --out out
cat out/results.jsonl
for contender in raw ucrypt dm-crypt dm-crypt-inline; do
    # Reads and writes of two lengths.
    [ "$(grep -c "\"contender\":\"$contender\"" out/results.jsonl)" = 4 ]
done
if grep '"error"' out/results.jsonl; then false; fi
if dmsetup ls | grep ucrypt-lab; then false; fi
[ -z "$(ls room)" ]
umount room

# On a block device, dm-crypt and ucrypt have the device itself, each in its turn.
truncate -s 64M disk
device=$(/bin/losetup -f --show disk)
ucrypt lab run request-merge --quick --size 16M --time 5 --rounds 1 --load built-in -q --on "$device" \
    --against ucrypt,ucrypt-nbd,dm-crypt,dm-crypt-inline --out on-device
cat on-device/results.jsonl
for contender in raw file ucrypt ucrypt-nbd dm-crypt dm-crypt-inline; do
    [ "$(grep -c "\"contender\":\"$contender\"" on-device/results.jsonl)" = 4 ]
done
if grep '"error"' on-device/results.jsonl; then false; fi
if dmsetup ls | grep ucrypt-lab; then false; fi
/bin/losetup -d "$device"
