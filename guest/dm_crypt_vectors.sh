#!/bin/sh
# Runs in the guest. Writes plaintext through every table of /work/tables to /dev/disk/vectors, and
# checks that it reads back. /work/plaintext/N holds the plaintext of N runs of 8 KiB. A table that the
# kernel refuses is tried line by line.
#
# /out/refused: TABLE LINE REASON. /out/unreadable: TABLE LINE of runs that read back differently.
touch /out/refused /out/unreadable
dmesg -n 1
dmesg -c > /dev/null

# read_back RUN RUNS: reads RUNS runs of the device, from number RUN on.
read_back() {
    dd if=/dev/mapper/crypt bs=8192 skip="$1" count="$2" 2>/dev/null
}

# through RUNS TABLE LINE: writes RUNS runs, those of TABLE from LINE on, and reads them back.
through() {
    dd if="/work/plaintext/$1" of=/dev/mapper/crypt bs=8192 conv=fsync 2>/dev/null
    # Closing the device has dropped its cache.
    if ! read_back 0 "$1" | cmp -s - "/work/plaintext/$1"; then
        run=0
        while [ "$run" -lt "$1" ]; do
            read_back "$run" 1 | cmp -s - /work/plaintext/1 ||
                echo "$2 $(($3 + run))" >> /out/unreadable
            run=$((run + 1))
        done
    fi
    dmsetup remove crypt
}

for table in /work/tables/*; do
    name=${table##*/}
    case $name in *00) echo "table $name" ;; esac
    if dmsetup create crypt "$table" 2>/dev/null; then
        through "$(wc -l < "$table")" "$name" 0
        continue
    fi
    dmesg -c > /dev/null
    line=0
    while read -r _ rest; do
        if echo "0 $rest" | dmsetup create crypt 2>/dev/null; then
            through 1 "$name" "$line"
        else
            reason=$(dmesg -c | sed -n 's/.*: crypt: //p' | tail -n 1)
            echo "$name $line ${reason:-no reason given}" >> /out/refused
        fi
        line=$((line + 1))
    done < "$table"
done
sync
