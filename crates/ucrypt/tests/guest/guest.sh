#!/bin/sh
# Runs the scenarios one after the other. Of each, /out gets NAME.log, and NAME.status with the
# exit status; NAME.seconds is for people.
cd /work || exit
# Where scenarios make null_blk devices of their own.
mount -t configfs none /sys/kernel/config
for scenario in scenarios/*.sh; do
    name=$(basename "$scenario" .sh)
    echo "$name"
    mkdir -p "/tmp/$name"
    begin=$(date +%s)
    (cd "/tmp/$name" && exec timeout -s KILL 400 sh -eux /work/common.sh "/work/$scenario") \
        > "/out/$name.log" 2>&1 < /dev/null
    echo $? > "/out/$name.status"
    echo $(($(date +%s) - begin)) > "/out/$name.seconds"
    # What a failed scenario left would be in the way of the others.
    rm -rf "/tmp/$name"
done
dmesg > /out/dmesg.log
