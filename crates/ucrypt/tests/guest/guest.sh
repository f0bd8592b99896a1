#!/bin/sh
# Runs the scenarios one after the other. For each, /out gets NAME.log, NAME.status with the exit
# status, and NAME.seconds for people.
cd /work || exit
# Scenarios create null_blk devices there.
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
    # Files of a failed scenario would be in the way of the next ones.
    rm -rf "/tmp/$name"
done
dmesg > /out/dmesg.log
