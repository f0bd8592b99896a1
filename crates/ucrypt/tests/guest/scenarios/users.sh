# A user without privileges gets a ublk device where the system allows it.
# shellcheck disable=SC2154 # common.sh sets $server
chmod 777 .
user="/bin/setpriv --reuid 1000 --regid 1000 --clear-groups"
chmod 600 /dev/ublk-control
refused 2 "no permission" $user ucrypt serve --backend mem:32M --ublk
# Other scenarios may have left devices whose servers were killed.
before=$(echo /dev/ublkc*)

# Does what a udev rule does on systems where users may have devices.
chmod 666 /dev/ublk-control
while sleep 0.1; do chown 1000:1000 /dev/ublkc* /dev/ublkb* 2> /dev/null || true; done &
rule=$!
$user ucrypt serve --backend mem:32M --ublk > out &
server=$!
servers="$server $rule"
while ! grep -q . out; do sleep 0.1; kill -0 $server; done
disk=$(device_of out)
while [ "$(stat -c %u "$disk")" != 1000 ]; do sleep 0.1; done
$user fio --name=verify --filename="$disk" --ioengine=libaio --direct=1 --iodepth=16 \
    --rw=randwrite --bsrange=4k-256k --size=16M --verify=crc32c --verify_fatal=1 --minimal
stop $server
[ ! -e "$disk" ]
refused 2 "not recoverable" $user ucrypt serve --backend mem:32M --ublk --ublk-wait
[ "$(echo /dev/ublkc*)" = "$before" ]

# Whatever the user asks for, the message names what works: without fusermount3 no FUSE file either.
truncate -s 24M image
format image
chmod 666 image
chmod 644 key
mkdir -m 777 run
open() {
    env XDG_RUNTIME_DIR="$PWD/run" $user ucrypt open --key-file key image disk "$@"
}
refused 2 "--as nbd" open --as ublk
refused 2 "--as nbd" open --as loop
refused 2 "--as nbd" open --as fuse
open --as nbd
env XDG_RUNTIME_DIR="$PWD/run" $user ucrypt close disk
