# A server is killed while fio writes; the device then does what its options asked for.
# shellcheck disable=SC2154 # common.sh sets $server
truncate -s 48M image other
format image
format other
serve out image --key-file key --ublk=7 --ublk-wait

# Several seconds of load, of which 1.5 are used: it must not end before the second kill.
verify /dev/ublkb7 --rate_iops=100 --size=24M --thread &
fio=$!
sleep 1
kill -KILL "$server"
wait "$server" || true
# Pause the load, so that it does not run out on a busy machine.
kill -STOP $fio
# The device waits, and only its own volume may recover it.
[ -e /dev/ublkb7 ]
refused 4 "another volume" ucrypt serve other --key-file key --ublk-recover=7
kill -0 $fio
# Nor do servers end it that lack descriptors for its queues.
files=12
found=""
while [ -z "$found" ]; do
    code=0
    (ulimit -n $files && exec timeout -s KILL 10 ucrypt serve image --key-file key --ublk-recover=7) > out 2> errors || code=$?
    [ -e /dev/ublkb7 ]
    kill -0 $fio
    if [ $code = 4 ] && grep -q "queues" errors; then found=yes; fi
    [ $files -lt 40 ]
    files=$((files + 1))
done
serve out2 image --key-file key --ublk-recover=7
[ "$(device_of out2)" = /dev/ublkb7 ]
refused 5 "by process $server" ucrypt serve --backend mem:16M --ublk-recover=7
# Once more.
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

# The verified data is in the image, too.
ucrypt read --key-file key --length 25165824 image > after
cmp before after
refused 4 "no /dev/ublkb7" ucrypt serve image --key-file key --ublk-recover=7

# Without --ublk-wait the device ends with its server, and requests fail.
serve out image --key-file key --ublk=8
dd if=/dev/urandom of=random bs=1M count=1
dd if=random of=/dev/ublkb8 bs=64k conv=fsync
kill -KILL "$server"
wait "$server" || true
until_gone /dev/ublkb8
refused 4 "not opened for recovery" ucrypt serve image --key-file key --ublk-recover=8
# Flushed data is there, on a device with the same number.
serve out image --key-file key --ublk=8
[ "$(device_of out)" = /dev/ublkb8 ]
dd if=/dev/ublkb8 bs=1M count=1 | cmp - random
stop "$server"
[ ! -e /dev/ublkc8 ]
