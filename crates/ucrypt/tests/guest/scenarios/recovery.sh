# A server is killed while fio writes; what becomes of the device is what was asked for.
# shellcheck disable=SC2154 # common.sh sets $server
truncate -s 48M image other
format image
format other
serve out image --key-file key --ublk=7 --ublk-wait

# Seconds of load, of which a second and a half is used: it must not end before the second kill.
verify /dev/ublkb7 --rate_iops=100 --size=24M --thread &
fio=$!
sleep 1
kill -KILL "$server"
wait "$server" || true
# What takes its time on a busy machine is not load that runs out.
kill -STOP $fio
# The device waits. Only its own volume may have it.
[ -e /dev/ublkb7 ]
refused 4 "another volume" ucrypt serve other --key-file key --ublk-recover=7
kill -0 $fio
serve out2 image --key-file key --ublk-recover=7
[ "$(device_of out2)" = /dev/ublkb7 ]
refused 5 "by process $server" ucrypt serve --backend mem:16M --ublk-recover=7
# And once more.
kill -CONT $fio
sleep 0.5
kill -KILL "$server"
wait "$server" || true
kill -0 $fio
serve out3 image --key-file key --ublk-recover=7
wait $fio
dd if=/dev/ublkb7 of=before bs=1M count=24 iflag=direct
stop "$server"
[ ! -e /dev/ublkb7 ]

# What was verified is in the image, too.
ucrypt read --key-file key --length 25165824 image > after
cmp before after
refused 4 "no /dev/ublkb7" ucrypt serve image --key-file key --ublk-recover=7

# Without --ublk-wait the device ends with its server, and requests get errors.
serve out image --key-file key --ublk=8
dd if=/dev/urandom of=random bs=1M count=1
dd if=random of=/dev/ublkb8 bs=64k conv=fsync
kill -KILL "$server"
wait "$server" || true
until_gone /dev/ublkb8
refused 4 "not opened for recovery" ucrypt serve image --key-file key --ublk-recover=8
# What was flushed is there, on a device of the same number.
serve out image --key-file key --ublk=8
[ "$(device_of out)" = /dev/ublkb8 ]
dd if=/dev/ublkb8 bs=1M count=1 | cmp - random
stop "$server"
[ ! -e /dev/ublkc8 ]
